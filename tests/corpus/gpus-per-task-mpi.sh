#!/bin/bash
#SBATCH -A project_42 -C gpu -q regular
#SBATCH -N 4
#SBATCH --ntasks-per-node=4
#SBATCH -c 32
#SBATCH --gpus-per-task=1
#SBATCH --gpu-bind=none
srun ./lattice
