#!/bin/bash
#SBATCH --no-requeue --signal=SIGTERM@90 --kill-on-invalid-dep=yes
srun ./prog
