//! What the processes of a job find of its allocation in their environment.
//!
//! The names are Slurm's (`man salloc`, `man sbatch`: OUTPUT ENVIRONMENT VARIABLES), what has no name there is
//! `CARREL_*`, and `MASTER_ADDR` and `MASTER_PORT` are those that PyTorch's rendezvous reads. Nothing here is of one task
//! of a step: that is for who starts steps. GPU visibility, the hosts' GPU indices and the file of hosts are added by the
//! node.

use std::collections::BTreeMap;

use super::state::State;
use crate::model::batch::Place;
use crate::model::host_list;
use crate::model::ids::JobId;
use crate::model::job::{Job, JobKind, Placed};
use crate::model::resources::NodeAllocation;

/// Ports that gangs meet at are from here on: above those of services, below those that kernels give to clients
/// (`net.ipv4.ip_local_port_range`).
const MASTER_PORTS: u64 = 20_000;
/// So many of them.
const MASTER_PORTS_COUNT: u64 = 10_000;
/// The user's own count where something else than one a node was asked for.
const TASKS_PER_NODE: &str = "SLURM_TASKS_PER_NODE";
/// Components that the job was asked for with.
const HET_SIZE: &str = "SLURM_HET_SIZE";
/// What programs tell interactive jobs by.
const JOB_NAME: &str = "SLURM_JOB_NAME";

/// The variables of one rank: the user's own, and over them the allocation's.
pub(super) fn of(state: &State, job: &Job, placed: &Placed, rank: usize) -> Vec<(String, String)> {
    let part = &placed.allocation.nodes[rank];
    let nodes = &placed.allocation.nodes;
    let mut env = own(state, job);
    let missing = |env: &[(String, String)], name: &str| !env.iter().any(|(known, _)| known == name);
    let with_tasks = missing(&env, TASKS_PER_NODE);
    let with_master = missing(&env, "MASTER_ADDR") && missing(&env, "MASTER_PORT");
    // Who gave it no name may say what Slurm would call it: "interactive", or the command's name.
    let session = job.session.and_then(|id| state.sessions.get(&id));
    let with_name = missing(&env, JOB_NAME) || !session.is_some_and(|session| session.ephemeral);

    let list: Vec<&str> = nodes.iter().map(|part| part.node.as_str()).collect();
    let short = host_list::format(nodes.iter().map(|part| &part.node));
    let uid = state.users.get(&job.owner).map_or(0, |user| user.uid);
    let groups = if missing(&env, HET_SIZE) {
        Vec::new()
    } else {
        of_components(&env, job, nodes)
    };
    env.extend(groups);
    let mut put = |name: &str, value: String| env.push((name.to_owned(), value));
    put("CARREL_JOB_ID", job.id.to_string());
    put("CARREL_CLUSTER", state.settings.cluster_name.clone());
    put("CARREL_NODE", part.node.to_string());
    put("CARREL_NODES", list.join(","));
    put("CARREL_NNODES", nodes.len().to_string());
    put("CARREL_RANK", rank.to_string());
    put("SLURM_JOB_ID", job.id.to_string());
    put("SLURM_JOBID", job.id.to_string());
    if with_name {
        put(JOB_NAME, job.name.clone());
    }
    put("SLURM_JOB_USER", job.owner.to_string());
    put("SLURM_JOB_UID", uid.to_string());
    put("SLURM_JOB_NODELIST", short.clone());
    put("SLURM_NODELIST", short);
    put("SLURM_JOB_NUM_NODES", nodes.len().to_string());
    put("SLURM_NNODES", nodes.len().to_string());
    put("SLURM_NODEID", rank.to_string());
    put("SLURMD_NODENAME", part.node.to_string());
    put("SLURM_CLUSTER_NAME", state.settings.cluster_name.clone());
    put("SLURM_CPUS_ON_NODE", part.cpus.to_string());
    put(
        "SLURM_JOB_CPUS_PER_NODE",
        host_list::in_short(nodes.iter().map(|part| &part.cpus)),
    );
    put("SLURM_MEM_PER_NODE", (part.memory_bytes >> 20).to_string());
    put("SLURM_RESTART_COUNT", job.past_runs.len().to_string());
    put("SLURM_JOB_START_TIME", (placed.started.0 / 1000).to_string());
    put("SLURM_JOB_END_TIME", (placed.deadline.0 / 1000).to_string());
    put("SLURM_JOB_PARTITION", job.terms.partition.to_string());
    put("SLURM_JOB_ACCOUNT", job.terms.account.to_string());
    put("SLURM_JOB_QOS", job.terms.qos.to_string());
    if let Some(reservation) = &job.terms.reservation {
        put("SLURM_JOB_RESERVATION", reservation.to_string());
    }
    if with_tasks {
        // Slurm's SLURM_NTASKS is there only where a number was asked for: programs take it for a promise.
        put(TASKS_PER_NODE, host_list::in_short(nodes.iter().map(|_| &1)));
    }
    if with_master {
        let alone = job.kind == JobKind::Interactive && nodes.len() == 1;
        // A session's container on one node is called by the session's name: torchrun looks for its own host's.
        put(
            "MASTER_ADDR",
            if alone {
                job.name.clone()
            } else {
                list[0].to_owned()
            },
        );
        put("MASTER_PORT", master_port(job.id).to_string());
    }
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
        // Of whole nodes all that they have.
        let gpus: usize = nodes.iter().map(|part| part.gpus.len()).sum();
        put("SLURM_GPUS", gpus.to_string());
    }
    env
}

