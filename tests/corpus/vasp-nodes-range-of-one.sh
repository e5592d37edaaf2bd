#!/bin/bash
#SBATCH --nodes=3-3
#SBATCH --ntasks-per-node=40
#SBATCH --mincpus=48
#SBATCH -w node[01-03]
srun vasp_std
