#!/bin/bash
#SBATCH --container-image=/images/torch.sqsh
srun ./train
