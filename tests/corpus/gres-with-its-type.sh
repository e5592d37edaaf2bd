#!/bin/bash
#SBATCH --gres=gres/gpu:h100:2
nvidia-smi
