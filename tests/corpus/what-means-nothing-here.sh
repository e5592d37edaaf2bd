#!/bin/bash
#SBATCH --acctg-freq=task=10 --cpu-freq=high --gres-flags=enforce-binding --mem-bind=local --profile=all
#SBATCH --tmp=100G --core-spec=2 --threads-per-core=1 --sockets-per-node=2 --cores-per-socket=16
#SBATCH --propagate=NONE --network=disable_rdzv_get --power=off --reboot --spread-job --time-min=10
#SBATCH --oom-kill-step=1 --stepmgr --extra=x --clusters=all --bb="capacity=1G" --delay-boot=5
./prog
