#!/bin/bash
#SBATCH --nodes=3
#SBATCH --exclusive
#SBATCH --tasks-per-node=1
#SBATCH --gpus-per-task=2
#SBATCH --cpus-per-task=16
srun -N1 -n1 -w "$HEAD" ray start --head --block &
