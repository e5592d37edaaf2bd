#!/bin/bash
#SBATCH --mem-per-cpu=6G
#SBATCH --time=4:00:00
Rscript model.R
