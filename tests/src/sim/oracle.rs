//! What must be true of the world after every step, whatever anybody believes.

use std::collections::BTreeMap;

use carrel_core::broker::{State, check};
use carrel_core::model::ids::{GpuUuid, JobKey};
use carrel_core::model::job::{Job, JobState, Phase};

use super::node::{Node, Physical};

/// Everything that is wrong with the world now.
pub fn wrongs(state: Option<&State>, nodes: &BTreeMap<String, Node>) -> Vec<String> {
    let mut wrongs: Vec<String> = Vec::new();
    if let Some(state) = state {
        wrongs.extend(check(state).iter().map(ToString::to_string));
        wrongs.extend(nodes.values().flat_map(|node| freed_but_running(state, node)));
    }
    wrongs.extend(nodes.values().flat_map(held_twice));
    wrongs.extend(partial_go(nodes));
    wrongs
}

/// No GPU is used by two containers, no node runs more than it has.
fn held_twice(node: &Node) -> Vec<String> {
    let mut users: BTreeMap<&GpuUuid, JobKey> = BTreeMap::new();
    let mut wrongs = Vec::new();
    let (mut cpus, mut memory) = (0, 0);
    for (key, container) in node.running() {
        for gpu in &container.holding.gpus {
            if let Some(other) = users.insert(gpu, *key) {
                wrongs.push(format!("{gpu} is used by the containers of {other} and {key}"));
            }
        }
        cpus += u64::from(container.holding.cpus);
        memory += container.holding.memory_bytes;
    }
    let (all_cpus, all_memory) = Node::capacity();
    if cpus > all_cpus || memory > all_memory {
        wrongs.push(format!(
            "{} runs {cpus} of {all_cpus} CPUs and {memory} of {all_memory} bytes",
            node.name
        ));
    }
    wrongs
}

/// What the broker counts as over, or as released by a node, does not run there.
fn freed_but_running(state: &State, node: &Node) -> Vec<String> {
    let over = |key: &JobKey| {
        let Some(job) = state.jobs.get(&key.job) else {
            return false;
        };
        match &job.phase {
            Phase::Pending { .. } => false,
            Phase::Placed(placed) if placed.generation == key.generation => {
                let parts = placed.allocation.nodes.iter().zip(&placed.ranks);
                parts
                    .filter(|(part, _)| part.node == node.name)
                    .any(|(_, rank)| rank.released)
            }
            Phase::Placed(placed) => placed.generation > key.generation,
            Phase::Ended { .. } => true,
        }
    };
    let running = node.running().filter(|(key, _)| over(key));
    running
        .map(|(key, _)| format!("{key} runs on {} and the broker counts it as over", node.name))
        .collect()
}

/// No rank is let go before every container of its gang has been ready.
fn partial_go(nodes: &BTreeMap<String, Node>) -> Vec<String> {
    let mut gangs: BTreeMap<JobKey, (bool, bool)> = BTreeMap::new();
    for node in nodes.values() {
        for (key, container) in &node.containers {
            let gang = gangs.entry(*key).or_default();
            gang.0 |= container.go;
            gang.1 |= container.state == Physical::Unstarted;
        }
    }
    let partial = gangs.iter().filter(|(_, (go, unstarted))| *go && *unstarted);
    partial
        .map(|(key, _)| format!("a rank of {key} was let go before the others were ready"))
        .collect()
}

/// A job on one host ended as lost although its container ran on, and its host held the lease: nobody may do that.
pub fn wrongly_lost(job: &Job, nodes: &BTreeMap<String, Node>, now: u64) -> Option<String> {
    let placed = job
        .last_placed()
        .filter(|placed| placed.allocation.nodes.len() == 1)?;
    let ending = match &job.phase {
        Phase::Ended { ending, .. } => Some(ending),
        Phase::Pending { .. } | Phase::Placed(_) => placed.ending.as_ref(),
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
        .filter(|container| container.state == Physical::Running)?;
    let left = container.lease_end?.saturating_sub(node.boot_ms(now));
    let why = &ending.reason;
    (left > 0).then(|| {
        format!(
            "job {} was given up ({why}) while its session ran on, {left} ms before its lease's end",
            job.id
        )
    })
}
