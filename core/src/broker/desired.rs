//! What a node is to be.

use std::time::Duration;

use super::state::State;
use crate::model::batch::{
    Batch, BatchRun, DEFAULT_ARRAY_OUTPUT, DEFAULT_OUTPUT, Output, OutputOf, Place, file_name,
};
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
        peers: peers(job, placed),
        env: environment(state, job, placed, rank),
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

fn peers(job: &Job, placed: &Placed) -> Vec<Peer> {
    let nodes = placed.allocation.nodes.iter().enumerate();
    nodes
        .map(|(rank, part)| Peer {
            rank: rank as u32,
            node: part.node.clone(),
            host_name: host_name(job, placed, rank),
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

/// The allocation's variables, named as Slurm names them (`man salloc`, OUTPUT
/// ENVIRONMENT VARIABLES, and `man srun`), and the user's own.
/// GPU visibility and the hosts' GPU indices are added by the node.
fn environment(state: &State, job: &Job, placed: &Placed, rank: usize) -> Vec<(String, String)> {
    let part = &placed.allocation.nodes[rank];
    let nodes = placed.allocation.nodes.len();
    let list: Vec<&str> = placed
        .allocation
        .nodes
        .iter()
        .map(|part| part.node.as_str())
        .collect();
    let uid = state.users.get(&job.owner).map_or(0, |user| user.uid);
    let repeated = |value: u32| {
        if nodes > 1 {
            format!("{value}(x{nodes})")
        } else {
            value.to_string()
        }
    };
    let mut env: Vec<(String, String)> = Vec::with_capacity(32);
    if let Some(session) = job.session.and_then(|id| state.sessions.get(&id)) {
        env.extend(
            session
                .spec
                .env
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        env.push(("CARREL_SESSION".into(), session.name.to_string()));
    }
    if let Some(batch) = &job.batch {
        env.extend(
            batch
                .env
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
    }
    let mut put = |name: &str, value: String| env.push((name.to_owned(), value));
    put("CARREL_JOB_ID", job.id.to_string());
    put("CARREL_CLUSTER", state.settings.cluster_name.clone());
    put("CARREL_NODE", part.node.to_string());
    put("CARREL_NODES", list.join(","));
    put("CARREL_RANK", rank.to_string());
    put("SLURM_JOB_ID", job.id.to_string());
    put("SLURM_JOBID", job.id.to_string());
    put("SLURM_JOB_NAME", job.name.clone());
    put("SLURM_JOB_USER", job.owner.to_string());
    put("SLURM_JOB_UID", uid.to_string());
    put("SLURM_JOB_NODELIST", list.join(","));
    put("SLURM_NODELIST", list.join(","));
    put("SLURM_JOB_NUM_NODES", nodes.to_string());
    put("SLURM_NNODES", nodes.to_string());
    put("SLURM_NODEID", rank.to_string());
    put("SLURMD_NODENAME", part.node.to_string());
    put("SLURM_CLUSTER_NAME", state.settings.cluster_name.clone());
    put("SLURM_CPUS_ON_NODE", part.cpus.to_string());
    put("SLURM_JOB_CPUS_PER_NODE", repeated(part.cpus));
    put("SLURM_MEM_PER_NODE", (part.memory_bytes >> 20).to_string());
    put("SLURM_RESTART_COUNT", job.past_runs.len().to_string());
    put("SLURM_JOB_START_TIME", (placed.started.0 / 1000).to_string());
    put("SLURM_JOB_END_TIME", (placed.deadline.0 / 1000).to_string());
    put("SLURM_JOB_PARTITION", job.terms.partition.to_string());
    put("SLURM_JOB_ACCOUNT", job.terms.account.to_string());
    put("SLURM_JOB_QOS", job.terms.qos.to_string());
    if let Some(batch) = &job.batch {
        let Place { host, directory } = &batch.submitted_from;
        put("SLURM_SUBMIT_HOST", host.clone());
        put("SLURM_SUBMIT_DIR", directory.clone());
        put("ENVIRONMENT", "BATCH".to_owned());
        put("SLURM_PROCID", "0".to_owned());
        put("SLURM_LOCALID", "0".to_owned());
    }
    if let (Some(of), Some((array, task))) = (&job.array, job.task()) {
        put("SLURM_ARRAY_JOB_ID", array.to_string());
        put("SLURM_ARRAY_TASK_ID", task.to_string());
        put("SLURM_ARRAY_TASK_COUNT", of.shape.count.to_string());
        put("SLURM_ARRAY_TASK_MIN", of.shape.min.to_string());
        put("SLURM_ARRAY_TASK_MAX", of.shape.max.to_string());
        put("SLURM_ARRAY_TASK_STEP", of.shape.step.to_string());
    }
    if !part.gpus.is_empty() {
        put("SLURM_GPUS_ON_NODE", part.gpus.len().to_string());
        put("SLURM_GPUS_PER_NODE", part.gpus.len().to_string());
        put("SLURM_GPUS", job.request.gpus().to_string());
    }
    env
}
