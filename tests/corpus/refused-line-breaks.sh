#!/bin/bash
#SBATCH --time=5
./prog
