#!/bin/bash
#SBATCH -C gpu,hbm80g
#SBATCH --gpus-per-node=4
srun ./qcd
