//! What a node is to be.

use std::time::Duration;

use super::environment;
use super::state::State;
use crate::model::batch::{
    Batch, BatchRun, DEFAULT_ARRAY_OUTPUT, DEFAULT_OUTPUT, Output, OutputOf, file_name,
};
use crate::model::gang_network::Reach;
use crate::model::ids::{JobKey, NodeName};
use crate::model::job::{Job, JobKind, Placed};
use crate::model::node::{Desired, DesiredJob, Peer, Tombstone};

/// Everything that a node is to be; none for one that has not been heard of since the start.
pub(super) fn desired(state: &State, node: &NodeName) -> Option<Desired> {
    let link = state.links.get(node)?;
    let observed = link.observed.as_ref()?;
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let grace_ms = millis(state.settings.grace);
    let mut jobs = Vec::new();
    let mut tombstones = Vec::new();
    for id in held_on(state, node) {
        let Some(job) = state.jobs.get(&id) else { continue };
        let Some(placed) = job.placed() else { continue };
        let key = JobKey {
            job: id,
            generation: placed.generation,
        };
        match (rank_on(placed, node), &placed.ending) {
            (Some(rank), None) => jobs.push(desired_job(state, job, placed, rank)),
            (Some(_), Some(ending)) => tombstones.push(Tombstone {
                key,
                grace_ms: millis(state.grace_of(job, ending)),
            }),
            (None, _) => {}
        }
    }
    // What the node still has of allocations that we know to be over, or that an operator wants ended.
    for stranger in state.strangers(node) {
        let unwanted =
            state.tombstones.contains(&(node.clone(), stranger.key)) && stranger.cluster == state.cluster.id;
        if unwanted || state.is_over(stranger) {
            tombstones.push(Tombstone {
                key: stranger.key,
                grace_ms,
            });
        }
    }
    let removed = state.removals.iter().filter(|((on, _), ())| on == node);
    Some(Desired {
        cluster: state.cluster.id.clone(),
        incarnation: state.cluster.incarnation,
        generation: link.generation,
        renews: observed.seq,
        lease_ms: u64::try_from(state.settings.lease.as_millis()).unwrap_or(u64::MAX),
        jobs,
        tombstones,
        removed_sessions: removed.map(|((_, session), ())| *session).collect(),
        thresholds: state.settings.idle.thresholds,
    })
}

/// Jobs with something unreleased on a node, in order.
pub(super) fn held_on(state: &State, node: &NodeName) -> Vec<crate::model::ids::JobId> {
    state
        .placed_on
        .get(node)
        .map(|jobs| jobs.iter().copied().collect())
        .unwrap_or_default()
}

/// The rank that a job has on a node and has not released.
pub(super) fn rank_on(placed: &Placed, node: &NodeName) -> Option<usize> {
    let rank = placed
        .allocation
        .nodes
        .iter()
        .position(|part| part.node == *node)?;
    (!placed.ranks[rank].released).then_some(rank)
}

/// Principals of a rank's host certificate: "1.dev.alice.carrel", and for rank 0 also "dev.alice.carrel".
pub(super) fn host_principals(state: &State, job: &Job, rank: usize) -> Vec<String> {
    let name = match job.kind {
        JobKind::Interactive => job.name.clone(),
        // Its name is not its own alone.
        JobKind::Batch => format!("job-{}", job.id),
    };
    let base = format!("{name}.{}.{}", job.owner, state.settings.domain);
    let own = format!("{rank}.{base}");
    if rank == 0 { vec![base, own] } else { vec![own] }
}

fn desired_job(state: &State, job: &Job, placed: &Placed, rank: usize) -> DesiredJob {
    let part = &placed.allocation.nodes[rank];
    let session = job.session.and_then(|id| state.sessions.get(&id));
    let batch = job.batch.as_deref();
    DesiredJob {
        key: JobKey {
            job: job.id,
            generation: placed.generation,
        },
        session: job.session,
        name: job.name.clone(),
        owner: job.owner.clone(),
        image: match batch {
            Some(batch) => batch.image.clone(),
            None => session
                .map(|session| session.spec.image.clone())
                .unwrap_or_default(),
        },
        gpus: part.gpus.clone(),
        cpus: part.cpus,
        memory_bytes: part.memory_bytes,
        rank: rank as u32,
        peers: peers(state, job, placed),
        gang_subnet: state.settings.gang_subnet,
        env: environment::of(state, job, placed, rank),
        deadline: placed.deadline,
        go: placed.ranks.iter().all(|rank| rank.ready),
        host_key: placed.ranks[rank].host_key.clone(),
        host_principals: host_principals(state, job, rank),
        workdir: match batch {
            Some(batch) => batch.workdir.clone(),
            None => session
                .map(|session| session.spec.workdir.clone())
                .unwrap_or_default(),
        },
        ready: placed.ranks[rank].ready,
        container: match batch {
            Some(batch) => batch.container.clone(),
            None => session
                .map(|session| session.spec.container.clone())
                .unwrap_or_default(),
        },
        batch: batch
            .filter(|_| rank == 0)
            .map(|batch| batch_run(job, batch, &part.node)),
        idle_ends: state.idle.get(&job.id).map(|about| about.ends),
        signalled: placed.signalled,
    }
}

/// What the first node of a batch job runs.
fn batch_run(job: &Job, batch: &Batch, node: &NodeName) -> BatchRun {
    let of = OutputOf {
        job: job.id,
        task: job.task(),
        name: &job.name,
        user: &job.owner,
        node,
    };
    let (stdout, stderr) = output_files(batch, of);
    BatchRun {
        command: batch.command.clone(),
        script: batch.script.clone(),
        stdout,
        stderr,
        append: batch.output.append.unwrap_or(!job.past_runs.is_empty()),
    }
}

/// The files of a batch job's standard output and error, relative to its working directory; the latter empty: as the
/// former.
pub fn output_files(batch: &Batch, of: OutputOf<'_>) -> (String, String) {
    let Output { stdout, stderr, .. } = &batch.output;
    let usual = if of.task.is_some() {
        DEFAULT_ARRAY_OUTPUT
    } else {
        DEFAULT_OUTPUT
    };
    let stdout = if stdout.is_empty() { usual } else { stdout };
    let (stdout, stderr) = (file_name(stdout, of), file_name(stderr, of));
    let stderr = if stderr == stdout { String::new() } else { stderr };
    (stdout, stderr)
}

fn peers(state: &State, job: &Job, placed: &Placed) -> Vec<Peer> {
    let nodes = placed.allocation.nodes.iter().enumerate();
    nodes
        .map(|(rank, part)| Peer {
            rank: rank as u32,
            node: part.node.clone(),
            host_name: host_name(job, placed, rank),
            network: placed.ranks[rank].network,
            reach: match state.nodes.get(&part.node) {
                Some(record) if placed.ranks.len() > 1 => record.inventory.reach.clone(),
                Some(_) | None => Reach::default(),
            },
            slots: environment::slots(job, part),
        })
        .collect()
}

fn host_name(job: &Job, placed: &Placed, rank: usize) -> String {
    let name = match job.kind {
        JobKind::Interactive => job.name.clone(),
        // Its name may be anything.
        JobKind::Batch => format!("job-{}", job.id),
    };
    if placed.allocation.nodes.len() == 1 {
        name
    } else {
        format!("{name}-{rank}")
    }
}
