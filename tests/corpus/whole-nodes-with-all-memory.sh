#!/bin/bash
#SBATCH --nodes=8 --gpus-per-node=8 --ntasks-per-node=1 --cpus-per-task=96
#SBATCH --exclusive=exclusive --mem=0 --overcommit
srun bash -c 'torchrun --nnodes $SLURM_NNODES --node_rank $SLURM_NODEID train.py'
