#!/usr/bin/env python3
#SBATCH --job-name=sweep
#SBATCH --cpus-per-task=2
#SBATCH --time=0-00:45

import os
#SBATCH --mem=1G
print(os.environ["SLURM_JOB_ID"])
