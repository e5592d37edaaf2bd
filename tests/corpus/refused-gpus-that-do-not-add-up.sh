#!/bin/bash
#SBATCH -N 4
#SBATCH --gpus=8
#SBATCH --gpus-per-node=4
./prog
