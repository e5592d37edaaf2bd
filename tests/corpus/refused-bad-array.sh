#!/bin/bash
#SBATCH --array=10-1
./prog
