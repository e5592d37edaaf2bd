#!/bin/bash
#SBATCH --gpus=1 --cpus-per-gpu=8
#SBATCH --cpus-per-task=4
./prog
