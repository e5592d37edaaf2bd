#!/bin/bash
#SBATCH --dependency=afterok:101:102,afterany:7_3
./merge