/// What each component of a job has, where it was asked for as several: Slurm's names, with the component's number
/// behind. To Slurm components are jobs of their own, and here the job has one number.
fn of_components(own: &[(String, String)], job: &Job, nodes: &[NodeAllocation]) -> Vec<(String, String)> {
    let mut env = Vec::new();
    let mut rest = nodes;
    for (group, component) in job.request.components().enumerate() {
        let Some((part, others)) = rest.split_at_checked(component.nodes as usize) else {
            break;
        };
        rest = others;
        let mut put = |name: &str, value: String| {
            let name = format!("{name}_HET_GROUP_{group}");
            if !own.iter().any(|(known, _)| *known == name) {
                env.push((name, value));
            }
        };
        let list = host_list::format(part.iter().map(|part| &part.node));
        put("SLURM_JOB_ID", job.id.to_string());
        put("SLURM_JOBID", job.id.to_string());
        put("SLURM_JOB_NAME", job.name.clone());
        put("SLURM_JOB_NODELIST", list.clone());
        put("SLURM_NODELIST", list);
        put("SLURM_JOB_NUM_NODES", part.len().to_string());
        put("SLURM_NNODES", part.len().to_string());
        let cpus = part.iter().map(|part| &part.cpus);
        put("SLURM_JOB_CPUS_PER_NODE", host_list::in_short(cpus));
        if let Some(first) = part.first() {
            put("SLURM_MEM_PER_NODE", (first.memory_bytes >> 20).to_string());
            if !first.gpus.is_empty() {
                put("SLURM_GPUS_PER_NODE", first.gpus.len().to_string());
            }
        }
        put(TASKS_PER_NODE, host_list::in_short(part.iter().map(|_| &1)));
        put("SLURM_JOB_PARTITION", job.terms.partition.to_string());
        put("SLURM_JOB_ACCOUNT", job.terms.account.to_string());
        put("SLURM_JOB_QOS", job.terms.qos.to_string());
    }
    env
}

/// What the user has asked for.
fn own(state: &State, job: &Job) -> Vec<(String, String)> {
    let mut env: Vec<(String, String)> = Vec::with_capacity(48);
    let copied = |(name, value): (&String, &String)| (name.clone(), value.clone());
    if let Some(session) = job.session.and_then(|id| state.sessions.get(&id)) {
        env.extend(session.spec.env.iter().map(copied));
        env.push(("CARREL_SESSION".into(), session.name.to_string()));
    }
    if let Some(batch) = &job.batch {
        env.extend(batch.env.iter().map(copied));
    }
    env
}

/// The processes that a node of a job has room for: as many as were asked for, else its GPUs, else one.
pub(super) fn slots(job: &Job, part: &NodeAllocation) -> u32 {
    let asked = job.batch.as_ref().and_then(|batch| tasks_per_node(&batch.env));
    asked.unwrap_or(part.gpus.len() as u32).max(1)
}

/// The tasks that each node has room for, where a number of tasks was asked for: "4(x2)" stands for four, and so does
/// "4,3".
fn tasks_per_node(env: &BTreeMap<String, String>) -> Option<u32> {
    let asked = ["SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"];
    if !asked.iter().any(|name| env.contains_key(*name)) {
        return None;
    }
    let each = env.get(TASKS_PER_NODE)?;
    each.split(['(', ',']).next()?.parse().ok()
}

/// Where a job's processes meet: jobs that follow each other meet at different ports.
fn master_port(job: JobId) -> u64 {
    MASTER_PORTS + job.0 % MASTER_PORTS_COUNT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_the_tasks_that_were_asked_for() {
        let tasks = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            tasks_per_node(&pairs.collect())
        };
        assert_eq!(
            tasks(&[("SLURM_NTASKS", "8"), ("SLURM_TASKS_PER_NODE", "4(x2)")]),
            Some(4)
        );
        assert_eq!(
            tasks(&[("SLURM_NTASKS_PER_NODE", "2"), ("SLURM_TASKS_PER_NODE", "2")]),
            Some(2)
        );
        assert_eq!(
            tasks(&[("SLURM_NTASKS", "7"), ("SLURM_TASKS_PER_NODE", "4,3")]),
            Some(4)
        );
        assert_eq!(
            tasks(&[("SLURM_TASKS_PER_NODE", "1(x2)")]),
            None,
            "one a node is what nobody asked for"
        );
    }

    #[test]
    fn jobs_meet_where_no_client_s_port_is() {
        assert_eq!(master_port(JobId(7)), 20_007);
        assert_eq!(master_port(JobId(123_456)), 23_456);
    }
}
