#!/bin/bash
#SBATCH -t 90:30
#SBATCH --mem=2048
./short
