//! When how much of each node comes free, as far as running jobs' own time goes: a first look, which tells when a
//! job cannot start yet. What it cannot tell, how GPUs lie to each other and what is promised, placement does.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use crate::model::ids::NodeName;
use crate::model::time::Timestamp;

/// An amount of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// GPUs, thousandths.
    pub gpu_milli: u64,
    /// Hardware threads.
    pub cpus: u64,
    /// Bytes.
    pub memory: u64,
    /// 1: nothing of it is held from then on.
    pub idle: u64,
}

impl Free {
    /// The lesser of each.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self {
            gpu_milli: self.gpu_milli.min(other.gpu_milli),
            cpus: self.cpus.min(other.cpus),
            memory: self.memory.min(other.memory),
            idle: self.idle.min(other.idle),
        }
    }

    fn holds(self, wanted: Self) -> bool {
        self.gpu_milli >= wanted.gpu_milli
            && self.cpus >= wanted.cpus
            && self.memory >= wanted.memory
            && self.idle >= wanted.idle
    }

    fn add(&mut self, freed: Self) {
        self.gpu_milli += freed.gpu_milli;
        self.cpus += freed.cpus;
        self.memory = self.memory.saturating_add(freed.memory);
        self.idle = self.idle.saturating_add(freed.idle);
    }
}

/// What of each node comes free when.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// By time, in order.
    nodes: BTreeMap<NodeName, Vec<(Timestamp, Free)>>,
    /// Nodes of which something comes free, but for what is free from the beginning.
    ends: BTreeMap<Timestamp, BTreeSet<NodeName>>,
}

impl Profile {
    /// Takes note of what of a node is free now, and what comes free when, in place of what was known of it.
    pub fn set_node(&mut self, node: &NodeName, now: Timestamp, free: Free, freed: Vec<(Timestamp, Free)>) {
        let mut events = freed;
        events.sort_by_key(|(at, _)| *at);
        for (at, _) in &events {
            self.ends.entry(*at).or_default().insert(node.clone());
        }
        events.insert(0, (now, free));
        let former = self.nodes.insert(node.clone(), events);
        let known = &self.nodes[node];
        for (at, _) in former.into_iter().flatten().skip(1) {
            if known[1..].iter().any(|(end, _)| *end == at) {
                continue;
            }
            if let Some(nodes) = self.ends.get_mut(&at) {
                nodes.remove(node);
                if nodes.is_empty() {
                    self.ends.remove(&at);
                }
            }
        }
    }

    /// When something comes free, in order.
    pub fn ends(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.ends.keys().copied()
    }

    /// Nodes of which something comes free at a time.
    pub fn ending_at(&self, at: Timestamp) -> impl Iterator<Item = &NodeName> {
        self.ends.get(&at).into_iter().flatten()
    }

    /// Nodes of which something comes free after a time, and until another; none: since the beginning.
    pub fn ending(&self, after: Option<Timestamp>, until: Timestamp) -> impl Iterator<Item = &NodeName> {
        let from = after.map_or(Unbounded, Excluded);
        // A range that ends before it begins is none.
        let is_one = after.is_none_or(|after| after < until);
        let ends = is_one.then(|| self.ends.range((from, Included(until))));
        ends.into_iter().flatten().flat_map(|(_, nodes)| nodes)
    }

    /// The earliest time at which so many nodes have so much free; none: there are fewer.
    pub fn free_at(&self, wanted: Free, nodes: usize) -> Option<Timestamp> {
        let mut times: Vec<Timestamp> = Vec::new();
        for events in self.nodes.values() {
            let mut free = Free::default();
            let enough = events.iter().find(|(_, freed)| {
                free.add(*freed);
                free.holds(wanted)
            });
            times.extend(enough.map(|(at, _)| *at));
        }
        let last = nodes.checked_sub(1).filter(|last| *last < times.len())?;
        Some(*times.select_nth_unstable(last).1)
    }
}
