//! `carrel`: the users' program.

// Text for people is put together a few times in a run: its allocations cost nothing.
#![allow(clippy::format_push_string, clippy::format_collect)]
// Documents of JSON are written out whole.
#![recursion_limit = "256"]

mod attach;
mod batch;
mod browser;
mod cli;
mod clock;
mod commands;
mod components;
mod config;
mod connect;
mod constraints;
mod context;
mod end_signal;
mod error;
mod grant;
mod output;
mod paths;
mod plan;
mod progress;
#[cfg(test)]
mod reference;
mod request;
mod shell;
mod sign_in;
mod signals;
mod slurm;
mod ssh;
mod start;
mod stdio;
mod step;
mod stream;
mod terminal;
mod times;
mod tls;
mod topology;
mod units;
mod up;
mod view;
mod wait;
mod way;

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::cli::Cli;
use crate::context::Context;
use crate::error::CliError;

/// The command line, and the name of Slurm's that the program was called by.
fn called_as(args: Vec<std::ffi::OsString>) -> (Vec<std::ffi::OsString>, Option<&'static str>) {
    let program = args.first().and_then(|program| program.to_str());
    let name = program.and_then(slurm::called_by);
    (args, name)
}

fn main() -> ExitCode {
    if let Some(code) = step::task::become_one() {
        return ExitCode::from(code);
    }
    clap_complete::CompleteEnv::with_factory(Cli::command).complete();
    let (args, slurm) = called_as(std::env::args_os().collect());
    let command = match slurm {
        Some(name) => Err((name, args)),
        None => Ok(components::parse(args).unwrap_or_else(|error| error.exit())),
    };
    // One thread: this program waits, and every SSH connection starts it.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal::say(format_args!("error: cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match command {
            Ok(cli) => {
                let context = Context::load(cli.globals)?;
                Box::pin(commands::run(&context, cli.command)).await
            }
            Err((name, args)) => {
                let args = args.into_iter().skip(1).map(std::ffi::OsString::into_string);
                match args.collect::<Result<Vec<String>, _>>() {
                    Ok(args) => Ok(Box::pin(slurm::main(name, args)).await),
                    Err(word) => Err(CliError::usage(format!("{} is no UTF-8 text", word.display()))),
                }
            }
        }
    });
    // A read of stdin that never ends must not hold the exit.
    runtime.shutdown_background();
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            terminal::show_error(&error);
            ExitCode::from(error.kind.exit_code())
        }
    }
}
