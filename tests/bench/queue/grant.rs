//! One GPU, with GPUs free, behind many jobs that ask for two whole nodes of which one is held: when is it granted, with
//! nothing else going on and in a storm of submits?

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use carrel_proto::v1::{ResourceRequest, SubmitJobRequest};
use tokio::task::JoinSet;

use super::Options;
use super::figures::Figures;
use super::stage::{self, Api, CLIENTS, GPUS, Stage, close, is_granted, job, small};

/// Who ask for a GPU at once in the storm: as many as that the GPUs that are free are never all held.
const ASKING: u64 = 4;
/// Time limit of who asks for a GPU: over long before the node that is held comes free.
const SHORT: Duration = Duration::from_mins(10);
/// Time limit of the two-node jobs.
const TWO_NODE_LIMIT: Duration = Duration::from_hours(10);

const HOW: &str = "from the call of OpenSession for one GPU to the answer, or the watched state, that says that it holds one";

/// Measures it.
pub fn run(options: &Options, figures: &mut Figures) -> anyhow::Result<()> {
    let (behind, grants) = (options.scaled(options.behind), options.scaled(options.grants));
    let stage = Stage::start(2)?;
    stage.hold_a_node()?;
    stage.submit(behind, CLIENTS, two_nodes)?;

    let mut api = stage.api()?;
    let mut times = Vec::new();
    for n in 0..grants {
        times.push(stage.runtime.block_on(grant(&mut api, &format!("quiet-{n}")))?);
    }
    figures.times(&format!("grant.behind{behind}"), &times, "<= 50", HOW);

    let mut times = Vec::new();
    for n in 0..(grants / 4).max(1) {
        times.push(by_command(&stage, &format!("command-{n}"))?);
    }
    figures.times(
        &format!("grant.behind{behind}.command"),
        &times,
        "<= 50",
        "from the start of `carrel alloc` to its line that says what is granted",
    );

    let (times, rate) = in_a_storm(&stage, grants)?;
    figures.times(&format!("grant.storm.behind{behind}"), &times, "<= 50", HOW);
    let how = "SubmitJob calls of 16 clients meanwhile, each after the answer to its client's last";
    figures.put("grant.storm.submits", rate, "1/s", "", how);
    Ok(())
}

/// A job that waits where one of two nodes is held.
pub fn two_nodes(number: u64) -> SubmitJobRequest {
    let resources = ResourceRequest {
        nodes: 2,
        gpus_per_node: GPUS,
        ..small()
    };
    job(number, resources, TWO_NODE_LIMIT)
}

/// Asks for a GPU and gives it back; how long it took until it was granted, milliseconds.
async fn grant(api: &mut Api, name: &str) -> anyhow::Result<f64> {
    let resources = ResourceRequest {
        gpus_per_node: 1,
        ..small()
    };
    let begun = Instant::now();
    let session = stage::open(api, name, resources, SHORT).await?;
    stage::watch(api, session.clone(), is_granted).await?;
    let taken = begun.elapsed();
    close(api, &session).await?;
    Ok(taken.as_secs_f64() * 1e3)
}

/// The same by `carrel alloc`.
fn by_command(stage: &Stage, name: &str) -> anyhow::Result<f64> {
    let alloc = [
        "alloc",
        "--no-shell",
        "--gpus",
        "1",
        "-c",
        "1",
        "--mem",
        "64M",
        "-t",
        "10",
        "--name",
        name,
    ];
    let mut command = stage.command(&alloc);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().context("carrel alloc")?;
    let stderr = child.stderr.take().context("it is piped")?;
    let (mut granted, mut said) = (None, String::new());
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        if line.contains("Granted job allocation") && granted.is_none() {
            granted = Some(begun.elapsed());
        }
        said += &line;
        said.push('\n');
    }
    let ended = child.wait()?;
    ensure!(ended.success(), "carrel alloc: {said}");
    let removed = stage.command(&["rm", "-f", name]).output()?;
    ensure!(
        removed.status.success(),
        "carrel rm: {}",
        String::from_utf8_lossy(&removed.stderr)
    );
    let granted = granted.with_context(|| format!("carrel alloc does not say what was granted: {said}"))?;
    Ok(granted.as_secs_f64() * 1e3)
}

/// So many grants while clients submit as fast as they are answered; and how many submits a second were answered.
fn in_a_storm(stage: &Stage, grants: u64) -> anyhow::Result<(Vec<f64>, f64)> {
    let over = Arc::new(AtomicBool::new(false));
    let submitted = Arc::new(AtomicU64::new(0));
    let mut storm = JoinSet::new();
    for client in 0..CLIENTS {
        let mut api = stage.api()?;
        let (over, submitted) = (Arc::clone(&over), Arc::clone(&submitted));
        let task = async move {
            for n in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                // Numbers of its own, beyond all others'.
                api.submit_job(two_nodes((client + 1) << 32 | n)).await?;
                submitted.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        };
        storm.spawn_on(task, stage.runtime.handle());
    }
    let begun = Instant::now();
    let mut asking = JoinSet::new();
    for asker in 0..ASKING {
        let mut api = stage.api()?;
        let task = async move {
            let mut times = Vec::new();
            for n in 0..grants.div_ceil(ASKING) {
                times.push(grant(&mut api, &format!("storm-{asker}-{n}")).await?);
            }
            anyhow::Ok(times)
        };
        asking.spawn_on(task, stage.runtime.handle());
    }
    stage.runtime.block_on(async {
        let mut times = Vec::new();
        while let Some(ended) = asking.join_next().await {
            times.extend(ended.context("who asks for a GPU broke")??);
        }
        let rate = submitted.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        while let Some(ended) = storm.join_next().await {
            ended.context("a client broke")??;
        }
        Ok((times, rate))
    })
}
