//! Placement: which GPUs of which nodes a request gets, or why none.
//!
//! On one host the best set of its free GPUs is chosen exactly: the worst link
//! of the set first, then the sum of its links, then the fewest NUMA nodes and
//! NICs, then the worth of what remains to requests to come ([`Table::best`]). Of
//! several hosts the one with the best links wins, then the one that is worth the
//! most afterwards to requests like the last ones ([`Recent`]). Hosts that are
//! alike are looked at once ([`Hosts`]).
//!
//! A gang gets hosts that are alike inside, and close to each other in the fabric: the lowest subtree
//! of switches that holds it, and there the fewest blocks. Which of the two comes first, and what is
//! exact: `gang.rs` and `pack.rs`. Components of a heterogeneous gang are placed all or none: `components.rs`.

mod bandwidth;
mod components;
pub mod cpus;
mod demand;
mod filter;
mod fit;
mod gang;
mod gpu_set;
mod groups;
mod hosts;
mod kind;
mod numbers;
mod pack;
mod prospect;
mod recent;
mod reserve;
mod seat;
mod shape;
mod slices;
mod table;
mod units;
mod vacant;
mod why;

pub use bandwidth::link_bandwidth;
pub use components::MAX_COMPONENTS;
pub use demand::Demand;
pub use hosts::{Assume, Hosts, Room};
pub use kind::{HostKind, MAX_GPUS};
pub use recent::{Outlook, Recent};
pub use reserve::Reserve;
pub use seat::{Seat, seat};
pub use shape::{Quality, Shape};
pub use slices::{Cut, MigLayout, MigRoom};
pub use table::{Best, MAX_TABLE_GPUS, Table};
pub use units::{PartRoom, Parts, Units};
pub use why::{Bytes, Refusal, WhyNot};

pub(crate) use units::room_of_shares;

use std::collections::BTreeSet;

use crate::model::gpu::Inventory;
use crate::model::ids::{NodeName, UserName};
use crate::model::partition::NodeSet;
use crate::model::resources::{NodeAllocation, ResourceRequest};

/// What a job's nodes must have.
#[derive(Clone, Copy, Debug)]
pub struct Needs<'a> {
    /// Of what they have.
    pub request: &'a ResourceRequest,
    /// Its user is to be root in the containers, which not every host can do.
    pub root: bool,
    /// Which nodes may be meant at all.
    pub within: Option<&'a NodeSet>,
    /// Whose it is; none: somebody's who holds nothing.
    pub user: Option<&'a UserName>,
}

impl<'a> From<&'a ResourceRequest> for Needs<'a> {
    fn from(request: &'a ResourceRequest) -> Self {
        Self {
            request,
            root: false,
            within: None,
            user: None,
        }
    }
}

impl<'a> Needs<'a> {
    /// The same of another request.
    fn with<'b>(self, request: &'b ResourceRequest) -> Needs<'b>
    where
        'a: 'b,
    {
        Needs { request, ..self }
    }

    /// One for each component of the request.
    fn components(self) -> impl Iterator<Item = Self> {
        self.request
            .components()
            .map(move |request| Self { request, ..self })
    }
}

/// What a request gets of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The node.
    pub node: NodeName,
    /// Which component of the request it is for.
    pub component: usize,
    /// GPU units.
    pub units: Units,
}

impl Part {
    /// What is held of the node, which has this inventory.
    pub fn allocation(&self, inventory: &Inventory, request: &ResourceRequest) -> NodeAllocation {
        let request = request.components().nth(self.component).unwrap_or(request);
        let (cpus, memory_bytes) = request.amounts_of(inventory.cpus, inventory.memory_bytes);
        NodeAllocation {
            node: self.node.clone(),
            gpus: self.units.held(inventory),
            cpus,
            memory_bytes,
        }
    }
}

/// Finds the best place for a request, whole or not at all.
///
/// Deterministic: the same hosts in any order and the same request give the
/// same answer. Ranks are in the order of the nodes' names, those that are close to each other in the
/// fabric together.
pub fn place<'a>(hosts: &Hosts, needs: impl Into<Needs<'a>>, assume: Assume) -> Result<Vec<Part>, WhyNot> {
    let needs = needs.into();
    find(hosts, needs, assume).ok_or_else(|| why_not(hosts, needs, assume))
}

