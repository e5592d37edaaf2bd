#!/bin/bash
#SBATCH --time=5
#SBATCH --gpu=1
./prog
