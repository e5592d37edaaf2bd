#!/bin/bash
#SBATCH --gpus-per-node=4 --gpus-per-task=1 --ntasks-per-node=2
./prog