/// Why a request, for which there is no place, has none.
pub fn why_not<'a>(hosts: &Hosts, needs: impl Into<Needs<'a>>, assume: Assume) -> WhyNot {
    let needs = needs.into();
    if let Some(choices) = needs.request.choices() {
        // What keeps it from the one that it could have some day.
        let some_day = |request: &&ResourceRequest| fits(hosts, needs.with(request), Assume::Emptied);
        let one = choices.iter().find(some_day).or(choices.first());
        return why_not(hosts, needs.with(one.unwrap_or(needs.request)), assume);
    }
    if needs.request.more.is_empty() {
        why::not(hosts, needs, assume)
    } else {
        why::not_all(hosts, needs, assume)
    }
}

/// [`place`] without the reasons.
pub fn find<'a>(hosts: &Hosts, needs: impl Into<Needs<'a>>, assume: Assume) -> Option<Vec<Part>> {
    let needs = needs.into();
    if let Some(choices) = needs.request.choices() {
        return choices
            .iter()
            .find_map(|one| find(hosts, needs.with(one), assume));
    }
    if !needs.request.more.is_empty() {
        return components::choose(hosts, needs, assume);
    }
    let fitting = fit::candidates(hosts, needs, assume);
    gang::choose(hosts, &fitting, needs.request, &BTreeSet::new())
}

/// Kinds of hosts that could be meant by a request, were all of them free, and how many of each: those that are in
/// service, if there are such. Where none could be it is all that have such a GPU, or all: the request is refused for
/// something else.
pub fn meant<'a>(hosts: &'a Hosts, needs: Needs<'_>) -> Vec<(&'a HostKind, usize)> {
    let request = needs.request;
    let one = |request: &ResourceRequest| {
        let kinds = |assume| fit::kinds(hosts, needs.with(request), assume);
        let mut kinds = [Assume::Emptied, Assume::Whole].into_iter().map(kinds);
        kinds.find(|kinds| !kinds.is_empty())
    };
    let choices = request.choices().into_iter().flatten();
    let kinds = choices
        .into_iter()
        .find_map(|choice| one(&choice))
        .or_else(|| one(request));
    if let Some(kinds) = kinds {
        let known = kinds.into_iter();
        return known
            .filter_map(|(kind, count)| Some((hosts.kind(kind)?, count)))
            .collect();
    }
    let all = hosts.kinds().filter(|host| host.cpus > 0);
    let all = all.filter(|host| request.gpus_per_node == 0 || host.of_model(&request.gpu_model) > 0);
    all.map(|host| (host, 1)).collect()
}

/// Nodes that may be of use to a request, by what they have and not by what of it is free.
pub struct Able<'a> {
    hosts: &'a Hosts,
    /// Numbers of their kinds; none: any.
    kinds: Option<BTreeSet<u32>>,
    filter: Option<filter::Filter<'a>>,
}

impl Able<'_> {
    /// A node may be.
    pub fn contains(&self, node: &NodeName) -> bool {
        let Self { hosts, kinds, filter } = self;
        let is_any = kinds.is_none() && filter.is_none();
        is_any
            || hosts.is_one(node, |kind, member| {
                kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind))
                    && filter.as_ref().is_none_or(|filter| filter.lack(member).is_none())
            })
    }
}

/// Which nodes may be of use to a request; of several components, and where there is a choice, all.
pub fn able<'a>(hosts: &'a Hosts, needs: Needs<'a>) -> Able<'a> {
    let simple = needs.request.more.is_empty() && needs.request.choices().is_none();
    let kinds = || {
        let able = fit::kinds(hosts, needs, Assume::Emptied).into_iter();
        able.map(|(kind, _)| kind).collect()
    };
    let several = hosts.kinds().nth(1).is_some();
    Able {
        hosts,
        kinds: (simple && several).then(kinds),
        filter: simple.then(|| filter::Filter::of(hosts, needs)).flatten(),
    }
}

/// Whether a request fits; [`place`] without the choice and the reasons.
pub fn fits<'a>(hosts: &Hosts, needs: impl Into<Needs<'a>>, assume: Assume) -> bool {
    let needs = needs.into();
    if let Some(choices) = needs.request.choices() {
        return choices.iter().any(|one| fits(hosts, needs.with(one), assume));
    }
    if needs.request.more.is_empty() {
        fit::fits(hosts, needs, assume)
    } else {
        components::choose(hosts, needs, assume).is_some()
    }
}

#[cfg(test)]
mod fabric_tests;
#[cfg(test)]
mod tests;
