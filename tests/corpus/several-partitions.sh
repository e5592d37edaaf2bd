#!/bin/bash
#SBATCH -p owners,normal #,gpu
./prog
