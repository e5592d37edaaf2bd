#!/bin/bash
#SBATCH --container-image nvcr.io\#nvidia/pytorch:24.05-py3 --gpus=1
./prog
