#!/bin/bash
#> sbatch --gpus=2 -t 5 --mem-per-gpu=10G --no-requeue THIS --gpus 9 -- x
#SBATCH --gres=gpu:8 --time=10:00:00 --mem=100G --requeue
#SBATCH --job-name=kept
python eval.py "$@"
