#!/bin/bash
#SBATCH --gpus=a100_1g.5gb:1
#SBATCH --cpus-per-task=2 --mem=15G
python notebook.py
