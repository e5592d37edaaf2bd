#!/bin/bash
#> HOME=/home/ada LANG=C PATH=/bin SEED=7 SLURM_JOB_ID=1 sbatch THIS
./prog
