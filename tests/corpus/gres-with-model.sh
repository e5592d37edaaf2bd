#!/bin/bash
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=240G
#SBATCH --time=1-00:00:00
torchrun --standalone --nproc_per_node=4 train.py
