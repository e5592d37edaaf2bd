//! When how much of each node comes free, as far as running jobs' own time goes: a first look, which tells when a
//! job cannot start yet. What it cannot tell, how GPUs lie to each other and what is promised, placement does.

use std::collections::BTreeMap;

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
}

impl Free {
    /// The lesser of each.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self {
            gpu_milli: self.gpu_milli.min(other.gpu_milli),
            cpus: self.cpus.min(other.cpus),
            memory: self.memory.min(other.memory),
        }
    }

    fn holds(self, wanted: Self) -> bool {
        self.gpu_milli >= wanted.gpu_milli && self.cpus >= wanted.cpus && self.memory >= wanted.memory
    }

    fn add(&mut self, freed: Self) {
        self.gpu_milli += freed.gpu_milli;
        self.cpus += freed.cpus;
        self.memory = self.memory.saturating_add(freed.memory);
    }
}

/// What of each node comes free when.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    nodes: BTreeMap<NodeName, Vec<(Timestamp, Free)>>,
    ends: Vec<Timestamp>,
}

impl Profile {
    /// A node, and what of it is free now.
    pub fn add_node(&mut self, node: NodeName, now: Timestamp, free: Free) {
        self.nodes.insert(node, vec![(now, free)]);
    }

    /// Something of a node comes free. Unknown nodes are not counted.
    pub fn add_end(&mut self, node: &NodeName, at: Timestamp, freed: Free) {
        if let Some(events) = self.nodes.get_mut(node) {
            events.push((at, freed));
            self.ends.push(at);
        }
    }

    /// To be called when everything is added.
    pub fn sort(&mut self) {
        for events in self.nodes.values_mut() {
            events.sort_by_key(|(at, _)| *at);
        }
        self.ends.sort_unstable();
        self.ends.dedup();
    }

    /// When something comes free, in order.
    pub fn ends(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.ends.iter().copied()
    }

    /// The nodes that will have so much free, the earliest first, and from when on.
    pub fn free_at(&self, wanted: Free) -> Vec<(Timestamp, NodeName)> {
        let mut found: Vec<(Timestamp, NodeName)> = Vec::new();
        for (node, events) in &self.nodes {
            let mut free = Free::default();
            for (at, freed) in events {
                free.add(*freed);
                if free.holds(wanted) {
                    found.push((*at, node.clone()));
                    break;
                }
            }
        }
        found.sort_unstable();
        found
    }
}
