#!/bin/bash
#SBATCH -A llm -p batch -N 16 --ntasks-per-node=8 --gpus-per-node=8
#SBATCH --time=04:00:00 --exclusive --mem=0 --overcommit --dependency=singleton
#SBATCH --segment=4 --comment='{"OccupiedIdleGPUsJobReaper":{"exemptIdleTimeMins":"60"}}'
#SBATCH --job-name=llm-gpt3:175b
srun bash -c "python megatron.py"
