//! Slurm's names: the same program, called by a link of such a name or by `carrel slurm NAME`.
//!
//! What tools read is as Slurm prints it; what a command changes is what the verb of our own does.

#[cfg(test)]
mod corpus;
mod format;
pub mod install;
mod job;
mod json;
mod measured;
pub mod options;
#[cfg(test)]
mod reference;
mod sacct;
mod sacctmgr;
mod salloc;
mod sbatch;
mod scancel;
mod scontrol;
mod sinfo;
mod sprio;
mod squeue;
mod srun;
mod sshare;
mod sstat;
mod words;

use std::path::Path;

use carrel_core::slurm_names::NAMES;

use crate::context::{Context, GlobalArgs};
use crate::error::{CliError, Kind, Result};
use crate::output::{self, Format};
use crate::terminal::{self, say};
use options::{Given, Usage};

/// What Slurm's programs say of a job that there is not.
const NO_SUCH_JOB: &str = "slurm_load_jobs error: Invalid job id specified";
/// The release of Slurm whose options and output these are.
const LIKE: &str = "24.05.0";

/// A command that was called by one of Slurm's names.
pub struct Called {
    /// Configuration, and the way to the broker.
    pub context: Context,
}

impl Called {
    /// Whoever asks: their login name.
    fn user() -> Result<String> {
        let uid = nix::unistd::getuid();
        let known = nix::unistd::User::from_uid(uid)
            .ok()
            .flatten()
            .map(|user| user.name);
        known
            .or_else(|| std::env::var("USER").ok().filter(|user| !user.is_empty()))
            .ok_or_else(|| CliError::failed(format!("user id {uid} has no name on this machine")))
    }
}

/// A user as options name them: login name, or number.
fn user_name(text: &str) -> String {
    let uid = text.parse::<u32>().ok().map(nix::unistd::Uid::from_raw);
    let known = uid.and_then(|uid| nix::unistd::User::from_uid(uid).ok().flatten());
    known.map_or_else(|| text.to_owned(), |user| user.name)
}

/// The command that a program is called by: the file name of its path, if it is one of Slurm's.
pub fn called_by(program: &str) -> Option<&'static str> {
    let name = Path::new(program).file_name()?.to_str()?;
    NAMES.into_iter().find(|known| *known == name)
}

/// Runs a command. Returns the program's exit code; what goes wrong is said here, in Slurm's form.
pub async fn main(name: &'static str, args: Vec<String>) -> u8 {
    terminal::speak_as(name);
    match command(name, &args).await {
        Ok(code) => code,
        Err(error) => {
            if error.message == NO_SUCH_JOB {
                say(&error.message);
            } else {
                say(format_args!("{name}: error: {}", error.message));
            }
            match &error.hint {
                // getopt's own word stands alone.
                Some(hint) if hint.starts_with("Try ") => say(hint),
                Some(hint) => say(format_args!("{name}: {hint}")),
                None => {}
            }
            match error.kind {
                Kind::Interrupted | Kind::Terminated | Kind::Connection => error.kind.exit_code(),
                Kind::Failed | Kind::Usage | Kind::NotFound | Kind::Unreachable | Kind::Denied => 1,
            }
        }
    }
}

async fn command(name: &'static str, args: &[String]) -> Result<u8> {
    if matches!(args, [only] if only == "-V" || only == "--version") {
        return output::text(format_args!(
            "slurm {LIKE} (carrel {})\n",
            env!("CARGO_PKG_VERSION")
        ))
        .map(|()| 0);
    }
    let called = || -> Result<Called> {
        let broker = std::env::var("CARREL_BROKER")
            .ok()
            .filter(|text| !text.is_empty());
        let broker = broker.map(|text| {
            text.parse()
                .map_err(|rule: String| CliError::usage(format!("CARREL_BROKER: {rule}")))
        });
        let globals = GlobalArgs {
            broker: broker.transpose()?,
            output: Format::Text,
        };
        Ok(Called {
            context: Context::load(globals)?,
        })
    };
    match name {
        "sbatch" => sbatch::run(&called()?, args).await,
        "salloc" => Box::pin(salloc::run(&called()?, args)).await,
        "srun" => Box::pin(srun::run(&called()?, args)).await,
        "squeue" => match given(&squeue::USAGE, args, false)? {
            Some(given) => squeue::run(&called()?, given).await,
            None => Ok(0),
        },
        "sacct" => match given(&sacct::USAGE, args, false)? {
            Some(given) => sacct::run(&called()?, given).await,
            None => Ok(0),
        },
        "sacctmgr" => match given(&sacctmgr::USAGE, args, false)? {
            Some(given) => sacctmgr::run(&called()?, given).await,
            None => Ok(0),
        },
        "scancel" => match given(&scancel::USAGE, args, false)? {
            Some(given) => scancel::run(&called()?, given).await,
            None => Ok(0),
        },
        "sinfo" => match given(&sinfo::USAGE, args, false)? {
            Some(given) => sinfo::run(&called()?, given).await,
            None => Ok(0),
        },
        "scontrol" => match given(&scontrol::USAGE, args, false)? {
            Some(given) => scontrol::run(&called()?, given).await,
            None => Ok(0),
        },
        "sprio" => match given(&sprio::USAGE, args, false)? {
            Some(given) => sprio::run(&called()?, given).await,
            None => Ok(0),
        },
        "sshare" => match given(&sshare::USAGE, args, false)? {
            Some(given) => sshare::run(&called()?, given).await,
            None => Ok(0),
        },
        "sstat" => match given(&sstat::USAGE, args, false)? {
            Some(given) => sstat::run(&called()?, given).await,
            None => Ok(0),
        },
        other => Err(CliError::usage(format!("there is no command {other}"))
            .hint(format!("there are {}", NAMES.join(", ")))),
    }
}

/// Reads a command's options; none: its help was wanted, and is printed.
fn given(usage: &Usage, args: &[String], until_word: bool) -> Result<Option<Given>> {
    let given = options::parse(usage, args, until_word)?;
    if given.has("help") || given.has("usage") {
        output::text(usage.help())?;
        return Ok(None);
    }
    if given.has("version") {
        output::text(format_args!(
            "slurm {LIKE} (carrel {})\n",
            env!("CARGO_PKG_VERSION")
        ))?;
        return Ok(None);
    }
    for note in &given.notes {
        say(format_args!("{}: {note}", usage.name));
    }
    Ok(Some(given))
}

/// The commands with options of their own kind, for their description.
#[cfg(test)]
const USAGES: [&Usage; 9] = [
    &squeue::USAGE,
    &sacct::USAGE,
    &sacctmgr::USAGE,
    &scancel::USAGE,
    &scontrol::USAGE,
    &sinfo::USAGE,
    &sprio::USAGE,
    &sshare::USAGE,
    &sstat::USAGE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_s_name_is_the_command() {
        assert_eq!(called_by("/opt/bin/squeue"), Some("squeue"));
        assert_eq!(called_by("sbatch"), Some("sbatch"));
        for other in ["carrel", "/usr/bin/carrel", "squeue.sh", "", "/"] {
            assert_eq!(called_by(other), None, "{other}");
        }
    }
}
