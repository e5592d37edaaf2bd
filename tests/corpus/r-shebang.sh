#!/usr/bin/Rscript
#SBATCH -n 1
#SBATCH --mem 8gb
library(stats)
