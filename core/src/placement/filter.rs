//! Hosts that a request does not want, whatever they have.

use std::collections::BTreeSet;

use super::Needs;
use super::fit::Lack;
use super::hosts::{Hosts, Member};
use crate::model::ids::NodeName;

/// What a request says of hosts by name and feature.
#[derive(Debug)]
pub(super) struct Filter<'a> {
    /// These alone.
    only: Option<&'a BTreeSet<NodeName>>,
    exclude: &'a BTreeSet<NodeName>,
    /// Numbers of the sets of features that will do.
    features: Option<BTreeSet<u32>>,
}

impl<'a> Filter<'a> {
    /// None: it takes every host.
    pub fn of(hosts: &'a Hosts, needs: Needs<'a>) -> Option<Self> {
        let constraints = &needs.request.constraints;
        let features = constraints.features.as_ref().map(|wanted| {
            let sets = hosts.feature_sets();
            sets.filter(|(_, set)| wanted.holds(set))
                .map(|(number, _)| number)
                .collect()
        });
        let only = constraints
            .names_all(needs.request.nodes)
            .then_some(&constraints.nodelist);
        let filter = Self {
            only,
            exclude: &constraints.exclude,
            features,
        };
        let says_something = filter.only.is_some() || !filter.exclude.is_empty() || filter.features.is_some();
        says_something.then_some(filter)
    }

    /// Why a host is left out; none: it is not.
    pub fn lack(&self, member: &Member) -> Option<Lack> {
        if self.only.is_some_and(|only| !only.contains(&member.node)) {
            return Some(Lack::NotListed);
        }
        if self.exclude.contains(&member.node) {
            return Some(Lack::Excluded);
        }
        let features = self.features.as_ref();
        features
            .is_some_and(|features| !features.contains(&member.features))
            .then_some(Lack::Features)
    }
}
