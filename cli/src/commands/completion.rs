//! `carrel completion`: scripts for shells. Session names come from the user's own list of
//! aliases, so that the Tab key never waits for a broker.

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;

use crate::error::{CliError, Context as _, Result};
use crate::output;
use crate::ssh::{SshDir, alias};

/// Print a shell's completion script.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    source <(carrel completion bash)\n  \
    carrel completion zsh > ~/.zfunc/_carrel\n  \
    carrel completion fish > ~/.config/fish/completions/carrel.fish")]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_parser = ["bash", "zsh", "fish", "elvish", "powershell"])]
    pub shell: String,
}

/// Runs the verb.
pub fn run(args: CompletionArgs) -> Result<u8> {
    let shells = Shells::builtins();
    let shell = shells
        .completer(&args.shell)
        .ok_or_else(|| CliError::usage(format!("no completion for {}", args.shell)))?;
    let mut script = Vec::new();
    shell
        .write_registration("COMPLETE", "carrel", "carrel", "carrel", &mut script)
        .context("completion")?;
    output::text(String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Completes the names of the user's sessions.
pub fn sessions() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &std::ffi::OsStr| {
        let Ok(dir) = SshDir::open() else {
            return Vec::new();
        };
        let begun = current.to_string_lossy();
        let names = alias::names(&dir)
            .into_iter()
            .filter(|name| name.starts_with(&*begun));
        names.map(CompletionCandidate::new).collect()
    })
}
