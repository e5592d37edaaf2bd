#!/bin/bash
#SBATCH --job-name="second try" --comment='for the paper'
#SBATCH --output=logs/out\ of\ %x.txt
#SBATCH --constraint="a100&(80g|40g)"
#SBATCH -D '/data/my project'
#SBATCH --export=ALL,TITLE="x y",SEED=3
python run.py
