#!/bin/bash
#SBATCH -N2
#SBATCH -G v100:8
srun ./md
