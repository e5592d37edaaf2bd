//! `batch`: jobs that do nothing, from the first submit to the last end; steps, from `carrel run` to its end; and the way of
//! what a job writes. Beside a real Slurm on the same machine, where there is one.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use carrel_proto::v1::{JobState, SubmitJobRequest};

use crate::queue::stage::{Api, CLIENTS, Stage, get, job, small};
use crate::queue::{interrupt, slurm};
use crate::report::{measured, quantile};

/// Nodes of the larger cluster.
const NODES: usize = 4;
/// Tasks of a step.
const TASKS: [u32; 3] = [1, 16, 256];
/// How long anything may take that is no figure.
const PATIENCE: Duration = Duration::from_mins(10);
/// Between two looks at what is not over.
const LOOK: Duration = Duration::from_millis(20);

/// What time it is, microseconds, in a shell: busybox's `date` knows no fractions of seconds.
const NOW: &str = "echo | ts %.s | tr -d '. '";

/// How much of it.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Jobs that do nothing, on one node and on four.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    jobs: u64,
    /// Steps of each kind.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// What one job writes, MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    output_mib: u64,
    /// Measures a real Slurm as well, and prints ratios: a directory with `slurm-peer.sh` and `measure.sh`.
    #[arg(long, value_name = "DIR")]
    slurm: Option<PathBuf>,
}

/// What compares to Slurm's.
#[derive(Default)]
struct Ours {
    /// Jobs a second on one node.
    jobs: f64,
    /// Median of a step's time by its tasks, milliseconds.
    steps: Vec<(u32, f64)>,
}

/// Runs all of it.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let peer = options.slurm.as_deref().map(slurm::Peer::find).transpose()?;
    interrupt::watch()?;
    interrupt::over(|| {
        let ours = measure(options)?;
        peer.as_ref().map_or(Ok(()), |peer| compare(options, peer, &ours))
    })
}

fn measure(options: &Options) -> anyhow::Result<Ours> {
    let mut ours = Ours::default();
    {
        let stage = Stage::start(1)?;
        ours.jobs = jobs(&stage, options.jobs, 1)?;
        ours.steps = steps(&stage, options.steps, 1)?;
        output(&stage, options.output_mib)?;
    }
    let stage = Stage::start(NODES)?;
    jobs(&stage, options.jobs, NODES)?;
    steps(&stage, options.steps, NODES)?;
    Ok(ours)
}

/// A job that runs this script.
fn script(number: u64, text: &str, nodes: usize) -> SubmitJobRequest {
    let mut resources = small();
    resources.nodes = nodes as u32;
    SubmitJobRequest {
        script: Some(format!("#!/bin/sh\n{text}\n")),
        ..job(number, resources, Duration::from_hours(1))
    }
}

/// Until a job is over; it has to end well.
async fn over(api: &mut Api, id: u64) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let job = get(api, id).await?.context("a job is gone")?;
        match job.state() {
            JobState::Completed => return Ok(()),
            JobState::Pending | JobState::Configuring | JobState::Running | JobState::Completing => {}
            other => anyhow::bail!("job {id} is {}: {}", other.as_str_name(), job.reason),
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "job {id} does not end: {}",
            job.reason
        );
        tokio::time::sleep(LOOK).await;
    }
}

/// Jobs a second, from the first submit to the last end.
fn jobs(stage: &Stage, count: u64, nodes: usize) -> anyhow::Result<f64> {
    let mut api = stage.api()?;
    // The image is unpacked before anything counts.
    let warm = stage
        .runtime
        .block_on(api.submit_job(script(stage.next(), "true", nodes)));
    stage
        .runtime
        .block_on(over(&mut api, warm.context("submitting")?.into_inner().id))?;
    let begun = Instant::now();
    stage.submit(count, CLIENTS, |number| script(number, "true", 1))?;
    let left = async {
        loop {
            let queued = api
                .list_queue(carrel_proto::v1::ListQueueRequest::default())
                .await?;
            let jobs = api.list_jobs(carrel_proto::v1::ListJobsRequest {
                all_users: true,
                ended: false,
            });
            if queued.into_inner().jobs.is_empty() && jobs.await?.into_inner().jobs.is_empty() {
                return anyhow::Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "the jobs do not end");
            tokio::time::sleep(LOOK).await;
        }
    };
    stage.runtime.block_on(left)?;
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    measured(
        &format!("batch.jobs.nodes{nodes}"),
        rate,
        "1/s",
        "",
        "jobs of /bin/true in containers of their own, from the first submit by 16 clients to the last release",
    );
    Ok(rate)
}

/// Milliseconds that a shell line takes, each time that it is run, in the first container of a job.
fn timed(stage: &Stage, nodes: usize, rounds: u64, line: &str) -> anyhow::Result<Vec<f64>> {
    let text = format!(
        "for i in $(seq {rounds}); do s=$({NOW}); {line} || exit 1; e=$({NOW}); echo $((e - s)); done"
    );
    let mut job = script(stage.next(), &text, nodes);
    job.script = Some(format!(
        "#!/bin/sh\n({text}) > /tmp/times; code=$?; cat /tmp/times; exit $code\n"
    ));
    let mut api = stage.api()?;
    let id = stage
        .runtime
        .block_on(api.submit_job(job))
        .context("submitting")?
        .into_inner()
        .id;
    stage.runtime.block_on(over(&mut api, id))?;
    let said = stage.command(&["logs", &id.to_string()]).output()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let times = text
        .lines()
        .map(|micros| micros.trim().parse::<f64>().map(|micros| micros / 1e3));
    times
        .collect::<Result<_, _>>()
        .with_context(|| format!("what the job has measured: {text}"))
}

