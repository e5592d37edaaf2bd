#!/usr/bin/perl -w
#PBS -l nodes=1
#SBATCH --ignore-pbs
#SBATCH -t 5
print "done\n";
