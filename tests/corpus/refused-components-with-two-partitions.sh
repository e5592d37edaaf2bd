#!/bin/bash
#SBATCH --partition=cpu -n 1
#SBATCH hetjob
#SBATCH --partition=gpu --gres=gpu:1
srun ./prog
