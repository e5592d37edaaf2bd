#!/bin/bash
#SBATCH --job-name="half
./prog
