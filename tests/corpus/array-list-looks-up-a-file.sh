#!/bin/bash
#SBATCH -a 1,3,5-7
#SBATCH --output=/dev/null
sample=$(sed -n "${SLURM_ARRAY_TASK_ID}p" samples.txt)
fold "$sample"
