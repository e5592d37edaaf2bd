#!/bin/bash
#SBATCH -i data.txt
./prog
