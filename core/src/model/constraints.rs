//! Which nodes may be a job's, and how they are to lie to each other.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::features::FeatureExpression;
use super::ids::NodeName;
use super::resources::ResourceRequest;

/// What a request says of its nodes beside what they have. The default says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Constraints {
    /// All of these are among the job's nodes.
    pub nodelist: BTreeSet<NodeName>,
    /// None of these is.
    pub exclude: BTreeSet<NodeName>,
    /// What each node's features are to be.
    pub features: Option<FeatureExpression>,
    /// Leaf switches that the nodes are on at most; 0: any number.
    pub switches: u32,
    /// Nodes are taken of each block by so many, which lie in it by rank; 0 or 1: one by one.
    pub segment: u32,
    /// The nodes follow each other in the order of all nodes' names.
    pub contiguous: bool,
}

impl Constraints {
    /// The names are all that a job of so many nodes gets: nothing else is looked at.
    pub fn names_all(&self, nodes: u32) -> bool {
        !self.nodelist.is_empty() && self.nodelist.len() >= nodes as usize
    }

    /// Nodes that are among others in a job of so many: it must have them, and gets more.
    pub fn must_have(&self, nodes: u32) -> Option<&BTreeSet<NodeName>> {
        (!self.nodelist.is_empty() && !self.names_all(nodes)).then_some(&self.nodelist)
    }

    /// Any nodes that fit will do, however they lie to each other.
    pub fn drop_arrangement(&mut self) {
        (self.switches, self.segment, self.contiguous) = (0, 0, false);
    }

    /// Not any nodes that fit will do: how they lie to each other matters.
    pub fn arrange(&self) -> bool {
        self.switches > 0 || self.segment > 1 || self.contiguous
    }
}

/// What a request insists on for some time only, counted from when its job was submitted: then it takes
/// what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Patience {
    /// On [`ResourceRequest::nvlink`]; none: for ever.
    pub nvlink: Option<Duration>,
    /// On [`Constraints::switches`]; none: for ever.
    pub switches: Option<Duration>,
}

impl ResourceRequest {
    /// The requests of which one is to be met, where all nodes are to have the same of several features: in the order in
    /// which they were written. None: there is no such choice.
    pub fn choices(&self) -> Option<Vec<Self>> {
        let Some(FeatureExpression::Same(choices)) = &self.constraints.features else {
            return None;
        };
        let with = |features: &FeatureExpression| {
            let mut one = self.clone();
            one.constraints.features = Some(features.clone());
            one
        };
        Some(choices.iter().map(with).collect())
    }

    /// The times after which it asks for less, the first one first.
    pub fn relaxes_after(&self) -> impl Iterator<Item = Duration> {
        let of = |one: &Self| {
            let nvlink = one.patience.nvlink.filter(|_| one.nvlink);
            let switches = one.patience.switches.filter(|_| one.constraints.switches > 0);
            nvlink.into_iter().chain(switches)
        };
        let mut times: Vec<Duration> = self.components().flat_map(of).collect();
        times.sort_unstable();
        times.into_iter()
    }

    /// What it asks for once its job has waited for so long.
    pub fn after_waiting(&self, waited: Duration) -> Cow<'_, Self> {
        if self.relaxes_after().next().is_none_or(|first| first > waited) {
            return Cow::Borrowed(self);
        }
        let over = |patience: Option<Duration>| patience.is_some_and(|patience| patience <= waited);
        let mut relaxed = self.clone();
        relaxed.nvlink &= !over(self.patience.nvlink);
        if over(self.patience.switches) {
            relaxed.constraints.switches = 0;
        }
        relaxed.more = self
            .more
            .iter()
            .map(|one| one.after_waiting(waited).into_owned())
            .collect();
        Cow::Owned(relaxed)
    }

    /// The least that it will ever ask for.
    pub fn at_last(&self) -> Cow<'_, Self> {
        self.after_waiting(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_wish_by_wish() {
        let minutes = Duration::from_mins;
        let request = ResourceRequest {
            nodes: 2,
            gpus_per_node: 2,
            nvlink: true,
            constraints: Constraints {
                switches: 1,
                segment: 2,
                ..Constraints::default()
            },
            patience: Patience {
                nvlink: Some(minutes(10)),
                switches: Some(minutes(5)),
            },
            ..ResourceRequest::default()
        };
        let times: Vec<Duration> = request.relaxes_after().collect();
        assert_eq!(times, [minutes(5), minutes(10)]);
        let after = |waited| {
            let asked = request.after_waiting(waited);
            (
                asked.nvlink,
                asked.constraints.switches,
                asked.constraints.segment,
            )
        };
        assert_eq!(after(minutes(4)), (true, 1, 2));
        assert_eq!(after(minutes(5)), (true, 0, 2));
        assert_eq!(after(minutes(10)), (false, 0, 2));
        let stubborn = ResourceRequest {
            patience: Patience::default(),
            ..request
        };
        assert_eq!(*stubborn.at_last(), stubborn);
        assert_eq!(stubborn.relaxes_after().count(), 0);
    }
}
