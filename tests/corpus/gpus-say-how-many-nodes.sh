#!/bin/bash
#SBATCH --gpus=16
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
srun python pretrain.py
