#!/bin/bash

#SBATCH --job-name=parsl.block-0
#SBATCH --output=/runinfo/parsl.block-0.stdout
#SBATCH --error=/runinfo/parsl.block-0.stderr
#SBATCH --nodes=1
#SBATCH --time=30
#SBATCH --ntasks-per-node=1

#SBATCH --exclusive
export CORES=$SLURM_CPUS_ON_NODE
process_worker_pool.py
