#!/bin/bash
#SBATCH --mem=4G
#SBATCH --time=5
#SBATCH --mem-per-cpu=1G
./prog
