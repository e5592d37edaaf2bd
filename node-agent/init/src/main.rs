//! carrel-init: process 1 of every Carrel container, and its SSH server.
//!
//! One static binary in four roles:
//!
//! - The **keeper** ([`keeper`]) is process 1. It prepares the container, drops its privileges for
//!   good, and from then on only forks, waits and reaps. It holds what must outlive the SSH
//!   server: the host key, the newest configuration, the listening sockets, the lease.
//! - The **server** ([`server`]) is the keeper's child: SSH, SFTP, forwards and the control socket.
//!   It forks nothing itself; it asks the keeper ([`wire`]). When it dies, the keeper starts
//!   another; running processes go on.
//! - The **logger** ([`logger`]) is there for a batch job's command: it copies what that writes to the
//!   user's files and to what the node keeps. When it dies, another goes on where it was.
//! - The **ranks' keeper** ([`ranks`]) is there while a step runs tasks here: it takes what they write
//!   and keeps the newest of each for the node. The keeper starts it when somebody connects.
//!
//! ```text
//! carrel-init [--run-dir DIR] [--etc DIR] [--lease-ms N] [--ranks SOCKET]     the keeper
//! carrel-init serve                                         the server; only the keeper starts it
//! carrel-init log                                           the logger; only the keeper starts it
//! carrel-init ranks                                         the ranks' keeper; only the keeper starts it
//! ```
//!
//! Exit codes: 0 ended as asked (a stop request, SIGTERM, SIGINT), 1 could not start, 2 wrong
//! arguments, 75 the lease ended; a batch job's command's own, or 128 and the signal that ended it, which
//! `end.pb` in the run directory tells from these.

mod clock;
mod files;
mod keeper;
mod logger;
mod ranks;
mod server;
mod wire;

/// musl's own gives every large buffer back to the kernel and takes it anew.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use carrel_proto::inside::RANKS_SOCKET;

/// Where the node agent mounts the run directory.
const DEFAULT_RUN_DIR: &str = "/.carrel/run";

const USAGE: &str = "usage: carrel-init [--run-dir DIR] [--etc DIR] [--lease-ms N] [--ranks SOCKET]
  --run-dir DIR   directory with init.pb; ctl.sock and ssh.sock appear in it (default /.carrel/run)
  --etc DIR       directory whose passwd and group get the user (default /etc, when process 1 and root)
  --lease-ms N    lease until the first contact over ctl.sock (default: none)
  --ranks SOCKET  where what tasks of steps write is taken (default, when process 1: /.carrel/ranks.sock)";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let first = args.next();
    if first.as_deref() == Some("serve".as_ref()) {
        return server::main(args.collect());
    }
    if first.as_deref() == Some("log".as_ref()) {
        return logger::main();
    }
    if first.as_deref() == Some("ranks".as_ref()) {
        return ranks::main();
    }
    match parse(first.into_iter().chain(args)) {
        Ok(Some(options)) => keeper::main(options),
        Ok(None) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("carrel-init: {message}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Option<keeper::Options>, String> {
    let mut options = keeper::Options {
        run_dir: DEFAULT_RUN_DIR.into(),
        etc: None,
        lease_ms: None,
        ranks: None,
    };
    if nix::unistd::getpid().as_raw() == 1 {
        options.ranks = Some(RANKS_SOCKET.into());
        options.etc = Some("/etc".into());
    }
    while let Some(name) = args.next() {
        let name = name.to_string_lossy().into_owned();
        if name == "--help" || name == "-h" {
            return Ok(None);
        }
        if name == "--version" {
            println!("carrel-init {}", env!("CARGO_PKG_VERSION"));
            std::process::exit(0);
        }
        let value = args
            .next()
            .ok_or_else(|| format!("{name}: a value is missing, or it is not an option"))?;
        match name.as_str() {
            "--run-dir" => options.run_dir = PathBuf::from(value),
            "--etc" => options.etc = Some(PathBuf::from(value)),
            "--ranks" => options.ranks = Some(PathBuf::from(value)),
            "--lease-ms" => {
                let text = value.to_string_lossy();
                let lease = text
                    .parse()
                    .map_err(|_| format!("--lease-ms: {text:?} is not a number"))?;
                options.lease_ms = Some(lease);
            }
            _ => return Err(format!("{name}: not an option")),
        }
    }
    Ok(Some(options))
}
