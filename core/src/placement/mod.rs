//! Placement: which GPUs of which nodes a request gets, or why none.
//!
//! On one host the best set of its free GPUs is chosen exactly: the worst link
//! of the set first, then the sum of its links, then the fewest NUMA nodes,
//! then what remains. Of several hosts the one with the best links wins, then
//! the one that is left with the fewest GPUs.

mod bandwidth;
mod gpu_set;
mod why;

use std::cmp::Reverse;
use std::collections::BTreeMap;

pub use bandwidth::link_bandwidth;
pub use why::{Refusal, WhyNot};

use gpu_set::{GpuSet, SetScore, best_set, of_model, placeable, positions};

use crate::model::gpu::Inventory;
use crate::model::ids::{GpuUuid, NodeName};
use crate::model::resources::{Allocation, NodeAllocation, ResourceRequest};
use crate::model::topology::Link;

/// A host as placement sees it.
#[derive(Clone, Copy, Debug)]
pub struct HostView<'a> {
    /// Its name.
    pub node: &'a NodeName,
    /// What it has.
    pub inventory: &'a Inventory,
    /// GPUs that nobody holds: bit n is position n in [`Inventory::gpus`].
    /// Drained GPUs and GPUs in MIG mode are left out whatever their bit.
    /// Positions from 64 on are never placed.
    pub free_gpus: u64,
    /// Hardware threads that nobody holds.
    pub free_cpus: u32,
    /// Memory that nobody holds, bytes.
    pub free_memory: u64,
    /// Why nothing may be placed on it: "down", "drained: fan 3"; none: it may.
    pub unavailable: Option<&'a str>,
}

/// Finds the best place for a request, whole or not at all.
///
/// Deterministic: the same hosts in any order and the same request give the
/// same answer. Ranks are in the order of the nodes' names.
pub fn place(hosts: &[HostView<'_>], request: &ResourceRequest) -> Result<Allocation, WhyNot> {
    let mut fitting = Vec::new();
    let mut refused: BTreeMap<Refusal, u32> = BTreeMap::new();
    for host in hosts {
        match fit(host, request, Assume::Now) {
            Ok(candidate) => fitting.push(candidate),
            Err(refusal) => *refused.entry(refusal).or_default() += 1,
        }
    }
    if fitting.len() >= request.nodes as usize {
        return Ok(choose(fitting, request));
    }
    if !fitting.is_empty() {
        refused.insert(
            Refusal::FewerNodes {
                wanted: request.nodes,
            },
            fitting.len() as u32,
        );
    }
    let mut refusals: Vec<(Refusal, u32)> = refused.into_iter().collect();
    refusals.sort_by_key(|(_, hosts)| Reverse(*hosts));
    Err(WhyNot {
        refusals,
        nearest: why::nearest(hosts, request),
        ever: why::ever(hosts, request),
    })
}

/// [`place`] without the reasons, for asking what else would fit.
fn try_place(hosts: &[HostView<'_>], request: &ResourceRequest) -> Option<Allocation> {
    let fitting: Vec<Candidate> = hosts
        .iter()
        .filter_map(|host| fit(host, request, Assume::Now).ok())
        .collect();
    (fitting.len() >= request.nodes as usize).then(|| choose(fitting, request))
}

/// The slowest link between the GPUs of a set on one host; none for fewer than
/// two GPUs, or when one of them is not in the inventory.
pub fn worst_link(inventory: &Inventory, gpus: &[GpuUuid]) -> Option<Link> {
    let position = |uuid: &GpuUuid| inventory.gpus.iter().position(|gpu| gpu.uuid == *uuid);
    let set: Vec<usize> = gpus.iter().map(position).collect::<Option<_>>()?;
    let pairs = set
        .iter()
        .enumerate()
        .flat_map(|(n, a)| set[n + 1..].iter().map(move |b| (*a, *b)));
    pairs
        .filter(|(a, b)| a != b)
        .map(|(a, b)| gpu_set::link_between(inventory, a, b))
        .min()
}

/// What is taken as free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Assume {
    /// What is free now.
    Now,
    /// Everything healthy, on nodes that are down too.
    AllFree,
}

/// A host that can take its part, and the part.
struct Candidate<'a> {
    host: HostView<'a>,
    set: GpuSet,
    /// Free whole GPUs that it would be left with.
    left_gpus: u32,
    left_cpus: u32,
}

/// What decides between hosts; the smallest wins.
type Rank<'a> = (
    Reverse<(Option<Link>, u64)>,
    bool,
    u32,
    Reverse<SetScore>,
    u32,
    &'a NodeName,
);

