#!/bin/bash
#> SBATCH_GPUS=many sbatch THIS
./prog
