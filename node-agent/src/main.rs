//! `carrel-node`: the agent of one host.
//!
//! Exit codes: 0 ended as asked, 1 failed (the reason is on stderr), 2 wrong usage.

use std::future::Future;
use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use carrel_node::commands::{down, image, join, probe, run};
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// The agent of one host.
#[derive(Parser)]
#[command(name = "carrel-node", version)]
struct Cli {
    /// What to log, to stderr: "info", "debug", "carrel_node=debug,info" …
    #[arg(
        long,
        global = true,
        env = "CARREL_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    log: String,
    /// Log as JSON, one object a line
    #[arg(long, global = true)]
    log_json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Join(join::JoinArgs),
    Probe(probe::ProbeArgs),
    Image(image::ImageArgs),
    Down(down::DownArgs),
}

fn main() -> ExitCode {
    match start(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("carrel-node: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> Result<ExitCode> {
    start_log(&cli)?;
    match cli.command {
        Command::Run(args) => finish(run::run(args)),
        Command::Join(args) => finish(join::run(args)),
        Command::Probe(args) => probe::run(args),
        Command::Image(args) => finish(image::run(args)),
        Command::Down(args) => finish(down::run(args)),
    }
}

fn finish(verb: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(verb);
    // A call into a driver that hangs must not keep the process.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

fn start_log(cli: &Cli) -> Result<()> {
    let filter = EnvFilter::try_new(&cli.log).with_context(|| format!("--log {:?}", cli.log))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if cli.log_json {
        log.json().init();
    } else {
        log.init();
    }
    Ok(())
}
