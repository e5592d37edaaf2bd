#!/bin/sh
#> sbatch --parsable --job-name align.s1 -o logs/align.%j.log --export=ALL -t 120 -c 8 --mem=4000 -p cpu THIS
# properties = {"rule": "align"}
cd /work && snakemake --snakefile Snakefile s1.bam
