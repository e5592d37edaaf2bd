#!/bin/bash
#SBATCH --array=0-99:10%4
#SBATCH -o sweep/%A/%3a.txt -e sweep/%A/%3a.err
python sweep.py --seed $SLURM_ARRAY_TASK_ID
