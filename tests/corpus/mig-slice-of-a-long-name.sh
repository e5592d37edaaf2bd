#!/bin/bash
#SBATCH --gres=gpu:nvidia_h100_80gb_hbm3_2g.20gb:1
python infer.py
