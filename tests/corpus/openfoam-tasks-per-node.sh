#!/bin/bash
#SBATCH --ntasks=96
#SBATCH --tasks-per-node=48
#SBATCH --ntasks-per-core=1
#SBATCH --switches=1@2:00:00
#SBATCH --contiguous
decomposePar && srun simpleFoam -parallel
