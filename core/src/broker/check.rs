//! The invariants of a state, checked by simulations and tests after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use thiserror::Error;

use super::state::State;
use crate::model::gpu_unit::{GpuUnit, WHOLE_MILLI};
use crate::model::ids::{GpuUuid, JobId, NodeName, SessionId};
use crate::model::job::{Job, Phase};

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// A GPU is held twice.
    #[error("GPU {gpu} of {node} is held by job {first} and by job {second}")]
    GpuHeldTwice {
        /// Node.
        node: NodeName,
        /// GPU.
        gpu: GpuUuid,
        /// One holder.
        first: JobId,
        /// The other.
        second: JobId,
    },
    /// More is held than the node has.
    #[error("{held} of {have} {what} of {node} are held")]
    Overcommitted {
        /// Node.
        node: NodeName,
        /// "CPUs" or "bytes".
        what: &'static str,
        /// Held.
        held: u64,
        /// There.
        have: u64,
    },
    /// A job that is to be alone on a node is not.
    #[error("job {job} is to be alone on {node}, and job {other} is there too")]
    NotAlone {
        /// Node.
        node: NodeName,
        /// Job.
        job: JobId,
        /// Another one.
        other: JobId,
    },
    /// A gang holds something else than it asked for.
    #[error("job {job} holds {held} nodes and asked for {asked}")]
    PartialGang {
        /// Job.
        job: JobId,
        /// Nodes held.
        held: usize,
        /// Nodes asked for.
        asked: u64,
    },
    /// A session's job is not its own, or missing.
    #[error("session {session} and its job {job} do not belong together")]
    SessionJob {
        /// Session.
        session: SessionId,
        /// Job.
        job: JobId,
    },
    /// Two live jobs of one session hold something at once.
    #[error("session {session} has more than one job that holds something")]
    SessionTwice {
        /// Session.
        session: SessionId,
    },
    /// A task of an array is lost, or is two jobs, or too many run.
    #[error("array {array}: {what}")]
    Array {
        /// Array.
        array: JobId,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Two containers of the cluster have one address.
    #[error("job {first} and job {second} both have {address} for a container of theirs")]
    AddressTwice {
        /// The address.
        address: Ipv4Addr,
        /// One of them.
        first: JobId,
        /// The other.
        second: JobId,
    },
    /// An index differs from what it is derived from.
    #[error("the index of {0} is wrong")]
    Index(&'static str),
}

/// Recomputes everything from the jobs and sessions alone.
pub fn check(state: &State) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut gpus: BTreeMap<NodeName, Vec<(GpuUnit, &Job)>> = BTreeMap::new();
    let mut sizes: BTreeMap<NodeName, (u64, u64)> = BTreeMap::new();
    let mut on: BTreeMap<&NodeName, Vec<(JobId, bool)>> = BTreeMap::new();
    let mut addresses: BTreeMap<Ipv4Addr, JobId> = BTreeMap::new();
    let mut pending = BTreeSet::new();
    let mut deadlines = BTreeSet::new();
    let mut ended = BTreeSet::new();
    let mut holding: BTreeMap<SessionId, u32> = BTreeMap::new();
    for job in state.jobs.values() {
        if matches!(job.phase, Phase::Pending) {
            pending.insert(job.id);
        }
        ended.extend(super::index::ended(job).map(|at| (at, job.id)));
        let Some(placed) = job.placed() else { continue };
        deadlines.insert((placed.deadline, job.id));
        let held = placed.allocation.nodes.len();
        if held as u64 != job.request.all_nodes() || placed.ranks.len() != held {
            found.push(Violation::PartialGang {
                job: job.id,
                held,
                asked: job.request.all_nodes(),
            });
        }
        for address in placed.ranks.iter().filter_map(|rank| rank.network.address()) {
            if let Some(first) = addresses.insert(address, job.id) {
                found.push(Violation::AddressTwice {
                    address,
                    first,
                    second: job.id,
                });
            }
        }
        if let Some(session) = job.session {
            *holding.entry(session).or_default() += 1;
        }
        let ranks = placed.allocation.nodes.iter().zip(&placed.ranks);
        for ((part, rank), asked) in ranks.zip(job.request.by_rank()) {
            if !rank.released {
                on.entry(&part.node).or_default().push((job.id, asked.exclusive));
            }
        }
        for (part, _) in placed
            .allocation
            .nodes
            .iter()
            .zip(&placed.ranks)
            .filter(|(_, rank)| !rank.released)
        {
            let held = gpus.entry(part.node.clone()).or_default();
            for unit in &part.gpus {
                let of_it = held.iter().filter(|(other, _)| other.gpu == unit.gpu);
                let shares: u32 = of_it.clone().map(|(other, _)| other.slice.share_milli()).sum();
                let too_many = shares + unit.slice.share_milli() > u32::from(WHOLE_MILLI);
                let taken = |(other, of): &&(GpuUnit, &Job)| {
                    let anothers = other.is_anothers(Some(&of.owner), unit, Some(&job.owner));
                    too_many || anothers || other.excludes(unit)
                };
                if let Some((_, first)) = of_it.clone().find(taken) {
                    found.push(Violation::GpuHeldTwice {
                        node: part.node.clone(),
                        gpu: unit.gpu.clone(),
                        first: first.id,
                        second: job.id,
                    });
                }
                held.push((unit.clone(), job));
            }
            let size = sizes.entry(part.node.clone()).or_default();
            size.0 += u64::from(part.cpus);
            size.1 += part.memory_bytes;
        }
    }
    for (node, jobs) in on {
        for (at, (job, _)) in jobs.iter().enumerate().filter(|(_, (_, alone))| *alone) {
            let other = jobs.iter().enumerate().find(|(other, _)| *other != at);
            found.extend(other.map(|(_, (other, _))| Violation::NotAlone {
                node: node.clone(),
                job: *job,
                other: *other,
            }));
        }
    }
    for (node, (cpus, memory)) in &sizes {
        let inventory = state.nodes.get(node).map(|node| &node.inventory);
        let have = inventory.map_or((0, 0), |inventory| {
            (u64::from(inventory.cpus), inventory.memory_bytes)
        });
        for (what, held, have) in [("CPUs", *cpus, have.0), ("bytes", *memory, have.1)] {
            if held > have {
                found.push(Violation::Overcommitted {
                    node: node.clone(),
                    what,
                    held,
                    have,
                });
            }
        }
        let indexed = state
            .usage
            .get(node)
            .map(|usage| (usage.cpus, usage.memory))
            .unwrap_or_default();
        if indexed != (*cpus, *memory) {
            found.push(Violation::Index("usage"));
        }
    }
    if state
        .nodes
        .keys()
        .any(|node| state.room(node).as_ref() != state.hosts.room(node))
    {
        found.push(Violation::Index("free resources"));
    }
    let indexed_gpus: usize = state.usage.values().map(|usage| usage.units.len()).sum();
    if indexed_gpus != gpus.values().map(Vec::len).sum::<usize>() {
        found.push(Violation::Index("held GPUs"));
    }
    if !state.pending.ids().eq(pending.iter().copied()) {
        found.push(Violation::Index("queue"));
    }
    let placed_right = |id: &JobId| {
        let job = &state.jobs[id];
        state.pending.class_of(*id).is_some() == state.aside(job).is_none()
    };
    if !pending.iter().all(placed_right) {
        found.push(Violation::Index("who may start"));
    }
    if !state.pending.is_consistent() {
        found.push(Violation::Index("lines of the queue"));
    }
    if !state.ended.iter().eq(ended.iter()) {
        found.push(Violation::Index("ended jobs"));
    }
    if !state.deadlines.iter().eq(deadlines.iter()) {
        found.push(Violation::Index("deadlines"));
    }
    let lives = |id: &JobId| {
        let placed = state.jobs.get(id).and_then(|job| job.placed());
        placed.is_some_and(|placed| placed.ending.is_none())
    };
    if !state.idle.keys().all(lives) {
        found.push(Violation::Index("idle sessions"));
    }
    found.extend(
        holding
            .iter()
            .filter(|(_, jobs)| **jobs > 1)
            .map(|(session, _)| Violation::SessionTwice { session: *session }),
    );
    for session in state.sessions.values() {
        let Some(id) = session.job else { continue };
        if state
            .jobs
            .get(&id)
            .is_none_or(|job| job.session != Some(session.id))
        {
            found.push(Violation::SessionJob {
                session: session.id,
                job: id,
            });
        }
    }
    found.extend(check_arrays(state));
    if state.session_names.len() != state.sessions.len() {
        found.push(Violation::Index("session names"));
    }
    found
}

