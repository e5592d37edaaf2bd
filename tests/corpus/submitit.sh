#!/bin/bash

# Parameters
#SBATCH --array=0-3%2
#SBATCH --cpus-per-task=10
#SBATCH --error=/checkpoint/%A_%a_0_log.err
#SBATCH --gpus-per-node=1
#SBATCH --job-name=submitit
#SBATCH --mem=64GB
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/checkpoint/%A_%a_0_log.out
#SBATCH --signal=USR2@90
#SBATCH --time=240
#SBATCH --wckey=submitit

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /checkpoint/%A_%a_%t_log.out python -u -m submitit.core._submit /checkpoint