/// Steps of `true`, by the number of their tasks.
fn steps(stage: &Stage, rounds: u64, nodes: usize) -> anyhow::Result<Vec<(u32, f64)>> {
    let mut medians = Vec::new();
    for tasks in TASKS.into_iter().filter(|tasks| *tasks as usize >= nodes) {
        let line = format!("carrel run -N {nodes} -n {tasks} -O --overlap true");
        let times = timed(stage, nodes, rounds, &line)?;
        let name = format!("batch.steps.nodes{nodes}.tasks{tasks}");
        let how = "`carrel run true` in a batch script, from its start to its end";
        measured(&format!("{name}.p50_ms"), quantile(&times, 0.5), "ms", "", how);
        measured(&format!("{name}.p99_ms"), quantile(&times, 0.99), "ms", "", how);
        medians.push((tasks, quantile(&times, 0.5)));
    }
    Ok(medians)
}

/// What one job writes, into its file and what its node keeps, and back by `carrel logs`.
fn output(stage: &Stage, mib: u64) -> anyhow::Result<()> {
    let mut api = stage.api()?;
    let line = "x".repeat(99);
    let text = format!(
        "s=$({NOW}); yes {line} | head -c {}; e=$({NOW}); echo; echo $((e - s))",
        mib << 20
    );
    let id = stage
        .runtime
        .block_on(api.submit_job(script(stage.next(), &text, 1)))
        .context("submitting")?
        .into_inner()
        .id;
    stage.runtime.block_on(over(&mut api, id))?;
    let begun = Instant::now();
    let mut child = stage
        .command(&["logs", &id.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut kept = Vec::new();
    child.stdout.take().context("a pipe")?.read_to_end(&mut kept)?;
    let read = begun.elapsed().as_secs_f64();
    ensure!(child.wait()?.success(), "`carrel logs` failed");
    let last = kept.rsplit(|byte| *byte == b'\n').find(|line| !line.is_empty());
    let micros: f64 = last
        .and_then(|line| std::str::from_utf8(line).ok()?.trim().parse().ok())
        .context("the job's own time")?;
    measured(
        "batch.output.written",
        (mib << 20) as f64 / 1e6 / (micros / 1e6),
        "MB/s",
        "",
        "what a job writes to its standard output, in its own time: into its file, and into what its node keeps",
    );
    measured(
        "batch.output.read",
        kept.len() as f64 / 1e6 / read,
        "MB/s",
        "",
        "`carrel logs` of what is kept, from its start to its end",
    );
    Ok(())
}

/// The same of Slurm, and ours over its.
fn compare(options: &Options, peer: &slurm::Peer, ours: &Ours) -> anyhow::Result<()> {
    peer.during(|base| {
        let count = options.jobs;
        let text = format!(
            "s=$(date +%s%N); for i in $(seq {count}); do sbatch -Q -o /dev/null -w n0001 -n1 --mem=1 --wrap true > /dev/null & \
             [ $((i % 16)) = 0 ] && wait; done; wait; while [ -n \"$(squeue -h -t PD,R,CG,CF -o %i)\" ]; do sleep 0.02; done; \
             e=$(date +%s%N); echo $((e - s))"
        );
        let nanos = shell(base, &text)?;
        let theirs = count as f64 / (nanos.first().copied().context("no time")? / 1e9);
        measured("batch.slurm.jobs.nodes1", theirs, "1/s", "", "the same jobs by sbatch, processes without containers");
        measured("batch.ratio.jobs.nodes1", ours.jobs / theirs, "x", "", "ours over Slurm's");
        for (tasks, our_median) in &ours.steps {
            let rounds = options.steps;
            let text = format!(
                "salloc -Q -w n0001 -n1 --mem=1 bash -c 'for i in $(seq {rounds}); do s=$(date +%s%N); \
                 srun --overlap -O -N1 -n {tasks} true || exit 1; e=$(date +%s%N); echo $((e - s)); done'"
            );
            let times: Vec<f64> = shell(base, &text)?.iter().map(|nanos| nanos / 1e6).collect();
            let median = quantile(&times, 0.5);
            let name = format!("steps.nodes1.tasks{tasks}");
            measured(&format!("batch.slurm.{name}.p50_ms"), median, "ms", "", "`srun true` in an salloc");
            measured(&format!("batch.ratio.{name}"), our_median / median, "x", "", "ours over Slurm's");
        }
        Ok(())
    })
}

/// Numbers that a line for bash prints, with a Slurm's environment.
fn shell(base: &Path, line: &str) -> anyhow::Result<Vec<f64>> {
    let env = base.join("env.sh");
    let said = Command::new("bash")
        .arg("-c")
        .arg(format!(". {}; {line}", env.display()))
        .current_dir(base)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(said.status.success(), "Slurm: {line}: {}", said.status);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let numbers = text.lines().map(|line| line.trim().parse::<f64>());
    numbers
        .collect::<Result<_, _>>()
        .with_context(|| format!("Slurm said: {text}"))
}
