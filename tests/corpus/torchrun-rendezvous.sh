#!/bin/bash
#SBATCH --job-name=llama-ft
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --gpus-per-task=8
#SBATCH --cpus-per-task=96
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes 4 --nproc_per_node 8 --rdzv_endpoint "$head:29500" train.py
