#!/bin/bash
#SBATCH --gpus-per-node=h100:4 --cpus-per-gpu=8 --mem-per-gpu=64G
#SBATCH --output=serve-%j.log --error=serve-%j.log
#SBATCH --no-kill --wait-all-nodes=1
vllm serve model --tensor-parallel-size 4
