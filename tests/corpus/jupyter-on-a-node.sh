#!/bin/bash
#SBATCH --partition=interactive --gres=gpu:1,  --time=08:00:00
#SBATCH --output=jupyter-%j.log --x11 --chdir=/home/ada
jupyter lab --no-browser --ip="$(hostname)" --port=8889
