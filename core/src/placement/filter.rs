//! Hosts that a request does not want, whatever they have.

use std::collections::BTreeSet;

use super::Needs;
use super::fit::Lack;
use super::groups::Member;
use super::hosts::Hosts;
use crate::model::features::FeatureExpression;
use crate::model::ids::NodeName;
use crate::model::partition::NodeSet;

/// What a request says of hosts by name and feature.
#[derive(Debug)]
pub(super) struct Filter<'a> {
    /// These alone.
    only: Option<&'a BTreeSet<NodeName>>,
    exclude: &'a BTreeSet<NodeName>,
    /// Numbers of the sets of features that will do.
    features: Option<BTreeSet<u32>>,
    within: Option<Within<'a>>,
}

/// The nodes that may be meant at all.
#[derive(Debug)]
struct Within<'a> {
    nodes: &'a NodeSet,
    features: Option<BTreeSet<u32>>,
}

impl<'a> Filter<'a> {
    /// None: it takes every host.
    pub fn of(hosts: &'a Hosts, needs: Needs<'a>) -> Option<Self> {
        let constraints = &needs.request.constraints;
        let with = |wanted: &FeatureExpression| {
            let sets = hosts.feature_sets();
            let right = sets.filter(|(_, set)| wanted.holds(set));
            right.map(|(number, _)| number).collect::<BTreeSet<u32>>()
        };
        let features = constraints.features.as_ref().map(with);
        let within = needs.within.filter(|nodes| !nodes.is_all());
        let within = within.map(|nodes| Within {
            nodes,
            features: nodes.features.as_ref().map(with),
        });
        let only = constraints
            .names_all(needs.request.nodes)
            .then_some(&constraints.nodelist);
        let filter = Self {
            only,
            exclude: &constraints.exclude,
            features,
            within,
        };
        let says_something = filter.only.is_some()
            || !filter.exclude.is_empty()
            || filter.features.is_some()
            || filter.within.is_some();
        says_something.then_some(filter)
    }

    /// Why a host is left out; none: it is not.
    pub fn lack(&self, member: &Member) -> Option<Lack> {
        if self.within.as_ref().is_some_and(|within| !within.has(member)) {
            return Some(Lack::NotInPartition);
        }
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

impl Within<'_> {
    fn has(&self, member: &Member) -> bool {
        let NodeSet {
            only,
            without,
            features: _,
        } = self.nodes;
        let features = self.features.as_ref();
        only.as_ref().is_none_or(|only| only.contains(&member.node))
            && !without.contains(&member.node)
            && features.is_none_or(|features| features.contains(&member.features))
    }
}
