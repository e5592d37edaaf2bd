#!/bin/bash
#SBATCH --reservation=course --account=teach-101 --partition=lab --qos=interactive
#SBATCH --wckey=ws26 --priority=TOP
./exercise
