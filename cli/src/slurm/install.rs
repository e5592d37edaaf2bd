//! `carrel slurm`: links by which this program is called as Slurm's are, and the commands without them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use carrel_core::slurm_names::NAMES;
use clap::Subcommand;

use crate::context;
use crate::error::{CliError, Context as _, Result};
use crate::terminal::say;

/// Slurm's commands, as other names of this program.
///
/// `carrel slurm install DIR` puts links there: salloc, sbatch, srun, squeue, scancel, sinfo, sacct, sacctmgr, scontrol,
/// sstat, sprio and sshare. With DIR on PATH, scripts and tools that speak to Slurm speak to this cluster. Inside sessions and jobs
/// they are there already. docs/slurm.md says what of each command there is.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel slurm install ~/.local/bin\n  \
    carrel slurm squeue --me          without links")]
pub struct SlurmArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: SlurmCommand,
}

/// What of it.
#[derive(Clone, Debug, Subcommand)]
pub enum SlurmCommand {
    /// Put links of Slurm's names into a directory
    Install {
        /// The directory
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// In place of files that are there, and are no links to this program
        #[arg(long)]
        force: bool,
    },
    /// Run one of the commands: `carrel slurm squeue --me`
    #[command(external_subcommand)]
    Run(Vec<String>),
}

/// Runs the verb.
pub async fn run(args: SlurmArgs) -> Result<u8> {
    match args.command {
        SlurmCommand::Install { dir, force } => install(&dir, force).map(|()| 0),
        SlurmCommand::Run(words) => {
            let (name, rest) = words
                .split_first()
                .ok_or_else(|| CliError::usage("which command?"))?;
            let known = NAMES.into_iter().find(|known| known == name);
            let known = known.ok_or_else(|| {
                CliError::usage(format!("{name} is none of Slurm's commands"))
                    .hint(format!("there are {}", NAMES.join(", ")))
            })?;
            Ok(Box::pin(super::main(known, rest.to_vec())).await)
        }
    }
}

/// Puts a link of each name, and replaces what is a link already.
fn install(dir: &Path, force: bool) -> Result<()> {
    let program = context::carrel()?;
    std::fs::create_dir_all(dir).context(format_args!("cannot make {}", dir.display()))?;
    let there = |link: &Path| match std::fs::symlink_metadata(link) {
        Ok(metadata) => Ok(Some(metadata.is_symlink())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context(format_args!("cannot look at {}", link.display())),
    };
    // All or none: a directory with half of a real Slurm is worse than either.
    for name in NAMES {
        let link = dir.join(name);
        if there(&link)? == Some(false) && !force {
            return Err(
                CliError::failed(format!("{} is there, and is no link", link.display()))
                    .hint("another directory, or --force to replace it"),
            );
        }
    }
    for name in NAMES {
        let link = dir.join(name);
        let new = dir.join(format!(".{name}.carrel-new"));
        drop(std::fs::remove_file(&new));
        std::os::unix::fs::symlink(&program, &new)
            .and_then(|()| std::fs::rename(&new, &link))
            .context(format_args!("cannot put {}", link.display()))?;
    }
    say(format_args!(
        "carrel: {} lead to {}",
        NAMES.join(", "),
        program.display()
    ));
    let on_path =
        std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|one| one == dir));
    if !on_path {
        say(format_args!(
            "carrel: put {} on PATH, before another Slurm's",
            dir.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_put_all_or_none() {
        let dir = tempfile::tempdir().expect("a directory");
        install(dir.path(), false).expect("put");
        for name in NAMES {
            let to = std::fs::read_link(dir.path().join(name)).expect("a link");
            assert_eq!(to, std::env::current_exe().expect("this program"));
        }
        install(dir.path(), false).expect("again");
        std::fs::remove_file(dir.path().join("sinfo")).expect("own link");
        std::fs::write(dir.path().join("sinfo"), "another's").expect("own file");
        std::fs::remove_file(dir.path().join("squeue")).expect("own link");
        assert!(
            install(dir.path(), false)
                .expect_err("no link")
                .message
                .contains("sinfo is there")
        );
        assert!(!dir.path().join("squeue").exists());
        install(dir.path(), true).expect("forced");
        assert!(std::fs::read_link(dir.path().join("sinfo")).is_ok());
    }
}
