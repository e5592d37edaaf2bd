#!/bin/bash
#SBATCH --nodelist=gpu[3-4],gpu7
#SBATCH --exclude=gpu9
srun hostname
