//! What became of the jobs under a policy, in figures.

use super::workload::{Cluster, Job, Workload};
use crate::report::{figure, quantile};

/// Runtimes below this count as this where a slowdown is worked out, milliseconds, as is usual (Feitelson et al.,
/// JSSPP 1997): nobody minds a second after a second.
const BOUND_MS: u64 = 10_000;

/// What became of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Its last run, the whole one, ended, milliseconds after the first arrival.
    pub finished: u64,
    /// It was ended before that so often for others' sake.
    pub preemptions: u32,
    /// What it held in those runs, GPU milliseconds.
    pub lost: u64,
}

impl Outcome {
    /// Time that it did not make use of since it came, milliseconds.
    fn waited(&self, job: &Job) -> u64 {
        (self.finished - job.arrival).saturating_sub(job.runtime)
    }

    fn slowdown(&self, job: &Job) -> f64 {
        let bounded = job.runtime.max(BOUND_MS) as f64;
        ((self.finished - job.arrival) as f64 / bounded).max(1.0)
    }
}

/// The figures of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Mean bounded slowdown.
    pub slowdown: f64,
    /// 95 % of interactive jobs waited no longer, seconds.
    pub interactive_p95: f64,
    /// GPU time of whole runs over what the cluster has in that time, percent.
    pub utilisation: f64,
}

/// Prints what became of the jobs that came in the window.
pub fn report(policy: &str, workload: &Workload, cluster: Cluster, outcomes: &[Outcome]) -> Figures {
    let (from, until) = workload.window();
    let all: Vec<(&Job, &Outcome)> = workload.jobs.iter().zip(outcomes).collect();
    let counted: Vec<(&Job, &Outcome)> = (all.iter().copied())
        .filter(|(job, _)| (from..until).contains(&job.arrival))
        .collect();
    let print =
        |name: &str, value: f64, unit: &str| figure(&format!("replay.{policy}.{name}"), value, unit, "");

    let slowdowns: Vec<f64> = counted
        .iter()
        .map(|(job, outcome)| outcome.slowdown(job))
        .collect();
    let slowdown = mean(&slowdowns);
    print("slowdown.mean", slowdown, "times");
    print("slowdown.p50", quantile(&slowdowns, 0.5), "times");
    let mut interactive_p95 = f64::NAN;
    for (kind, interactive) in [("interactive", true), ("batch", false)] {
        let own = counted.iter().filter(|(job, _)| job.interactive == interactive);
        let (waits, slowdowns): (Vec<f64>, Vec<f64>) = own
            .map(|(job, outcome)| (outcome.waited(job) as f64 / 1e3, outcome.slowdown(job)))
            .unzip();
        if waits.is_empty() {
            continue;
        }
        for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)] {
            print(&format!("{kind}.wait.{name}"), quantile(&waits, share), "s");
        }
        print(&format!("{kind}.wait.mean"), mean(&waits), "s");
        print(&format!("{kind}.slowdown.mean"), mean(&slowdowns), "times");
        if interactive {
            interactive_p95 = quantile(&waits, 0.95);
        }
    }
    let used: f64 = all
        .iter()
        .map(|(job, outcome)| {
            let begun = (outcome.finished - job.runtime).max(from);
            outcome.finished.min(until).saturating_sub(begun) as f64 * job.gpus() as f64
        })
        .sum();
    let utilisation = 100.0 * used / ((until - from) as f64 * cluster.gpus() as f64);
    print("utilisation", utilisation, "%");
    let preemptions: u32 = outcomes.iter().map(|outcome| outcome.preemptions).sum();
    print("preemptions", f64::from(preemptions), "");
    let lost: u64 = outcomes.iter().map(|outcome| outcome.lost).sum();
    print("lost", lost as f64 / 3.6e6, "GPU-hours");
    Figures {
        slowdown,
        interactive_p95,
        utilisation,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
