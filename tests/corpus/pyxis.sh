#!/bin/bash
#SBATCH --container-image nvcr.io\#nvidia/pytorch:24.05-py3 --gpus=1
#SBATCH --container-mounts=/data:/data:ro,/scratch:/workspace --container-workdir=/workspace
#SBATCH --no-container-mount-home --container-name=torch --no-container-remap-root
srun --container-image=nvcr.io#nvidia/pytorch:24.05-py3 ./train
