#!/bin/bash
#SBATCH -L scratch,cfs
./prog
