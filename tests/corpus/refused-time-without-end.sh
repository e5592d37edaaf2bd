#!/bin/bash
#SBATCH --time=UNLIMITED
./prog
