#!/bin/bash
# What it needs:
##SBATCH --time=99:00:00
###SBATCH -N 64
# SBATCH --partition=old
 #SBATCH --account=indented
#SBATCHING is no directive
#SBATCH --partition=short  # the one that is free
#SBATCH -c 4               # --mem=1T would be too much
python fit.py
