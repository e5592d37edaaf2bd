#!/bin/bash
#SBATCH --gres=gpu
nvidia-smi
