//! What comes free when, as far as running jobs' own time goes.

use std::collections::{BTreeMap, BTreeSet};

use imbl::OrdSet;

use super::backfill::usage_between;
use super::state::State;
use crate::model::ids::NodeName;
use crate::model::resources::ResourceRequest;
use crate::model::time::Timestamp;
use crate::placement::Hosts;
use crate::queue::profile::{Free, Profile};

/// Times at which hosts are remembered: more are worked out each time.
const MAX_REMEMBERED: usize = 64;

/// What comes free of each node, and hosts as they are then. What is promised is not looked at.
pub(super) struct Future {
    now: Timestamp,
    profile: Profile,
    /// Hosts by the time as which they are.
    hosts: BTreeMap<Timestamp, Hosts>,
    /// Of these nodes something was given away since.
    stale: BTreeSet<NodeName>,
}

impl Future {
    /// As it is to be expected now.
    pub fn of(state: &State, now: Timestamp) -> Self {
        let mut future = Self {
            now,
            profile: Profile::default(),
            hosts: BTreeMap::new(),
            stale: BTreeSet::new(),
        };
        for node in state.nodes.keys() {
            future.look(state, node);
        }
        future
    }

    /// Something was given away of these nodes.
    pub fn changed(&mut self, nodes: &[NodeName]) {
        self.stale.extend(nodes.iter().cloned());
    }

    /// The earliest time at which there could be room for a request, as far as counting tells; none: there never is.
    pub fn first(&mut self, state: &State, asked: &ResourceRequest) -> Option<Timestamp> {
        self.refresh(state);
        let wanted = |request: &ResourceRequest| Free {
            gpu_milli: u64::from(request.gpus_per_node) * u64::from(request.unit.milli()),
            cpus: request.cpus_per_node.into(),
            memory: request.memory_bytes_per_node,
            idle: u64::from(request.wants_idle()),
        };
        // Of several components the least demanding one says when a node may be of use.
        let least = asked.components().map(wanted).reduce(Free::least)?;
        let nodes = usize::try_from(asked.all_nodes()).unwrap_or(usize::MAX);
        self.profile.free_at(least, nodes)
    }

    /// When something comes free, in order.
    pub fn ends(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.profile.ends()
    }

    /// Whether something comes free at a time, and of none of some nodes.
    pub fn is_only_elsewhere(&self, at: Timestamp, on: impl Fn(&NodeName) -> bool) -> bool {
        let mut nodes = self.profile.ending_at(at).peekable();
        nodes.peek().is_some() && !nodes.any(on)
    }

    /// Hosts as they are at a time.
    pub fn hosts_at(&mut self, state: &State, at: Timestamp) -> &Hosts {
        self.refresh(state);
        let known = self.hosts.range(..=at).next_back();
        let known = known.map(|(known, hosts)| (*known, hosts.clone()));
        if known.as_ref().is_none_or(|(known, _)| *known < at) {
            let (since, mut hosts) =
                known.map_or((None, state.hosts.clone()), |(at, hosts)| (Some(at), hosts));
            let nodes: BTreeSet<&NodeName> = self.profile.ending(since, at).collect();
            for node in nodes {
                set_room(state, &mut hosts, node, self.now, at);
            }
            if self.hosts.len() >= MAX_REMEMBERED {
                // The first ones are what others are worked out from.
                self.hosts.pop_last();
            }
            self.hosts.insert(at, hosts);
        }
        &self.hosts[&at]
    }

    fn refresh(&mut self, state: &State) {
        for node in std::mem::take(&mut self.stale) {
            self.look(state, &node);
            for (at, hosts) in &mut self.hosts {
                set_room(state, hosts, &node, self.now, *at);
            }
        }
    }

    /// Looks at what of a node is free, and comes free.
    fn look(&mut self, state: &State, name: &NodeName) {
        let node = state.nodes.get(name);
        let Some(node) = node.filter(|node| state.unavailable(node).is_none()) else {
            return;
        };
        let inventory = &node.inventory;
        let usage = state.usage.get(name);
        let held = usage.iter().flat_map(|usage| &usage.units);
        let held: u64 = held.map(|held| u64::from(held.slice.milli())).sum();
        let (cpus, memory) = usage.map_or((0, 0), |usage| (usage.cpus, usage.memory));
        let mut free = Free {
            gpu_milli: (inventory.gpus.len() as u64 * 1_000).saturating_sub(held),
            cpus: u64::from(inventory.cpus).saturating_sub(cpus),
            memory: inventory.memory_bytes.saturating_sub(memory),
            idle: 0,
        };
        let placed_on = state.placed_on.get(name);
        // One more is put in front of them.
        let mut freed: Vec<(Timestamp, Free)> = Vec::with_capacity(placed_on.map_or(0, OrdSet::len) + 1);
        // Until when somebody holds something; none: for ever.
        let mut held_until = Some(self.now);
        for id in placed_on.into_iter().flatten() {
            let Some(placed) = state.jobs.get(id).and_then(|job| job.placed()) else {
                continue;
            };
            let Some(end) = state.end_of(placed, self.now) else {
                held_until = None;
                continue;
            };
            held_until = held_until.map(|held| held.max(end));
            for part in placed.unreleased().filter(|part| part.node == *name) {
                let units = part.gpus.iter();
                let free = Free {
                    gpu_milli: units.map(|unit| u64::from(unit.slice.milli())).sum(),
                    cpus: part.cpus.into(),
                    memory: part.memory_bytes,
                    idle: 0,
                };
                freed.push((end, free));
            }
        }
        if let Some(at) = held_until {
            let last = freed.iter_mut().filter(|(end, _)| *end == at).last();
            last.map_or(&mut free, |(_, freed)| freed).idle = 1;
        }
        self.profile.set_node(name, self.now, free, freed);
    }
}

/// Takes note of what of a node is free at a time.
fn set_room(state: &State, hosts: &mut Hosts, node: &NodeName, now: Timestamp, at: Timestamp) {
    let usage = usage_between(state, node, now, (at, at), &[], &BTreeSet::new());
    if let Some(room) = state.room_beside(node, Some(&usage)) {
        hosts.set_room(node, room);
    }
}
