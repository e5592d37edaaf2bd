#!/bin/bash
#SBATCH --job-name=count
#SBATCH --time=00:10:00
#SBATCH --mem=500M
#SBATCH --output=count_%j.log

wc -l measurements/*.csv
