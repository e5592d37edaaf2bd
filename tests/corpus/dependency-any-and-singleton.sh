#!/bin/bash
#SBATCH -J chain
#SBATCH -d singleton
./step
