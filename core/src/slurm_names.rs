//! The names by which `carrel` is called in Slurm's place.

/// Slurm's commands; a link of such a name to `carrel` is that command.
pub const NAMES: [&str; 11] = [
    "salloc", "sbatch", "srun", "squeue", "scancel", "sinfo", "sacct", "scontrol", "sstat", "sprio", "sshare",
];
