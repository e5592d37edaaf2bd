#!/bin/bash
#SBATCH -N 2 -n 5
./prog
