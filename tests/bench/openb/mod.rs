//! `openb`: how much of a cluster stays unallocated when GPUs are asked for in whole and in parts.
//!
//! Nodes and pods are those of a trace in the format of Alibaba's gpu-v2023 ("openb"). The list of pods is
//! drawn from, with a seed, until 130 % of the cluster's GPUs are asked for, and what is drawn is placed in that
//! order, none ever ends, and what does not fit is refused. Every policy gets the same pods in the same order:
//! Carrel's own, and those that it is held against.

mod carrel;
mod cluster;
mod fgd;
mod peers;
mod trace;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};
use rand::rngs::SmallRng;
use rand::{SeedableRng, seq::SliceRandom};

use crate::report::figure;
use cluster::{Cluster, Policy};
use trace::Trace;

/// Demand, in percent of the cluster's GPUs, at which what is unallocated is looked at. The last is the end.
const MARKS: [u64; 6] = [80, 90, 100, 110, 120, 130];
/// Orders of arrival: a mean over fewer says little.
const SEEDS: u64 = 10;
/// Carrel's name in the figures.
const CARREL: &str = "carrel";

/// Which trace.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// List of nodes: cpu_milli, memory_mib, gpu, model
    #[arg(long, value_name = "CSV")]
    nodes: PathBuf,
    /// List of pods, gzipped or not: cpu_milli, memory_mib, num_gpu, and where it has them gpu_milli and gpu_spec
    #[arg(long, value_name = "CSV[.gz]")]
    pods: PathBuf,
    /// First of ten seeds, each another draw
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Unallocated GPUs at each of [`MARKS`], of each policy.
type Unallocated = Vec<(&'static str, [f64; MARKS.len()])>;

/// Runs every policy with every seed.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let trace = Trace::read(&options.nodes, &options.pods)?;
    eprintln!(
        "{} nodes with {} GPUs, {} pods of {} kinds",
        trace.nodes.len(),
        trace.gpus(),
        trace.pods.len(),
        trace.classes.len()
    );
    let runs = every_seed(&trace, options.seed)?;
    let names: Vec<&str> = runs[0].iter().map(|(name, _)| *name).collect();
    for (at, mark) in MARKS.iter().enumerate() {
        let means: Vec<f64> = (0..names.len())
            .map(|policy| mean(runs.iter().map(|run| run[policy].1[at])))
            .collect();
        for (policy, name) in names.iter().enumerate() {
            let square = |run: &Unallocated| (run[policy].1[at] - means[policy]).powi(2);
            let deviation = mean(runs.iter().map(square)).sqrt();
            figure(&format!("openb.{mark}.{name}"), means[policy], "GPUs", "");
            figure(&format!("openb.{mark}.{name}.deviation"), deviation, "GPUs", "");
        }
        for (policy, name) in names.iter().enumerate().filter(|(_, name)| **name != CARREL) {
            let budget = match (mark, *name) {
                (130, peers::BEST_FIT) => "<= 0.7",
                (130, fgd::FGD) => "<= 1",
                _ => "",
            };
            let ratio = means[0] / means[policy];
            figure(
                &format!("openb.{mark}.{CARREL}_to_{name}"),
                ratio,
                "ratio",
                budget,
            );
        }
    }
    Ok(())
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// The runs with seeds from the first on, as many at once as there are processors.
fn every_seed(trace: &Trace, first: u64) -> anyhow::Result<Vec<Unallocated>> {
    let next = AtomicU64::new(0);
    let work = || -> anyhow::Result<Vec<(u64, Unallocated)>> {
        let mut runs = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return Ok(runs);
            }
            runs.push((seed, one_seed(trace, first.wrapping_add(seed))?));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let results = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect::<Vec<_>>()
    });
    let mut runs = Vec::new();
    for result in results {
        runs.extend(result.map_err(|_| anyhow::anyhow!("a run panicked"))??);
    }
    runs.sort_by_key(|(seed, _)| *seed);
    Ok(runs.into_iter().map(|(_, run)| run).collect())
}

/// Carrel's policy first, then the others.
fn one_seed(trace: &Trace, seed: u64) -> anyhow::Result<Unallocated> {
    let arrivals = arrivals(trace, &mut SmallRng::seed_from_u64(seed));
    let policies: [(&'static str, Box<dyn Policy>); 5] = [
        (CARREL, Box::new(carrel::Carrel::new(trace)?)),
        (peers::FIRST_FIT, Box::new(peers::FirstFit)),
        (peers::BEST_FIT, Box::new(peers::BestFit::new(trace))),
        (peers::RANDOM, Box::new(peers::Random::new(seed))),
        (fgd::FGD, Box::new(fgd::Fgd::new(trace))),
    ];
    policies
        .into_iter()
        .map(|(name, mut policy)| {
            let unallocated = place_all(trace, &arrivals, policy.as_mut())
                .with_context(|| format!("{name}, seed {seed}"))?;
            Ok((name, unallocated))
        })
        .collect()
}

/// Kinds of pods in the order of their arrival: the whole list in random order, again and again, until enough
/// GPUs are asked for.
fn arrivals(trace: &Trace, random: &mut SmallRng) -> Vec<usize> {
    let (mut arrivals, mut asked) = (Vec::new(), 0);
    let enough = trace.milli() * MARKS[MARKS.len() - 1];
    let mut list = trace.pods.clone();
    loop {
        list.shuffle(random);
        for class in &list {
            arrivals.push(*class);
            asked += trace.classes[*class].milli();
            if asked * 100 >= enough {
                return arrivals;
            }
        }
    }
}

fn place_all(
    trace: &Trace,
    arrivals: &[usize],
    policy: &mut dyn Policy,
) -> anyhow::Result<[f64; MARKS.len()]> {
    let mut cluster = Cluster::new(trace);
    let mut unallocated = [0.0; MARKS.len()];
    let (mut asked, mut mark) = (0, 0);
    for class in arrivals {
        let pod = &trace.classes[*class];
        match policy.choose(&cluster, *class, pod)? {
            Some(place) => {
                cluster.take(pod, &place)?;
                policy.taken(&cluster, &place)?;
            }
            // Going on past a refusal is no excuse for one.
            None => ensure!(
                !cluster.nodes.iter().any(|node| node.fits(pod)),
                "refused a pod that fits: {pod:?}"
            ),
        }
        asked += pod.milli();
        while mark < MARKS.len() && asked * 100 >= trace.milli() * MARKS[mark] {
            unallocated[mark] = cluster.free_milli() as f64 / 1000.0;
            mark += 1;
        }
    }
    Ok(unallocated)
}
