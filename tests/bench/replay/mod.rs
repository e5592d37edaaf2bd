//! `replay`: what users of a cluster would have waited, job by job of a trace, under Carrel and under other policies.
//!
//! The broker's own state machine is given the jobs, and reports that nodes would send, in virtual time; the others
//! are models (`peers.rs`). All get the same jobs, of the same shapes, with the same time limits (`workload.rs`):
//!
//! - A job of more GPUs than a node has is a gang of as few nodes as hold it, with equally many GPUs of each. CPUs and
//!   memory are in proportion to GPUs, so that GPUs decide. Jobs that the cluster could never hold, of unknown runtime
//!   or without GPUs are left out, and counted.
//! - A limit that the trace tells is kept, if the job kept it. Otherwise it is the runtime times 1, 1.5, 2, 5 or 10,
//!   each as likely, drawn with the seed, rounded up to what people write; two weeks at most, or what the job takes.
//! - `--load` is the GPU time asked for over what the cluster has while jobs arrive: all times of arrival are multiplied
//!   by what makes it so. Without it they stay as they are.
//! - Users who are not named are drawn, 20 for each virtual cluster. No policy but Carrel knows them.
//!
//! Waits and slowdowns are those of jobs that come in the window, between the first tenth of the arrivals and the
//! last; all of them run to their ends. Utilisation is that of the window. A job that is ended for another's sake
//! begins anew: what it had done is lost, and no part of utilisation.

mod carrel;
mod outcome;
mod peers;
mod trace;
mod workload;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use clap::ValueEnum;

use crate::report::figure;
use outcome::{Figures, report};
use peers::Overtaking;
use trace::Format;
use workload::{Cluster, Workload};

/// Which trace, on which cluster.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The trace, gzipped or not
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// How it is written
    #[arg(long)]
    format: Format,
    /// Nodes of the cluster
    #[arg(long)]
    nodes: u32,
    /// GPUs of each
    #[arg(long, default_value_t = 8)]
    gpus_per_node: u32,
    /// GPU time asked for over what there is, as arrivals are scaled; without it as in the trace
    #[arg(long, value_name = "X")]
    load: Option<f64>,
    /// One policy, or several; without it all
    #[arg(long)]
    policy: Vec<Policy>,
    /// The first so many jobs only
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Nobody tells Carrel which jobs are interactive
    #[arg(long)]
    untold: bool,
    /// Seed of time limits, and of users where the trace does not name them
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Who decides what starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// The broker
    Carrel,
    /// First come, first served
    Fifo,
    /// EASY backfill that keeps whole nodes
    EasyNode,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Self::Carrel => "carrel",
            Self::Fifo => "fifo",
            Self::EasyNode => "easy-node",
        }
    }
}

/// Runs every policy.
pub fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(
        options.nodes > 0 && options.gpus_per_node > 0,
        "a cluster has nodes, and GPUs on them"
    );
    ensure!(
        options.load.is_none_or(|load| load.is_finite() && load > 0.0),
        "--load: is above 0"
    );
    let cluster = Cluster {
        nodes: options.nodes,
        gpus_per_node: options.gpus_per_node,
    };
    let entries = options.format.read(&options.trace)?;
    let workload = Workload::new(entries, cluster, options.load, options.jobs, options.seed)?;
    describe(&workload, cluster)?;
    let mut policies = options.policy.clone();
    if policies.is_empty() {
        policies.extend(Policy::value_variants());
    }
    policies.dedup();
    let mut figures: Vec<(Policy, Figures)> = Vec::new();
    for policy in policies {
        let begun = Instant::now();
        let outcomes = match policy {
            Policy::Carrel => carrel::run(cluster, &workload, options.untold)?,
            Policy::Fifo => peers::run(cluster, &workload.jobs, Overtaking::None),
            Policy::EasyNode => peers::run(cluster, &workload.jobs, Overtaking::Easy),
        };
        eprintln!(
            "{}: replayed in {:.1} s",
            policy.name(),
            begun.elapsed().as_secs_f64()
        );
        figures.push((policy, report(policy.name(), &workload, cluster, &outcomes)));
    }
    compare(&figures);
    Ok(())
}

fn describe(workload: &Workload, cluster: Cluster) -> anyhow::Result<()> {
    let (from, until) = workload.window();
    let counted: Vec<_> = (workload.jobs.iter())
        .filter(|job| (from..until).contains(&job.arrival))
        .collect();
    ensure!(
        !counted.is_empty(),
        "no job of the trace comes between its first tenth and its last"
    );
    let interactive = counted.iter().filter(|job| job.interactive).count();
    let [unknown, without, large] = workload.dropped;
    eprintln!(
        "{} jobs of {} users on {} GPUs, arrivals times {:.4}; {} of them counted; left out: {unknown} of unknown \
         runtime, {without} without GPUs, {large} too large",
        workload.jobs.len(),
        workload.users,
        cluster.gpus(),
        workload.stretch,
        counted.len(),
    );
    figure("replay.load", workload.load, "times", "");
    figure("replay.arrivals", workload.stretch, "times", "");
    figure("replay.window", (until - from) as f64 / 8.64e7, "days", "");
    figure("replay.jobs", workload.jobs.len() as f64, "", "");
    figure("replay.jobs.interactive", interactive as f64, "", "");
    figure("replay.jobs.batch", (counted.len() - interactive) as f64, "", "");
    figure("replay.dropped", (unknown + without + large) as f64, "", "");
    Ok(())
}

/// Carrel's figures over the others'.
fn compare(figures: &[(Policy, Figures)]) {
    let Some((_, own)) = figures.iter().find(|(policy, _)| *policy == Policy::Carrel) else {
        return;
    };
    for (policy, other) in figures.iter().filter(|(policy, _)| *policy != Policy::Carrel) {
        let budget = |text| if *policy == Policy::EasyNode { text } else { "" };
        let name = |what: &str| format!("replay.carrel_to_{}.{what}", policy.name());
        figure(
            &name("slowdown.mean"),
            own.slowdown / other.slowdown,
            "ratio",
            budget("<= 0.5"),
        );
        // Where nobody had to wait there is nothing to compare.
        if other.interactive_p95 > 0.0 {
            figure(
                &name("interactive.wait.p95"),
                own.interactive_p95 / other.interactive_p95,
                "ratio",
                budget("<= 0.1"),
            );
        }
        figure(
            &name("utilisation"),
            own.utilisation - other.utilisation,
            "points",
            budget(">= -2"),
        );
    }
}
