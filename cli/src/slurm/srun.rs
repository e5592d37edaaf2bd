//! `srun`: `carrel run`, as Slurm's users know it.

use std::ffi::OsString;

use clap::error::ErrorKind;

use super::Called;
use crate::cli::Command;
use crate::error::{CliError, Result};
use crate::{batch, commands, components, output};

/// Runs it.
pub async fn run(called: &Called, args: &[String]) -> Result<u8> {
    let own = ["carrel", "run"].map(OsString::from);
    let words = own.into_iter().chain(args.iter().map(OsString::from));
    match components::parse(words.collect()) {
        Ok(cli) => match cli.command {
            Command::Run(args) => commands::run::run(&called.context, *args).await,
            _ => Err(CliError::usage("this is no step")),
        },
        Err(error) if error.kind() == ErrorKind::DisplayHelp => output::text(error.to_string()).map(|()| 0),
        Err(error) => {
            Err(CliError::usage(batch::in_one_line(&error)).hint("Try \"srun --help\" for more information"))
        }
    }
}
