//! The network that a gang gets: what all of its nodes can give.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::state::State;
use crate::model::gang_network::{RankNetwork, Reach, Subnet};
use crate::model::gpu::Inventory;
use crate::model::gpu_unit::Slice;
use crate::model::ids::Generation;
use crate::model::job::{Job, JobKind};
use crate::model::resources::{Allocation, NodeAllocation};

/// Spreads allocations that follow each other over the range (Knuth's multiplicative hashing): an address that has just
/// come free is not soon another's.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Addresses of gangs that are not free, as one pass knows them: whoever has any is looked for once, when the first gang
/// starts.
#[derive(Debug, Default)]
pub(super) struct Addresses(Option<BTreeSet<Ipv4Addr>>);

impl Addresses {
    /// What each rank of an allocation gets: the hosts' network where the job has these hosts whole and their operator
    /// allows it, else addresses of its own where all nodes can route them, else nothing.
    pub fn networks(
        &mut self,
        state: &State,
        job: &Job,
        allocation: &Allocation,
        generation: Generation,
    ) -> Vec<RankNetwork> {
        let count = allocation.nodes.len();
        let nothing = vec![RankNetwork::Own; count];
        if count < 2 {
            return nothing;
        }
        let inventories = allocation.nodes.iter().map(|part| {
            let record = state.nodes.get(&part.node)?;
            Some((part, &record.inventory))
        });
        let Some(nodes) = inventories.collect::<Option<Vec<_>>>() else {
            return nothing;
        };
        let is_open = |(part, inventory): &(&NodeAllocation, &Inventory)| {
            inventory.reach.host && inventory.reach.address.is_some() && is_whole(part, inventory)
        };
        if !is_root(state, job) && nodes.iter().all(is_open) {
            return vec![RankNetwork::Host; count];
        }
        if !nodes.iter().all(|(_, inventory)| can_route(&inventory.reach)) {
            return nothing;
        }
        self.give(state, generation, count).map_or(nothing, |given| {
            given.into_iter().map(RankNetwork::Routed).collect()
        })
    }

    /// So many addresses that nobody has; none: the range has not as many left.
    fn give(&mut self, state: &State, generation: Generation, count: usize) -> Option<Vec<Ipv4Addr>> {
        let subnet: Subnet = state.settings.gang_subnet;
        let taken = self.0.get_or_insert_with(|| taken(state));
        let usable = subnet.usable();
        let first = (generation.0.wrapping_mul(SPREAD) >> 32) as u32 % usable;
        let all = (0..usable).map(|n| subnet.nth((first + n) % usable));
        let given: Vec<Ipv4Addr> = all
            .filter(|address| !taken.contains(address))
            .take(count)
            .collect();
        if given.len() < count {
            return None;
        }
        taken.extend(&given);
        Some(given)
    }
}

fn can_route(reach: &Reach) -> bool {
    reach.routed && reach.address.is_some()
}

/// Nobody else has anything of the node's that counts: of one with GPUs all of them, of another all CPUs.
fn is_whole(part: &NodeAllocation, inventory: &Inventory) -> bool {
    if inventory.gpus.is_empty() {
        return part.cpus >= inventory.cpus;
    }
    let whole = part.gpus.iter().filter(|unit| unit.slice == Slice::Whole);
    whole.count() == inventory.gpus.len()
}

/// Root in a user namespace cannot have a network that is not the namespace's.
fn is_root(state: &State, job: &Job) -> bool {
    match (job.kind, &job.batch) {
        (JobKind::Batch, Some(batch)) => batch.container.root,
        (JobKind::Batch | JobKind::Interactive, _) => {
            let session = job.session.and_then(|id| state.sessions.get(&id));
            session.is_some_and(|session| session.spec.container.root)
        }
    }
}

/// Addresses of gangs that hold something, and what nodes report besides: jobs that no record knows have theirs, too. A
/// gang has all of its addresses until all of its nodes have released it: until then one of them may have routes to them.
pub(super) fn taken(state: &State) -> BTreeSet<Ipv4Addr> {
    let placed: BTreeSet<_> = state.placed_on.values().flatten().copied().collect();
    let placed = placed.into_iter().filter_map(|id| state.jobs.get(&id)?.placed());
    let ranks = placed.flat_map(|placed| placed.ranks.iter().map(|rank| rank.network));
    let reports = state.links.values().filter_map(|link| link.observed.as_ref());
    let seen = reports.flat_map(|observed| observed.jobs.iter().map(|job| job.network));
    ranks.chain(seen).filter_map(RankNetwork::address).collect()
}
