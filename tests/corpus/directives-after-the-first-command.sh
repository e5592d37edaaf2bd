#!/bin/bash
#SBATCH --time=60
set -euo pipefail
#SBATCH --gpus=4
#SBATCH --mem=64G
#SBATCH -p gpu
python train.py
