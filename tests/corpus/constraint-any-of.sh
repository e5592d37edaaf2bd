#!/bin/bash
#SBATCH -n 64 --constraint="[rack1|rack2]"
srun ./lbm
