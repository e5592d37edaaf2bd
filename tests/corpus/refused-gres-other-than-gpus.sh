#!/bin/bash
#SBATCH --gres=gpu:v100:1,nvme:100
./prog
