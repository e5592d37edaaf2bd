#!/bin/bash
#SLURM --time=20 -c 2
#SLURM settings end here
make -j2
