#!/bin/bash
#SBATCH --begin=2031-05-01T06:30
#SBATCH --hold --nice=50 --deadline=2031-05-02
./nightly
