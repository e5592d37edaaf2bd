//! Carrel's own queue: the broker's state machine, told in virtual time what users and nodes would tell it.
//!
//! Nodes start what they are given at once, and report that a job's processes are gone when its time in the trace is
//! over; what the broker wants ended goes after the grace. Nothing else happens to them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use carrel_core::broker::{Broker, Change, Input, Settings};
use carrel_core::model::ids::{Generation, JobId, NodeName, QosName};
use carrel_core::model::job::{Job as Record, JobState, Phase, Placed};
use carrel_core::model::node::EndCause;
use carrel_core::model::qos::{MAX_PRIORITY, Qos};
use carrel_core::model::resources::ResourceRequest;
use carrel_core::model::time::Timestamp;
use carrel_core::model::topology::Link;

use super::outcome::Outcome;
use super::workload::{Cluster, Job, Workload};
use crate::nodes::{self, Host, Nodes};
use crate::report::{figure, quantile};

/// When the first job comes: any time will do that is not the epoch.
const BEGIN: Timestamp = Timestamp(1_500_000_000_000);
/// Nodes are never out of reach, and nobody asks for more time.
const EVER: Duration = Duration::from_hours(24 * 365 * 100);
/// What a GPU comes with.
const CPUS: u32 = 16;
const MEMORY: u64 = 128 << 30;

struct Replay<'a> {
    broker: Broker,
    jobs: &'a [Job],
    nodes: Nodes,
    now: Timestamp,
    /// When nodes have something to say of a job's allocation.
    ends: BinaryHeap<Reverse<(Timestamp, JobId, Generation)>>,
    /// Which job of the trace each of the broker's is, and the run in which it was last seen.
    known: BTreeMap<JobId, (usize, Option<Generation>)>,
    outcomes: Vec<Outcome>,
    left: usize,
    /// How long each input took, milliseconds.
    took: Vec<f64>,
}

/// Runs all jobs. `untold`: none is said to be interactive.
pub fn run(cluster: Cluster, workload: &Workload, untold: bool) -> anyhow::Result<Vec<Outcome>> {
    let mut replay = Replay::new(cluster, workload)?;
    let mut next = 0;
    while replay.left > 0 {
        let arrival = workload
            .jobs
            .get(next)
            .map(|job| BEGIN.after(Duration::from_millis(job.arrival)));
        let end = replay.ends.peek().map(|Reverse((at, ..))| *at);
        let timer = replay.broker.next_deadline();
        let due = arrival.into_iter().chain(end).chain(timer).min();
        let due = due.with_context(|| format!("{} jobs wait for nothing", replay.left))?;
        replay.now = replay.now.max(due);
        if end == Some(due) {
            replay.end()?;
        } else if arrival == Some(due) {
            replay.submit(next, untold)?;
            next += 1;
        } else {
            replay.tell(Input::Tick)?;
            ensure!(
                replay.broker.next_deadline().is_none_or(|at| at > replay.now),
                "the broker's timer does not move on"
            );
        }
    }
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        figure(
            &format!("replay.carrel.input.{name}"),
            quantile(&replay.took, share),
            "ms",
            "",
        );
    }
    Ok(replay.outcomes)
}

impl<'a> Replay<'a> {
    fn new(cluster: Cluster, workload: &'a Workload) -> anyhow::Result<Self> {
        let settings = Settings {
            max_time: EVER,
            lease: EVER,
            contact_timeout: EVER,
            ..Settings::default()
        };
        let records = vec![Change::PutQos(Arc::new(Qos {
            priority: MAX_PRIORITY,
            ..Qos::new(interactive()?)
        }))];
        // Traces say nothing of links: all GPUs of a node are equally near to each other.
        let host = Host {
            gpus: cluster.gpus_per_node,
            cpus: cluster.gpus_per_node * CPUS,
            memory_bytes: u64::from(cluster.gpus_per_node) * MEMORY,
            link: Link::Sys,
        };
        let nodes = (cluster.nodes, host);
        let (broker, nodes) = nodes::broker(settings, nodes, workload.users, records, BEGIN)?;
        Ok(Self {
            broker,
            nodes,
            jobs: &workload.jobs,
            now: BEGIN,
            ends: BinaryHeap::new(),
            known: BTreeMap::new(),
            outcomes: vec![Outcome::default(); workload.jobs.len()],
            left: workload.jobs.len(),
            took: Vec::new(),
        })
    }

