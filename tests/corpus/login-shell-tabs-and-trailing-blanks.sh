#!/bin/bash -l
#SBATCH	-J	tabbed   
#SBATCH   --ntasks=2		
#SBATCH  -t  1:30:00   # an hour and a half

#SBATCH --mem-per-cpu=1500

srun ./solve
