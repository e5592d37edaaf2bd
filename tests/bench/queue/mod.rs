//! `queue`: what waits, and how soon it runs: accepts a second, from a free GPU to the next container, grants behind a
//! deep queue, the broker's memory, its restart, and what a `kill -9` of it loses; beside a real Slurm on the same
//! machine, where there is one.
//!
//! Everything is measured on real programs: broker, gateway, agents with containerd, and the command. The parts have
//! clusters of their own, one after another, so that none meets what another left behind.

mod accept;
mod figures;
mod grant;
mod handover;
pub mod interrupt;
mod kill9;
mod log;
mod memory;
mod restart;
pub mod slurm;
pub mod stage;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::ValueEnum;

use figures::Figures;

/// How much of it.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only these parts, in place of all.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…")]
    only: Vec<Part>,
    /// Measures a real Slurm as well, and prints ratios: a directory with `slurm-peer.sh` and `measure.sh`.
    #[arg(long, value_name = "DIR")]
    slurm: Option<PathBuf>,
    /// Seed of what is asked for, and of when programs are killed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A tenth of everything: to see that it works.
    #[arg(long)]
    quick: bool,
    /// Jobs submitted through the API by 16 clients; one client submits an eighth of them.
    #[arg(long, value_name = "JOBS", default_value_t = 16_000, value_parser = clap::value_parser!(u64).range(8..))]
    accepts: u64,
    /// Jobs submitted by `carrel submit`, by each number of clients.
    #[arg(long, value_name = "JOBS", default_value_t = 480, value_parser = clap::value_parser!(u64).range(1..))]
    commands: u64,
    /// Jobs that wait while GPUs come free, besides none.
    #[arg(long, value_name = "JOBS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pending: u64,
    /// GPUs that come free, with each number of waiting jobs.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    handovers: u64,
    /// Two-node jobs that wait in front of those that ask for one GPU.
    #[arg(long, value_name = "JOBS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    behind: u64,
    /// Grants, quiet and in the storm; a quarter as many by command.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(4..))]
    grants: u64,
    /// Jobs that wait when the broker's memory is looked at, besides none; ascending.
    #[arg(long, value_name = "JOBS,…", value_delimiter = ',', default_value = "10000,100000",
          value_parser = clap::value_parser!(u64).range(1..))]
    memory: Vec<u64>,
    /// Jobs that wait when the broker is restarted.
    #[arg(long, value_name = "JOBS", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    restart: u64,
    /// Times that the broker is killed: each for restarts, and in a stream of submits.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    kills: u64,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Part {
    /// Durable accepts a second.
    Accept,
    /// From a free GPU to the next job's container.
    Handover,
    /// One GPU behind many two-node jobs, and in a storm of submits.
    Grant,
    /// The broker's memory.
    Memory,
    /// From the broker's start to its first answers.
    Restart,
    /// What a `kill -9` of the broker in a stream of submits loses.
    Kill9,
}

impl Options {
    /// The parts, in their order, each once.
    fn parts(&self) -> Vec<Part> {
        let all = Part::value_variants();
        let wanted = all
            .iter()
            .filter(|part| self.only.is_empty() || self.only.contains(part));
        wanted.copied().collect()
    }

    /// As many, or a tenth of it.
    fn scaled(&self, number: u64) -> u64 {
        if self.quick { number.div_ceil(10) } else { number }
    }
}

/// Runs the parts, the other one's after our own, and fails where something acknowledged was lost.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let ascending = options.memory.windows(2).all(|pair| pair[0] < pair[1]);
    ensure!(
        ascending,
        "--memory: numbers of jobs that ascend, such as 10000,100000"
    );
    let peer = options.slurm.as_deref().map(slurm::Peer::find).transpose()?;
    interrupt::watch()?;
    interrupt::over(|| measure(options, peer.as_ref()))
}

fn measure(options: &Options, peer: Option<&slurm::Peer>) -> anyhow::Result<()> {
    let parts = options.parts();
    let mut figures = Figures::default();
    let mut lost = 0;
    for part in &parts {
        eprintln!("{part:?}");
        match part {
            Part::Accept => accept::run(options, &mut figures),
            Part::Handover => handover::run(options, &mut figures),
            Part::Grant => grant::run(options, &mut figures),
            Part::Memory => memory::run(options, &mut figures),
            Part::Restart => restart::run(options, &mut figures).map(|more| lost += more),
            Part::Kill9 => kill9::run(options, &mut figures).map(|more| lost += more),
        }
        .with_context(|| format!("{part:?}"))?;
    }
    if let Some(peer) = peer {
        let theirs = peer.measure(&parts, options)?;
        theirs.compare(&parts, &mut figures)?;
    }
    ensure!(lost == 0, "{lost} of what was acknowledged is lost");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Result<Options, clap::Error> {
        let words = std::iter::once("queue").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.options)
    }

    #[test]
    fn parts_come_in_their_order_and_once() {
        let parts = |line| options(line).expect(line).parts();
        assert_eq!(parts(""), Part::value_variants());
        assert_eq!(parts("--only kill9,accept,kill9"), [Part::Accept, Part::Kill9]);
        assert_eq!(parts("--only memory --only grant"), [Part::Grant, Part::Memory]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "--only nonsense",
            "--handovers 0",
            "--grants 3",
            "--memory 0",
            "--kills -1",
            "--seed x",
        ] {
            assert!(options(line).is_err(), "{line}");
        }
        let descending = options("--memory 20,10").expect("read");
        let why = run(&descending).expect_err("refused").to_string();
        assert!(why.contains("ascend"), "{why}");
        let nowhere = options("--slurm /nonexistent").expect("read");
        let why = format!("{:#}", run(&nowhere).expect_err("refused"));
        assert!(
            why.contains("/nonexistent") && why.contains("slurm-peer.sh"),
            "{why}"
        );
    }

    #[test]
    fn quick_is_a_tenth_and_never_nothing() {
        let quick = options("--quick").expect("read");
        assert_eq!(
            (quick.scaled(10_000), quick.scaled(5), quick.scaled(101)),
            (1000, 1, 11)
        );
        assert_eq!(options("").expect("read").scaled(5), 5);
    }
}
