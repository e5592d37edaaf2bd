#!/bin/bash
#SBATCH--nodes=2
#SBATCH--ntasks-per-node=4
#SBATCH --time=30
srun ./a.out