    fn tell(&mut self, input: Input) -> anyhow::Result<()> {
        let begun = Instant::now();
        let output = nodes::tell(&mut self.broker, self.now, input)?;
        self.took.push(begun.elapsed().as_secs_f64() * 1e3);
        for change in output.changes {
            if let Change::PutJob(job) = change {
                self.follow(&job)?;
            }
        }
        Ok(())
    }

    fn submit(&mut self, number: usize, untold: bool) -> anyhow::Result<()> {
        let job = &self.jobs[number];
        let request = ResourceRequest {
            nodes: job.nodes,
            gpus_per_node: job.gpus_per_node,
            cpus_per_node: job.gpus_per_node * CPUS,
            memory_bytes_per_node: u64::from(job.gpus_per_node) * MEMORY,
            ..ResourceRequest::default()
        };
        let (caller, mut open) = nodes::wish(job.user, &format!("j{number}"), request)?;
        if let Some(spec) = &mut open.spec {
            spec.time_limit = Duration::from_millis(job.limit);
            spec.terms.qos = (job.interactive && !untold).then(interactive).transpose()?;
        }
        let id = JobId(self.broker.state().cluster.next_job);
        self.known.insert(id, (number, None));
        self.tell(Input::OpenSession(caller, open))
    }

    /// Takes note of what has become of a job.
    fn follow(&mut self, job: &Record) -> anyhow::Result<()> {
        let Some((number, seen)) = self.known.get_mut(&job.id) else {
            bail!("job {} is not of the trace", job.id);
        };
        let wanted = &self.jobs[*number];
        let outcome = &mut self.outcomes[*number];
        match &job.phase {
            Phase::Pending => {}
            Phase::Placed(placed) if placed.ending.is_none() => {
                if *seen != Some(placed.generation) {
                    *seen = Some(placed.generation);
                    let over = self.now.after(Duration::from_millis(wanted.runtime));
                    self.ends.push(Reverse((over, job.id, placed.generation)));
                }
            }
            Phase::Placed(placed) => {
                // The broker wants it gone; it is told of once, when the last of it is.
                if *seen == Some(placed.generation) && !is_whole(placed, wanted, self.now) {
                    *seen = None;
                    outcome.preemptions += 1;
                    outcome.lost += self.now.since(placed.started).as_millis() as u64
                        * placed.allocation.gpu_milli()
                        / 1_000;
                    let gone = self.now.after(self.broker.state().settings.grace);
                    self.ends.push(Reverse((gone, job.id, placed.generation)));
                }
            }
            Phase::Ended { ending, .. } => {
                ensure!(
                    ending.state == JobState::Completed,
                    "job {} has ended: {}",
                    job.id,
                    ending.reason
                );
                outcome.finished = self.now.since(BEGIN).as_millis() as u64;
                self.left -= 1;
            }
        }
        Ok(())
    }

    /// The nodes of a job say that it is gone.
    fn end(&mut self) -> anyhow::Result<()> {
        let Some(Reverse((_, id, generation))) = self.ends.pop() else {
            return Ok(());
        };
        let job = self.broker.state().jobs.get(&id).context("no such job")?;
        // One that was ended before its time has left another end behind.
        let Some(placed) = job.placed().filter(|placed| placed.generation == generation) else {
            return Ok(());
        };
        let cause = if placed.ending.is_some() {
            EndCause::Tombstone
        } else {
            EndCause::Exited
        };
        let nodes: Vec<NodeName> = placed
            .allocation
            .nodes
            .iter()
            .map(|part| part.node.clone())
            .collect();
        for node in &nodes {
            let report = self.nodes.report(self.broker.state(), node, Some((id, cause)))?;
            self.tell(report)?;
        }
        Ok(())
    }
}

/// It ends because all of it was done.
fn is_whole(placed: &Placed, job: &Job, now: Timestamp) -> bool {
    now >= placed.started.after(Duration::from_millis(job.runtime))
}

/// The QOS of jobs in front of which somebody sits.
fn interactive() -> anyhow::Result<QosName> {
    Ok("interactive".parse()?)
}
