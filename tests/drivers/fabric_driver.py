"""What a user of Lightning does: nothing. It finds out by itself that it runs under Slurm, and trains on all ranks."""

import os
import sys
import warnings

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import SLURMEnvironment


def main():
    # "srun is available but is not used", and whatever else it may not like.
    warnings.filterwarnings("error", message=".*(srun|SLURM|Slurm).*")
    nodes = int(sys.argv[1])
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=1, num_nodes=nodes)
    fabric.launch()
    environment = fabric.strategy.cluster_environment
    assert isinstance(environment, SLURMEnvironment), environment
    assert environment.main_address == os.environ["MASTER_ADDR"]
    assert environment.job_id() == int(os.environ["SLURM_JOB_ID"])
    assert fabric.node_rank == fabric.global_rank, fabric.node_rank
    mean = fabric.all_reduce(torch.tensor(float(fabric.global_rank)), reduce_op="mean")
    os.write(sys.stdout.fileno(), f"{fabric.global_rank}/{fabric.world_size} {mean.item()}\n".encode())


main()
