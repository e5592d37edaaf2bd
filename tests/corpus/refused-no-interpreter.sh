#SBATCH --time=5
./prog
