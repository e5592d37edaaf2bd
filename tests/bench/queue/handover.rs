//! From a GPU that comes free to the next job's container: both ends are what the node's agent says, in its log, by one
//! clock. It comes free when the agent has verified that nothing of the last job is left; what follows is the report to
//! the broker, the broker's pass and commit, and its answer, until the agent has taken the next job in.

use anyhow::Context;
use carrel_proto::v1::GetJobRequest;

use super::Options;
use super::figures::Figures;
use super::log::{Follower, TimeOfDay, What};
use super::stage::{CLIENTS, GPUS, Mixed, Stage, job, small};

/// Measures it without waiting jobs, but for the one that is next, and with many.
pub fn run(options: &Options, figures: &mut Figures) -> anyhow::Result<()> {
    let rounds = options.scaled(options.handovers);
    for pending in [0, options.scaled(options.pending)] {
        let stage = Stage::start(1)?;
        let times = measure(&stage, pending, rounds, options.seed)?;
        let (free, cancelled): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
        figures.times(
            &format!("handover.pending{pending}"),
            &free,
            "<= 20",
            "from the agent's word that nothing is left of a job to its asking for the container of the next, in its log",
        );
        figures.times(
            &format!("handover.pending{pending}.from_cancel"),
            &cancelled,
            "",
            "from the call of CancelJob, over the end of the job's processes and container, to the same",
        );
    }
    Ok(())
}

/// Milliseconds, for each round: from free to asked for, and from the cancel to it.
fn measure(stage: &Stage, pending: u64, rounds: u64, seed: u64) -> anyhow::Result<Vec<(f64, f64)>> {
    let mut api = stage.api()?;
    let log = stage.cluster.root().join("logs/n0.log");
    let mut log = Follower::new(&log)?;
    let one_gpu = |number| {
        let mut resources = small();
        resources.gpus_per_node = 1;
        job(number, resources, std::time::Duration::from_hours(24))
    };
    let mut running = Vec::new();
    for _ in 0..GPUS {
        let submitted = stage.runtime.block_on(api.submit_job(one_gpu(stage.next())));
        submitted.context("submitting")?;
        running.push(log.next("a job is ready", |event| event.what == What::Ready)?.job);
    }
    let mut mixed = Mixed::new(seed);
    let taken = stage.submit(pending, CLIENTS, |number| mixed.job(number))?;
    if pending > 0 {
        eprintln!("  {pending} jobs wait, submitted in {:.1} s", taken.as_secs_f64());
    }
    let mut times = Vec::new();
    for _ in 0..rounds {
        if pending == 0 {
            let submitted = stage.runtime.block_on(api.submit_job(one_gpu(stage.next())));
            submitted.context("submitting")?;
        }
        let id = running.remove(0);
        let cancelled = TimeOfDay::now();
        stage
            .runtime
            .block_on(api.cancel_job(GetJobRequest {
                id,
                ..GetJobRequest::default()
            }))
            .context("cancelling")?;
        let free = log.next("the cancelled job is released", |event| {
            event.what == What::Released && event.job == id
        })?;
        let asked = log.next("the next job is starting", |event| event.what == What::Starting)?;
        times.push((asked.at.since(free.at), asked.at.since(cancelled)));
        let ready = |event: &super::log::Event| event.what == What::Ready && event.job == asked.job;
        running.push(log.next("the next job is ready", ready)?.job);
    }
    Ok(times)
}
