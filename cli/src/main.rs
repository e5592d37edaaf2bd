//! `carrel`: the users' program.

// Text for people is put together a few times in a run: its allocations cost nothing.
#![allow(clippy::format_push_string, clippy::format_collect)]

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

fn main() -> ExitCode {
    clap_complete::CompleteEnv::with_factory(Cli::command).complete();
    let cli = components::parse(std::env::args_os().collect()).unwrap_or_else(|error| error.exit());
    // One thread: this program waits, and every SSH connection starts it.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal::say(format_args!("error: cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        let context = Context::load(cli.globals)?;
        Box::pin(commands::run(&context, cli.command)).await
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
