#!/bin/bash
#SBATCH --exclusive=user
#SBATCH --oversubscribe
#SBATCH --share -s
./prog
