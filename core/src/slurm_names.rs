//! The names by which `carrel` is called in Slurm's place.

/// Slurm's commands; a link of such a name to `carrel` is that command.
pub const NAMES: [&str; 12] = [
    "salloc", "sbatch", "srun", "squeue", "scancel", "sinfo", "sacct", "sacctmgr", "scontrol", "sstat",
    "sprio", "sshare",
];
