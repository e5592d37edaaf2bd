#!/bin/bash
#SBATCH --output=none --error=err.txt --input=/dev/null
#SBATCH --quiet --verbose
./noisy
