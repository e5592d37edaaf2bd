#!/bin/bash
#SBATCH --mail-user=ada@example.org
#SBATCH --mail-type=BEGIN
#SBATCH --mail-type=end
#SBATCH --mail-type=FAIL,TIME_LIMIT_80
./prog
