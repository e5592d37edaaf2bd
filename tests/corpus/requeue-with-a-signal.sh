#!/bin/bash
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=APPEND
#SBATCH --time=24:00:00 --gpus-per-node=1
trap 'scontrol requeue $SLURM_JOB_ID' USR1
python train.py --resume &
wait
