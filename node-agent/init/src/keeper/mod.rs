//! Process 1: prepares the container, then forks, waits and reaps, and nothing else.
//!
//! No threads and no runtime: one loop over a signal descriptor, the socket to the server and a
//! timer on `CLOCK_BOOTTIME`. Nothing that the server or a user's process does makes it panic;
//! what the server says is checked as a stranger's message would be.

mod accounts;
mod fence;
mod kept;
mod main_command;
mod privileges;
mod processes;
mod ranks;
mod run;
mod setup;
mod spawn;
mod stop;
mod syscalls;

use std::path::PathBuf;
use std::process::ExitCode;

/// How the keeper was started.
#[derive(Debug)]
pub struct Options {
    /// Holds `init.pb`; the sockets appear in it.
    pub run_dir: PathBuf,
    /// Where passwd and group are; `None`: they are left alone.
    pub etc: Option<PathBuf>,
    /// Lease until the first contact, ms.
    pub lease_ms: Option<u64>,
    /// Where what tasks of steps write is taken; `None`: nowhere.
    pub ranks: Option<PathBuf>,
}

/// Runs as process 1 until everything has ended.
pub fn main(options: Options) -> ExitCode {
    let prepared = match setup::prepare(&options) {
        Ok(prepared) => prepared,
        Err(error) => {
            say(&format!("cannot start: {error:#}"));
            return ExitCode::from(1);
        }
    };
    match run::run(prepared, options.lease_ms) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say(&format!("cannot go on: {error:#}"));
            ExitCode::from(1)
        }
    }
}

/// One line of log. The keeper has no logging library: it must not allocate threads or fail.
fn say(message: &str) {
    use std::io::Write;
    // A closed or full stderr must not hurt.
    let _ = writeln!(std::io::stderr(), "carrel-init: {message}");
}