/// Each task is in one job, or is known to be over; and no more run than may at once.
fn check_arrays(state: &State) -> Vec<Violation> {
    let mut parts: BTreeMap<JobId, Vec<&Job>> = BTreeMap::new();
    for job in state.jobs.values() {
        if let Some(part) = &job.array {
            parts.entry(part.array).or_default().push(job);
        }
    }
    let lost = parts.keys().filter(|id| !state.arrays.contains_key(*id));
    let wrong = |array: JobId, what: &'static str| Violation::Array { array, what };
    let mut found: Vec<Violation> = lost.map(|id| wrong(*id, "it has no record")).collect();
    for (id, array) in &state.arrays {
        let jobs = parts.remove(id).unwrap_or_default();
        let record = &array.record;
        let mut tasks: Vec<u32> = record.completed.iter().chain(record.failed.iter()).collect();
        let (mut running, mut waiting) = (0, BTreeSet::new());
        for job in jobs {
            let Some(part) = &job.array else { continue };
            tasks.extend(part.tasks.iter());
            match &job.phase {
                Phase::Placed(_) if part.task().is_none() => {
                    found.push(wrong(*id, "several tasks run as one"));
                }
                Phase::Placed(_) => running += 1,
                Phase::Pending => {
                    waiting.insert(job.id);
                }
                Phase::Ended { .. } => {}
            }
            if !record.lowered && part.throttle.is_some_and(|most| running > most) {
                found.push(wrong(*id, "more tasks run than may at once"));
            }
        }
        tasks.sort_unstable();
        if !tasks.into_iter().eq(record.tasks.iter()) {
            found.push(wrong(*id, "a task is lost, or is two jobs"));
        }
        if running != array.running || !array.waiting.iter().eq(waiting.iter()) {
            found.push(Violation::Index("arrays"));
        }
    }
    found
}
