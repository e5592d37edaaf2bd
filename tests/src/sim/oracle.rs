//! What must be true of the world after every step, whatever anybody believes.

use std::collections::BTreeMap;

use carrel_core::broker::{State, check};
use carrel_core::model::cpus::CpuSet;
use carrel_core::model::gpu_unit::{GpuUnit, WHOLE_MILLI};
use carrel_core::model::ids::JobKey;
use carrel_core::model::job::{Job, JobState, Phase};

use super::node::{Node, Physical};

/// The broker's records agree with one another.
pub fn records(state: &State) -> Result<(), String> {
    match check(state).first() {
        Some(violation) => Err(violation.to_string()),
        None => Ok(()),
    }
}

/// What runs, runs where it may.
pub fn nodes(nodes: &BTreeMap<String, Node>) -> Result<(), String> {
    nodes.values().try_for_each(held_twice)?;
    partial_go(nodes)
}

/// No GPU and no CPU is used by two containers, no node runs more than it has.
fn held_twice(node: &Node) -> Result<(), String> {
    let mut users: Vec<(&GpuUnit, JobKey)> = Vec::new();
    let (mut cpus, mut memory) = (0, 0);
    let mut bound = CpuSet::default();
    for (key, container) in node.running() {
        for unit in &container.holding.gpus {
            let of_it = users.iter().filter(|(other, _)| other.gpu == unit.gpu);
            let shares: u32 = of_it.clone().map(|(other, _)| other.slice.share_milli()).sum();
            let too_many = shares + unit.slice.share_milli() > u32::from(WHOLE_MILLI);
            if let Some((_, other)) = of_it.clone().find(|(other, _)| too_many || other.excludes(unit)) {
                return Err(format!("{unit} is used by the containers of {other} and {key}"));
            }
            users.push((unit, *key));
        }
        let binding = &container.holding.binding;
        if binding.cpus.len() != container.holding.cpus as usize || !binding.cpus.is_disjoint(&bound) {
            return Err(format!(
                "the container of {key} has {} CPUs and is bound to {} on {}",
                container.holding.cpus, binding.cpus, node.name
            ));
        }
        bound = bound.or(&binding.cpus);
        cpus += u64::from(container.holding.cpus);
        memory += container.holding.memory_bytes;
    }
    let (all_cpus, all_memory) = Node::capacity();
    if cpus > all_cpus || memory > all_memory {
        return Err(format!(
            "{} runs {cpus} of {all_cpus} CPUs and {memory} of {all_memory} bytes",
            node.name
        ));
    }
    Ok(())
}

/// What the broker counts as over, or as released by a node, does not run there. A host that sleeps runs
/// nothing; what came back with a snapshot is not known before the node has spoken.
pub fn freed_but_running(state: &State, nodes: &BTreeMap<String, Node>) -> Result<(), String> {
    for node in nodes.values().filter(|node| node.asleep_until.is_none()) {
        let running = node.running().filter(|(_, container)| !container.revived);
        for (key, _) in running {
            if is_over(state, node, *key) {
                return Err(format!(
                    "{key} runs on {} and the broker counts it as over",
                    node.name
                ));
            }
        }
    }
    Ok(())
}

fn is_over(state: &State, node: &Node, key: JobKey) -> bool {
    let Some(job) = state.jobs.get(&key.job) else {
        return false;
    };
    let Some(placed) = job
        .last_placed()
        .filter(|placed| placed.generation == key.generation)
    else {
        // Held before it was queued again; else another job of that id, or one that the backup does not know to run.
        return job.had(key.generation);
    };
    match &job.phase {
        Phase::Pending => false,
        Phase::Placed(_) => {
            let mut parts = placed.allocation.nodes.iter().zip(&placed.ranks);
            parts.any(|(part, rank)| part.node == node.name && rank.released)
        }
        Phase::Ended { .. } => true,
    }
}

/// No rank is let go before every container of its gang has been ready.
fn partial_go(nodes: &BTreeMap<String, Node>) -> Result<(), String> {
    let mut gangs: BTreeMap<JobKey, (bool, bool)> = BTreeMap::new();
    for node in nodes.values() {
        for (key, container) in node.containers.iter().filter(|(_, container)| !container.revived) {
            let gang = gangs.entry(*key).or_default();
            gang.0 |= container.go;
            gang.1 |= container.state == Physical::Unstarted;
        }
    }
    match gangs.iter().find(|(_, (go, unstarted))| *go && *unstarted) {
        Some((key, _)) => Err(format!("a rank of {key} was let go before the others were ready")),
        None => Ok(()),
    }
}

/// A job on one host ended as lost although its container ran on, and its host held the lease: nobody may do that.
pub fn wrongly_lost(job: &Job, nodes: &BTreeMap<String, Node>, now: u64) -> Option<String> {
    let placed = job
        .last_placed()
        .filter(|placed| placed.allocation.nodes.len() == 1)?;
    let ending = match &job.phase {
        Phase::Ended { ending, .. } => Some(ending),
        Phase::Pending | Phase::Placed(_) => placed.ending.as_ref(),
    };
    let ending = ending.filter(|ending| ending.state == JobState::NodeFail)?;
    let key = JobKey {
        job: job.id,
        generation: placed.generation,
    };
    let node = nodes.get(placed.allocation.nodes[0].node.as_str())?;
    let container = node
        .containers
        .get(&key)
        .filter(|container| container.state == Physical::Running && !container.revived)?;
    let left = container.lease_end?.saturating_sub(node.boot_ms(now));
    let why = &ending.reason;
    (left > 0).then(|| {
        format!(
            "job {} was given up ({why}) while its session ran on, {left} ms before its lease's end",
            job.id
        )
    })
}
