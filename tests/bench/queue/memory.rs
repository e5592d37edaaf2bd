//! The broker's resident memory: with no job, and with many that wait.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use super::Options;
use super::figures::Figures;
use super::stage::{CLIENTS, Mixed, Stage};

/// After the last submission: what is under way ends.
const SETTLE: Duration = Duration::from_secs(3);
const HOW: &str = "VmRSS of the broker, three seconds after the last submission";

/// Measures it.
pub fn run(options: &Options, figures: &mut Figures) -> anyhow::Result<()> {
    let stage = Stage::start(1)?;
    stage.hold_a_node()?;
    thread::sleep(SETTLE);
    let idle = resident(stage.cluster.broker.pid())?;
    figures.put(
        "memory.pending0.mib",
        idle / f64::from(1 << 20),
        "MiB",
        "<= 64",
        HOW,
    );
    let mut mixed = Mixed::new(options.seed);
    let mut there = 0;
    for jobs in options.memory.iter().map(|jobs| options.scaled(*jobs)) {
        let taken = stage.submit(jobs - there, CLIENTS, |number| mixed.job(number))?;
        let rate = (jobs - there) as f64 / taken.as_secs_f64();
        eprintln!("  {jobs} jobs wait, submitted at {rate:.0} per second");
        there = jobs;
        thread::sleep(SETTLE);
        let bytes = resident(stage.cluster.broker.pid())?;
        let name = format!("memory.pending{jobs}");
        figures.put(&format!("{name}.mib"), bytes / f64::from(1 << 20), "MiB", "", HOW);
        figures.put(
            &format!("{name}.bytes_per_job"),
            (bytes - idle) / jobs as f64,
            "bytes",
            "<= 2048",
            "what the broker has grown by since no job waited, over the jobs",
        );
    }
    Ok(())
}

/// A process's resident memory, bytes.
fn resident(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.with_context(|| format!("{path} has no VmRSS"))? * 1024.0)
}
