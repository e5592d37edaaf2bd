#!/bin/bash
#SBATCH --time=2-12
#SBATCH --mem=0
./long
