//! From the broker's start to its first answers, with many jobs in its store, after a `kill -9`.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use carrel_proto::v1::{GetClusterRequest, GetSessionRequest, JobState, ListQueueRequest};

use super::Options;
use super::figures::Figures;
use super::stage::{CLIENTS, Mixed, Stage};
use crate::report::quantile;

/// Between two attempts to reach the broker.
const RETRY: Duration = Duration::from_millis(1);
/// How long a restart may take at all.
const PATIENCE: Duration = Duration::from_mins(2);

/// Measures it; how much was lost.
pub fn run(options: &Options, figures: &mut Figures) -> anyhow::Result<usize> {
    let jobs = options.scaled(options.restart);
    let mut stage = Stage::start(1)?;
    stage.hold_a_node()?;
    let mut mixed = Mixed::new(options.seed);
    stage.submit(jobs, CLIENTS, |number| mixed.job(number))?;
    let (mut serving, mut accepting, mut lost) = (Vec::new(), Vec::new(), 0);
    let mut wanted = jobs;
    for _ in 0..options.kills {
        stage.cluster.broker.kill9();
        let begun = Instant::now();
        let answers = first_answers(&mut stage, begun, &mut mixed)?;
        serving.push(answers.0);
        accepting.push(answers.1);
        wanted += 1;
        lost += missing(&stage, wanted)?;
    }
    let name = format!("restart.jobs{jobs}");
    let how = "from the start of the broker's process, by way of its sandbox, to the answer to a first GetCluster; median";
    figures.put(
        &format!("{name}.ms"),
        quantile(&serving, 0.5),
        "ms",
        "<= 500",
        how,
    );
    figures.put(
        &format!("{name}.max_ms"),
        quantile(&serving, 1.0),
        "ms",
        "<= 500",
        "the same; the longest",
    );
    let how = "from the start of the broker's process to the answer to a first SubmitJob; median";
    figures.put(
        &format!("{name}.accept_ms"),
        quantile(&accepting, 0.5),
        "ms",
        "",
        how,
    );
    let how = "jobs that waited before and are not there any more, and the session that ran";
    figures.put(&format!("{name}.lost"), lost as f64, "count", "0", how);
    Ok(lost)
}

/// Starts the broker again; when it answers a read, and when a submission, milliseconds.
fn first_answers(stage: &mut Stage, begun: Instant, mixed: &mut Mixed) -> anyhow::Result<(f64, f64)> {
    let milliseconds = |begun: Instant| begun.elapsed().as_secs_f64() * 1e3;
    let job = mixed.job(stage.next());
    let socket = stage.cluster.root().join("broker/broker.sock");
    let runtime = stage.runtime.handle().clone();
    let broker = &mut stage.cluster.broker;
    std::thread::scope(|scope| {
        let asks = scope.spawn(move || {
            runtime.block_on(async {
                let mut why = None;
                while begun.elapsed() < PATIENCE {
                    let Ok(mut api) = super::stage::connect(&socket).await else {
                        tokio::time::sleep(RETRY).await;
                        continue;
                    };
                    if let Err(status) = api.get_cluster(GetClusterRequest::default()).await {
                        why = Some(status);
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                    let serving = milliseconds(begun);
                    api.submit_job(job).await.context("submitting")?;
                    return Ok((serving, milliseconds(begun)));
                }
                anyhow::bail!("the broker does not answer: {why:?}")
            })
        });
        broker.restart();
        asks.join().map_err(|_| anyhow::anyhow!("who asks broke"))?
    })
}

/// How many jobs are not there that should, and whether the session that ran does.
fn missing(stage: &Stage, wanted: u64) -> anyhow::Result<usize> {
    let mut api = stage.api()?.max_decoding_message_size(256 << 20);
    let queue = stage
        .runtime
        .block_on(api.list_queue(ListQueueRequest::default()))?
        .into_inner();
    let there = queue.jobs.len() as u64 + queue.left_out;
    ensure!(there <= wanted, "{there} jobs wait, and {wanted} were submitted");
    let name = "holder".to_owned();
    let held = stage
        .runtime
        .block_on(api.get_session(GetSessionRequest { name }));
    let runs = held.is_ok_and(|session| {
        session
            .into_inner()
            .job
            .is_some_and(|job| job.state() == JobState::Running)
    });
    Ok((wanted - there) as usize + usize::from(!runs))
}
