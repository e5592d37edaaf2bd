//! Benchmarks: each prints one JSON object a line to standard output,
//! `{"name": "...", "value": n, "unit": "...", "budget": "..."}`; what it does meanwhile
//! goes to standard error. `./dev bench NAME` builds the programs in release and runs one.

mod batch;
mod chaos;
mod flood;
mod history;
mod latency;
mod lists;
mod nodes;
mod openb;
mod pass;
mod placement;
mod queue;
mod relay;
mod replay;
mod report;
mod session;
mod throughput;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

// The broker's: its passes are measured in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks of Carrel.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// From `carrel alloc` to a prompt, allocations a second, and SSH throughput.
    Session(session::Options),
    /// Random kills under load: what was promised and lost.
    Chaos(chaos::Options),
    /// Which GPUs of a host requests get, against the best there are.
    Placement(placement::Options),
    /// How much of a cluster stays unallocated, beside other policies.
    Openb(openb::Options),
    /// Waits, slowdowns and utilisation of a trace's jobs, beside other policies.
    Replay(replay::Options),
    /// The broker's passes over many pending jobs of a large cluster.
    Pass(pass::Options),
    /// Accepts, handovers, grants, memory, restarts and kills with many jobs pending, beside a real Slurm.
    Queue(queue::Options),
    /// Batch jobs that run, steps that begin, and output that arrives, beside a real Slurm.
    Batch(batch::Options),
    /// Searches and reports over a year of jobs, and a start beside them.
    History(history::Options),
    /// Connections of strangers, for tests of those who listen.
    #[command(hide = true)]
    Flood(flood::Options),
    /// Connects to a socket and passes it on, as OpenSSH's `ProxyUseFdpass` wants it.
    #[command(hide = true)]
    PassSocket {
        /// The socket.
        socket: PathBuf,
    },
    /// Copies between its standard streams and a socket, as a plain ProxyCommand.
    #[command(hide = true)]
    Pipe {
        /// The socket.
        socket: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Args::parse().what {
        What::Session(options) => session::run(&options),
        What::Chaos(options) => chaos::run(&options),
        What::Placement(options) => placement::run(&options),
        What::Pass(options) => pass::run(&options),
        What::Openb(options) => openb::run(&options),
        What::Replay(options) => replay::run(&options),
        What::Queue(options) => queue::run(&options),
        What::Batch(options) => batch::run(&options),
        What::History(options) => history::run(&options),
        What::Flood(options) => flood::run(&options),
        What::PassSocket { socket } => relay::pass_socket(&socket),
        What::Pipe { socket } => relay::pipe(&socket),
    }
}
