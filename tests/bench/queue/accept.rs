//! Durable accepts a second: from the first submission to the last answer, each of which comes after the job is on disk.
//! All GPUs are held, so that nothing is measured but accepting.

use std::fs::File;
use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::Options;
use super::figures::Figures;
use super::stage::{CLIENTS, Stage, job, small};

/// Writes that tell how fast the disk is.
const SYNCS: usize = 100;
/// What they write: about what a job takes in the store's log.
const SYNC_BYTES: usize = 4096;

/// Measures it.
pub fn run(options: &Options, figures: &mut Figures) -> anyhow::Result<()> {
    let stage = Stage::start(1)?;
    figures.times(
        "accept.disk_sync",
        &syncs(&stage).context("writing to the disk")?,
        "",
        "a write of 4 KiB to the broker's disk, and fdatasync",
    );
    stage.hold_a_node()?;
    let jobs = options.scaled(options.commands);
    for clients in [1, CLIENTS] {
        let seconds = commands(&stage, jobs, clients)?.as_secs_f64();
        figures.put(
            &format!("accept.command.c{clients}"),
            jobs as f64 / seconds,
            "1/s",
            "",
            "`carrel submit` processes, from the start of the first to the end of the last",
        );
    }
    let many = options.scaled(options.accepts);
    for (clients, jobs) in [(1, many / 8), (CLIENTS, many)] {
        let jobs = jobs.max(1);
        let one_gpu = |number| {
            let mut resources = small();
            resources.gpus_per_node = 1;
            job(number, resources, Duration::from_mins(10))
        };
        let seconds = stage.submit(jobs, clients, one_gpu)?.as_secs_f64();
        figures.put(
            &format!("accept.api.c{clients}"),
            jobs as f64 / seconds,
            "1/s",
            "",
            "SubmitJob calls, each after the answer to its client's last, from the first call to the last answer",
        );
    }
    Ok(())
}

/// So many `carrel submit`, by so many clients that each wait for the end of one before they start the next.
fn commands(stage: &Stage, jobs: u64, clients: u64) -> anyhow::Result<Duration> {
    let script = stage.cluster.root().join("noop.sh");
    std::fs::write(&script, "#!/bin/sh\n:\n")?;
    let script = script.to_str().context("a path in UTF-8")?;
    let args = [
        "submit",
        "-o",
        "/dev/null",
        "--mem",
        "64M",
        "--gpus",
        "1",
        "-t",
        "10",
        script,
    ];
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let client = || {
        while next.fetch_add(1, Ordering::Relaxed) < jobs {
            let mut command = stage.command(&args);
            let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
            ensure!(
                output.status.success(),
                "carrel submit: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        anyhow::Ok(())
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a client broke"))??;
        }
        Ok(begun.elapsed())
    })
}

/// What the disk of the broker's store takes for a write, milliseconds.
fn syncs(stage: &Stage) -> anyhow::Result<Vec<f64>> {
    let path = stage.cluster.root().join("synced");
    let mut file = File::create(&path)?;
    let mut times = Vec::new();
    for _ in 0..SYNCS {
        let begun = Instant::now();
        file.write_all(&[0x55; SYNC_BYTES])?;
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    std::fs::remove_file(path)?;
    Ok(times)
}
