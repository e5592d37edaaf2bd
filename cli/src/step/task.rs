//! The last moment before a task's program: bound to its CPUs, with its terminal, and gone when its step's node is.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use clap::Parser as _;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid, setsid, ttyname};

use crate::error::{CliError, Result};

/// Exit codes of what could not be begun, as shells have them.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

/// First argument of such a process.
pub const VERB: &str = "step-task";

/// What a step's node asks of a task's process.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = VERB, args_override_self = true)]
pub struct TaskArgs {
    /// CPUs to stay on
    #[arg(long, value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// stdin is the terminal that it works at
    #[arg(long)]
    pub terminal: bool,
    /// The process that has to live
    #[arg(long)]
    pub parent: i32,
    /// Program and arguments
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Becomes a task's program, if this process is begun for one: before anything else, since a step may have hundreds.
/// Otherwise, or if it cannot, it returns: with an exit code in the latter case.
pub fn become_one() -> Option<u8> {
    let mut args = std::env::args_os().skip(1).peekable();
    args.next_if(|first| first == VERB)?;
    let args = TaskArgs::parse_from(std::iter::once(VERB.into()).chain(args));
    Some(run(&args).unwrap_or_else(|error| {
        crate::terminal::show_error(&error);
        error.kind.exit_code()
    }))
}

fn run(args: &TaskArgs) -> Result<u8> {
    // Killed with its step's node, however that ends.
    prctl::set_pdeathsig(Signal::SIGKILL).ok();
    if getppid() != Pid::from_raw(args.parent) {
        return Err(CliError::failed("the step has ended"));
    }
    if !args.cpus.is_empty() {
        let mut set = CpuSet::new();
        for cpu in &args.cpus {
            // Beyond what a set holds there is nothing to be bound to.
            set.set(*cpu).ok();
        }
        // A container whose CPUs have changed since goes on with those that it has.
        sched_setaffinity(Pid::from_raw(0), &set).ok();
    }
    if args.terminal {
        // The first terminal that a session's leader opens is its own.
        setsid().ok();
        if let Ok(path) = ttyname(std::io::stdin()) {
            std::fs::File::options().read(true).write(true).open(path).ok();
        }
    }
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(CliError::usage("there is no command"));
    };
    let error = Command::new(program).args(arguments).exec();
    crate::terminal::say(format_args!("carrel: {program}: {error}"));
    Ok(if error.kind() == std::io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_RUN
    })
}
