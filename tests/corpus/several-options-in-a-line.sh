#!/bin/bash
#SBATCH -N 2 -n 8 -c 3 --time 2:00:00 -p batch
#SBATCH -A physics --qos=high --mem 20G -J "coupled run"
srun ./ocean
