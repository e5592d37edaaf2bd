//! Placement: which GPUs of which nodes a request gets, or why none.
//!
//! On one host the best set of its free GPUs is chosen exactly: the worst link
//! of the set first, then the sum of its links, then the fewest NUMA nodes and
//! NICs, then the worth of what remains to requests to come ([`Table::best`]). Of
//! several hosts the one with the best links wins, then the one where the least
//! worth is lost. Hosts that are alike are looked at once ([`Hosts`]).

mod bandwidth;
pub mod cpus;
mod fit;
mod gpu_set;
mod hosts;
mod kind;
mod reserve;
mod seat;
mod slices;
mod table;
mod units;
mod why;

use std::collections::BTreeMap;

pub use bandwidth::link_bandwidth;
pub use hosts::{Assume, Hosts, Room};
pub use kind::{HostKind, MAX_GPUS};
pub use reserve::Reserve;
pub use seat::{Seat, seat};
pub use slices::{Cut, MigLayout, MigRoom};
pub use table::{Best, Demand, MAX_TABLE_GPUS, Quality, Shape, Table};
pub use units::{PartRoom, Parts, Units};
pub use why::{Refusal, WhyNot};

pub(crate) use units::left_of_shares;

use fit::Candidate;

use crate::model::gpu::Inventory;
use crate::model::ids::NodeName;
use crate::model::resources::{NodeAllocation, ResourceRequest};

/// What a job's nodes must have.
#[derive(Clone, Copy, Debug)]
pub struct Needs<'a> {
    /// Of what they have.
    pub request: &'a ResourceRequest,
    /// Its user is to be root in the containers, which not every host can do.
    pub root: bool,
}

impl<'a> From<&'a ResourceRequest> for Needs<'a> {
    fn from(request: &'a ResourceRequest) -> Self {
        Self { request, root: false }
    }
}

/// What a request gets of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The node.
    pub node: NodeName,
    /// GPU units.
    pub units: Units,
}

impl Part {
    /// What is held of the node, which has this inventory.
    pub fn allocation(&self, inventory: &Inventory, request: &ResourceRequest) -> NodeAllocation {
        NodeAllocation {
            node: self.node.clone(),
            gpus: self.units.held(inventory),
            cpus: request.cpus_per_node,
            memory_bytes: request.memory_bytes_per_node,
        }
    }
}

/// Finds the best place for a request, whole or not at all.
///
/// Deterministic: the same hosts in any order and the same request give the
/// same answer. Ranks are in the order of the nodes' names.
pub fn place<'a>(hosts: &Hosts, needs: impl Into<Needs<'a>>, assume: Assume) -> Result<Vec<Part>, WhyNot> {
    let needs = needs.into();
    choose(fit::candidates(hosts, needs, assume), needs.request).ok_or_else(|| why::not(hosts, needs, assume))
}

/// Whether a request fits; [`place`] without the choice and the reasons.
pub fn fits<'a>(hosts: &Hosts, needs: impl Into<Needs<'a>>, assume: Assume) -> bool {
    fit::fits(hosts, needs.into(), assume)
}

/// The best `request.nodes` of the hosts that fit; none when they are fewer. A gang gets GPUs of one
/// kind where it can: its slowest member sets its pace.
fn choose(mut fitting: Vec<Candidate<'_>>, request: &ResourceRequest) -> Option<Vec<Part>> {
    let nodes = request.nodes as usize;
    let count: usize = fitting.iter().map(|candidate| candidate.alike.count()).sum();
    if count < nodes {
        return None;
    }
    fitting.sort_by_key(fit::Candidate::rank);
    if nodes > 1 {
        let mut kinds: BTreeMap<Vec<&str>, Vec<usize>> = BTreeMap::new();
        for (at, candidate) in fitting.iter().enumerate() {
            kinds.entry(candidate.models()).or_default().push(at);
        }
        // Of each kind of GPU as many of the best as are needed, and the equals of the last.
        let enough = |kind: Vec<usize>| {
            let (mut left, mut last) = (nodes, None);
            let taken = kind.into_iter().take_while(|at| {
                let candidate = &fitting[*at];
                let needed = left > 0 || last == Some(candidate.rank());
                left = left.saturating_sub(candidate.alike.count());
                last = Some(candidate.rank());
                needed
            });
            let taken: Vec<usize> = taken.collect();
            (left == 0).then_some(taken)
        };
        // Positions are in order of rank: the smallest last member is the best slowest one.
        let whole = kinds.into_values().filter_map(enough);
        if let Some(kind) = whole.min_by_key(|kind| (kind.last().copied(), kind.first().copied())) {
            let mut at = 0;
            fitting.retain(|_| {
                at += 1;
                kind.contains(&(at - 1))
            });
        }
    }
    let mut parts: Vec<Part> = Vec::with_capacity(nodes);
    // Of equals, the lowest names.
    for equals in fitting.chunk_by(|a, b| a.rank() == b.rank()) {
        let mut named: Vec<Part> = equals
            .iter()
            .flat_map(|candidate| candidate.parts(nodes))
            .collect();
        named.sort_unstable_by(|a, b| a.node.cmp(&b.node));
        named.truncate(nodes - parts.len());
        parts.extend(named);
    }
    parts.sort_unstable_by(|a, b| a.node.cmp(&b.node));
    Some(parts)
}

#[cfg(test)]
mod tests;