impl<'a> Candidate<'a> {
    fn rank(&self) -> Rank<'a> {
        let score = self.set.score;
        // Jobs without GPUs stay away from hosts with some.
        let wrong_kind = self.set.mask == 0 && !self.host.inventory.gpus.is_empty();
        (
            Reverse((score.worst, score.sum)),
            wrong_kind,
            self.left_gpus,
            Reverse(score),
            self.left_cpus,
            self.host.node,
        )
    }

    /// Models of its GPUs, each once, in order.
    fn models(&self) -> Vec<&'a str> {
        let mut models: Vec<&str> = positions(self.set.mask)
            .map(|p| self.host.inventory.gpus[p].model.as_str())
            .collect();
        models.sort_unstable();
        models.dedup();
        models
    }

    fn allocation(&self, request: &ResourceRequest) -> NodeAllocation {
        NodeAllocation {
            node: self.host.node.clone(),
            gpus: positions(self.set.mask)
                .map(|p| self.host.inventory.gpus[p].uuid.clone())
                .collect(),
            cpus: request.cpus_per_node,
            memory_bytes: request.memory_bytes_per_node,
        }
    }
}

/// The best part of one host, or what it lacks. What it lacks for good is said
/// before what it lacks now.
fn fit<'a>(host: &HostView<'a>, request: &ResourceRequest, assume: Assume) -> Result<Candidate<'a>, Refusal> {
    let inventory = host.inventory;
    let all = assume == Assume::AllFree;
    if let (Some(state), false) = (host.unavailable, all) {
        return Err(Refusal::Unavailable {
            state: state.to_owned(),
        });
    }
    let (wanted, model) = (request.gpus_per_node, request.gpu_model.as_str());
    let healthy = placeable(inventory);
    let free = if all { healthy } else { healthy & host.free_gpus };
    let right = if wanted == 0 {
        0
    } else {
        of_model(inventory, model)
    };
    let count = |mask: u64| mask.count_ones();

    if wanted > 0 && inventory.gpus.is_empty() {
        return Err(Refusal::NoGpus);
    }
    if wanted > 0 && right == 0 {
        return Err(Refusal::NoSuchModel {
            model: model.to_owned(),
        });
    }
    if count(healthy & right) < wanted {
        return Err(Refusal::FewerGpus {
            wanted,
            model: model.to_owned(),
        });
    }
    if inventory.cpus < request.cpus_per_node {
        return Err(Refusal::FewerCpus {
            wanted: request.cpus_per_node,
        });
    }
    if inventory.memory_bytes < request.memory_bytes_per_node {
        return Err(Refusal::LessMemory {
            wanted: request.memory_bytes_per_node,
        });
    }
    if count(free & right) < wanted {
        return Err(Refusal::FewerFreeGpus {
            wanted,
            model: model.to_owned(),
        });
    }
    let (cpus, memory) = if all {
        (inventory.cpus, inventory.memory_bytes)
    } else {
        (host.free_cpus, host.free_memory)
    };
    if cpus < request.cpus_per_node {
        return Err(Refusal::FewerFreeCpus {
            wanted: request.cpus_per_node,
        });
    }
    if memory < request.memory_bytes_per_node {
        return Err(Refusal::LessFreeMemory {
            wanted: request.memory_bytes_per_node,
        });
    }
    let best = |free: u64| best_set(inventory, free, free & right, wanted as usize, request.nvlink);
    let Some(set) = best(free) else {
        let never = all || best(healthy).is_none();
        return Err(if never {
            Refusal::NoNvlinkSet { wanted }
        } else {
            Refusal::NoFreeNvlinkSet { wanted }
        });
    };
    Ok(Candidate {
        host: *host,
        set,
        left_gpus: count(free) - wanted,
        left_cpus: cpus - request.cpus_per_node,
    })
}

/// The best `request.nodes` of at least as many candidates. A gang gets GPUs of
/// one kind where it can: its slowest member sets its pace.
fn choose(mut fitting: Vec<Candidate<'_>>, request: &ResourceRequest) -> Allocation {
    let nodes = request.nodes as usize;
    fitting.sort_by(|a, b| a.rank().cmp(&b.rank()));
    if nodes > 1 {
        let mut kinds: BTreeMap<Vec<&str>, Vec<usize>> = BTreeMap::new();
        for (at, candidate) in fitting.iter().enumerate() {
            kinds.entry(candidate.models()).or_default().push(at);
        }
        let whole = kinds
            .into_values()
            .filter(|kind| kind.len() >= nodes)
            .map(|kind| kind[..nodes].to_vec());
        // Positions are in order of rank: the smallest last member is the best slowest one.
        if let Some(kind) = whole.min_by_key(|kind| (kind.last().copied(), kind.first().copied())) {
            let mut at = 0;
            fitting.retain(|_| {
                at += 1;
                kind.contains(&(at - 1))
            });
        }
    }
    fitting.truncate(nodes);
    fitting.sort_by_key(|candidate| candidate.host.node);
    Allocation {
        nodes: fitting
            .iter()
            .map(|candidate| candidate.allocation(request))
            .collect(),
    }
}

#[cfg(test)]
mod tests;
