#!/bin/bash
#SBATCH --gres=none -c 2
./cpu-only
