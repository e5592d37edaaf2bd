#!/bin/bash
#SBATCH -J my job
#SBATCH --time=5
./prog
