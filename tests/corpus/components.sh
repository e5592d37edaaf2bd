#!/bin/bash
#SBATCH --job-name=server --time=1:00:00 --cpus-per-task=2 --mem-per-cpu=32g --ntasks=1
#SBATCH hetjob
#SBATCH --cpus-per-task=2 --mem-per-cpu=6g  --ntasks=8
#SBATCH packjob  # as it was called once
#SBATCH -N 2 --gpus-per-node=4 --job-name=trainers
srun --het-group=0 ./server : --het-group=1,2 ./client
