#!/bin/bash
#SBATCH --ntasks=4
#SBATCH --gpus=2
#SBATCH --mem-per-cpu=8G
python train.py
