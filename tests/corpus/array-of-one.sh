#!/bin/bash
#SBATCH --array=0
#SBATCH --job-name=nf-ALIGN_(s1)
bash .command.run
