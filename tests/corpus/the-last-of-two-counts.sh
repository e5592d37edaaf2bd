#!/bin/bash
#SBATCH --time=1:00:00
#SBATCH -c 2
#SBATCH --output=a.out
#SBATCH --time=2:00:00
#SBATCH --cpus-per-task=8
#SBATCH -o b.out
./prog
