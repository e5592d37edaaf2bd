#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks=1
./single
