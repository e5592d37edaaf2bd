//! The SSH server: the keeper's restartable child.
//!
//! It serves `ssh.sock` and `ctl.sock`, which it inherits, with the user's rights. It is not
//! traceable by the user's other processes. Whatever it does, the keeper and the user's processes
//! live on; a panic ends one connection, or at the worst this process.

mod accept;
mod auth;
mod command;
mod connection;
mod control;
mod deadline;
mod forward;
mod framed;
mod keeper;
mod main_command;
mod pipes;
mod pty;
mod relay;
mod session;
mod settings;
mod sftp;
mod shared;
mod streams;
mod terminal;
mod transport;
mod user_signal;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use carrel_proto::v1::FenceReport;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info};

use self::keeper::Keeper;
use self::settings::Settings;
use self::shared::Shared;
use self::terminal::Terminals;
use crate::wire::{self, fds};

/// Threads of the runtime: one connection's encryption beside another's reading. More would gain
/// little for one user, and the CPUs are the job's.
const THREADS: usize = 2;

/// How long terminals have to tell their viewers how they ended, before connections end.
const LAST_WORDS: std::time::Duration = std::time::Duration::from_millis(300);

/// How long connections have to say goodbye once everything ends.
const GOODBYE: std::time::Duration = std::time::Duration::from_millis(1500);

/// What the keeper says on the command line.
struct Inherited {
    /// Servers before this one.
    restarts: u32,
    /// Live processes that they started.
    processes: u32,
    /// Kept terminals, of which the keeper tells first.
    terminals: u32,
    /// Highest number that a terminal was ever given.
    last_terminal: u32,
    /// How the container's fence stood its trial.
    fence: Option<FenceReport>,
}

/// Runs as the server until the keeper hangs up.
pub fn main(args: Vec<OsString>) -> ExitCode {
    // Executing the binary made the process traceable again.
    if let Err(error) = prctl::set_dumpable(false) {
        eprintln!("carrel-init serve: cannot become untraceable: {error}");
        return ExitCode::from(1);
    }
    raise_file_limit();
    // Only a name in `ps`; without it, it would be called by a number.
    let _ = prctl::set_name(c"carrel-ssh");
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,russh=warn")),
        )
        .init();
    let number = |at: usize| args.get(at).and_then(|text| text.to_str()?.parse::<u32>().ok());
    let fence = number(4).zip(number(5));
    let inherited = Inherited {
        restarts: number(0).unwrap_or(0),
        processes: number(1).unwrap_or(0),
        terminals: number(2).unwrap_or(0),
        last_terminal: number(3).unwrap_or(0),
        fence: fence.map(|(checks, micros)| FenceReport { checks, micros }),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("carrel-ssh")
        .enable_all()
        .build();
    let result = runtime.context("starting the runtime").and_then(|runtime| {
        let result = runtime.block_on(serve(inherited));
        // Blocking file calls may hang in a dead file system.
        runtime.shutdown_background();
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::from(1)
        }
    }
}

/// A browser behind a forward opens hundreds of files here; user processes keep the usual limit,
/// since the keeper forks them.
fn raise_file_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With fewer files, forwards are refused sooner.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

fn listener(fd: OwnedFd) -> std::io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::from(fd);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn serve(inherited: Inherited) -> anyhow::Result<()> {
    // Taken and ignored: a user's `kill -1` shall not cost the connections, and at the end of the
    // container this process goes last.
    let _ignored = [
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::interrupt(),
    ]
    .map(|kind| signal(kind).map_err(|error| error!(%error, "signal handler")));

    let seed = wire::inherited(fds::SEED).context("the host key's seed; only the keeper starts this role")?;
    let config = wire::inherited(fds::CONFIG)?;
    let settings = Settings::load(seed, config)?;
    let keeper = Keeper::new(wire::inherited(fds::KEEPER)?, inherited.processes)?;
    let ssh = listener(wire::inherited(fds::SSH)?).context("ssh.sock")?;
    let ctl = listener(wire::inherited(fds::CTL)?).context("ctl.sock")?;

    let ending = CancellationToken::new();
    let tasks = TaskTracker::new();
    let terminals = Terminals::new(inherited.last_terminal, tasks.clone(), ending.clone());
    // Before anybody can ask for one.
    for (kept, files) in keeper
        .adopt(inherited.terminals)
        .await
        .context("taking over terminals")?
    {
        let number = kept.number;
        if let Err(error) = terminals.adopt(kept, files) {
            error!(
                terminal = number,
                error = format!("{error:#}"),
                "a terminal is lost"
            );
        }
    }
    let Inherited { restarts, fence, .. } = inherited;
    let shared = Arc::new(Shared::new(settings, keeper, terminals, restarts, fence));
    tasks.spawn(accept::accept(
        ssh,
        Arc::clone(&shared),
        ending.clone(),
        tasks.clone(),
    ));
    tasks.spawn(control::accept(
        ctl,
        Arc::clone(&shared),
        ending.clone(),
        tasks.clone(),
    ));
    let warning = deadline::tell(Arc::clone(&shared));
    let over = ending.clone();
    tasks.spawn(async move {
        tokio::select! {
            // Safe to cancel: nobody is left to be told.
            () = warning => {}
            () = over.cancelled() => {}
        }
    });
    let signals = user_signal::obey(Arc::clone(&shared));
    let over = ending.clone();
    tasks.spawn(async move {
        tokio::select! {
            // Safe to cancel: nothing is left to be signalled.
            () = signals => {}
            () = over.cancelled() => {}
        }
    });
    info!(restarts, "serving");
    let begins = Arc::clone(&shared);
    tasks.spawn(async move { main_command::see_to(&begins).await });

    shared.keeper.run(&shared).await;
    info!("the keeper is done");
    // Viewers hear how their terminals ended before their connections do.
    let _ = tokio::time::timeout(LAST_WORDS, shared.terminals.tell_ends()).await;
    ending.cancel();
    tasks.close();
    // Connections that do not end in time end with this process.
    let _ = tokio::time::timeout(GOODBYE, tasks.wait()).await;
    Ok(())
}
