//! A heterogeneous gang: components that each ask for nodes of their own, all placed or none, on distinct nodes.
//!
//! Components are placed one after the other, the choosiest first. Before each, hosts are set aside for those
//! that come after it ([`Cover`]): as few as can be of those that it could use itself, and the ones that it likes
//! least. So there is a place if and only if this finds one, as long as any hosts that fit will do for each: what is
//! set aside takes the fewest hosts from it that any placement of the others leaves it without. Of a component that
//! also asks how its hosts lie to each other a place may be missed, where another component needs some of the same
//! hosts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::fit::{self, Candidate};
use super::gang;
use super::hosts::Hosts;
use super::{Assume, Needs, Part};
use crate::model::ids::NodeName;

/// Components of one request: the hosts that fit are told apart by which of them they fit.
pub const MAX_COMPONENTS: usize = 8;

/// One component, and the hosts that fit it.
struct Component<'a> {
    needs: Needs<'a>,
    fitting: Vec<Candidate<'a>>,
    /// The better ones first.
    names: Vec<&'a NodeName>,
}

/// A place for every component, in their order; none: there is none.
pub(super) fn choose(hosts: &Hosts, needs: Needs<'_>, assume: Assume) -> Option<Vec<Part>> {
    let components: Vec<Component<'_>> = needs
        .components()
        .map(|needs| {
            let mut fitting = fit::all_candidates(hosts, needs, assume);
            fitting.sort_by_key(Candidate::rank);
            let names = fitting.iter().flat_map(Candidate::nodes).collect();
            Component {
                needs,
                fitting,
                names,
            }
        })
        .collect();
    let fits = fits(&components);
    let mut order: Vec<usize> = (0..components.len()).collect();
    order.sort_by_key(|at| {
        let component = &components[*at];
        (!gang::insists(component.needs.request), component.names.len())
    });
    let mut taken: BTreeSet<NodeName> = BTreeSet::new();
    let mut parts: Vec<(usize, Vec<Part>)> = Vec::new();
    while let Some(at) = (!order.is_empty()).then(|| order.remove(0)) {
        let component = &components[at];
        let aside = set_aside(&components, &fits, &taken, at, &order)?;
        let mut left_out: BTreeSet<&NodeName> = taken.iter().chain(aside).collect();
        // What another component names is not this one's, even when it is not set aside.
        left_out.extend(
            fits.iter()
                .filter(|(_, fits)| *fits & 1 << at == 0)
                .map(|(name, _)| *name),
        );
        let chosen = gang::choose(hosts, &component.fitting, component.needs.request, &left_out)?;
        taken.extend(chosen.iter().map(|part| part.node.clone()));
        parts.push((at, chosen));
    }
    parts.sort_by_key(|(at, _)| *at);
    let of = |(at, parts): (usize, Vec<Part>)| {
        parts.into_iter().map(move |part| Part {
            component: at,
            ..part
        })
    };
    Some(parts.into_iter().flat_map(of).collect())
}

/// Which components each host can be given to, as bits. A node that one of them names is that one's alone.
fn fits<'a>(components: &[Component<'a>]) -> BTreeMap<&'a NodeName, u32> {
    let mut fits: BTreeMap<&NodeName, u32> = BTreeMap::new();
    for (at, component) in components.iter().enumerate() {
        for name in &component.names {
            *fits.entry(*name).or_default() |= 1 << at;
        }
    }
    for (at, component) in components.iter().enumerate() {
        for name in &component.needs.request.constraints.nodelist {
            if let Some(fits) = fits.get_mut(name) {
                *fits &= 1 << at;
            }
        }
    }
    fits
}

/// Hosts for the components that come after one; none: they are too few.
fn set_aside<'a>(
    components: &[Component<'a>],
    fits: &BTreeMap<&'a NodeName, u32>,
    taken: &BTreeSet<NodeName>,
    at: usize,
    others: &[usize],
) -> Option<Vec<&'a NodeName>> {
    let mut cover = Cover::default();
    for other in others {
        let nodes = components[*other].needs.request.nodes as usize;
        cover.components.push((1 << other, nodes, BTreeMap::new()));
    }
    // First the hosts that this one cannot use, then those that it likes least.
    let liked: BTreeMap<&NodeName, usize> = components[at].names.iter().copied().zip(1..).collect();
    let mut free: Vec<(&'a NodeName, u32)> = fits.iter().map(|(name, fits)| (*name, *fits)).collect();
    free.retain(|(name, _)| !taken.contains(*name));
    free.sort_by_key(|(name, fits)| {
        let useful = fits >> at & 1 == 1;
        (useful, Reverse(liked.get(name).copied()))
    });
    let mut aside = Vec::new();
    for (name, fits) in free {
        if cover.is_whole() {
            break;
        }
        if cover.take(fits) {
            aside.push(name);
        }
    }
    cover.is_whole().then_some(aside)
}

/// Hosts given to components, so that as many as possible are of use: a matching that grows along augmenting paths.
/// Hosts that are offered first are used before others; what is used then is the best set in that order, since the
/// sets of hosts that can be of use together are a matroid's.
#[derive(Default)]
struct Cover {
    /// Its bit, how many hosts it wants still, and how many it has of each kind.
    components: Vec<(u32, usize, BTreeMap<u32, usize>)>,
}

impl Cover {
    fn is_whole(&self) -> bool {
        self.components.iter().all(|(_, wanted, _)| *wanted == 0)
    }

    /// Gives a host of a kind to one of the components that it fits, which may pass on one that it has. False: nobody
    /// has a use for it.
    fn take(&mut self, kind: u32) -> bool {
        // From which component, with a host of which kind, each was reached.
        let mut reached: BTreeMap<usize, Option<(usize, u32)>> = BTreeMap::new();
        let mut next: Vec<usize> = Vec::new();
        for at in 0..self.components.len() {
            if self.components[at].0 & kind != 0 {
                reached.insert(at, None);
                next.push(at);
            }
        }
        while let Some(at) = next.pop() {
            if self.components[at].1 > 0 {
                self.pass_on(at, kind, &reached);
                return true;
            }
            let has: Vec<u32> = self.components[at].2.keys().copied().collect();
            for (kind, to) in has
                .into_iter()
                .flat_map(|kind| (0..self.components.len()).map(move |to| (kind, to)))
            {
                if self.components[to].0 & kind != 0 && !reached.contains_key(&to) {
                    reached.insert(to, Some((at, kind)));
                    next.push(to);
                }
            }
        }
        false
    }

    /// Moves hosts along the way to a component that wants one more.
    fn pass_on(&mut self, last: usize, new: u32, reached: &BTreeMap<usize, Option<(usize, u32)>>) {
        self.components[last].1 -= 1;
        let mut to = last;
        while let Some((from, kind)) = reached[&to] {
            *self.components[to].2.entry(kind).or_default() += 1;
            let has = self.components[from].2.entry(kind).or_default();
            *has -= 1;
            if *has == 0 {
                self.components[from].2.remove(&kind);
            }
            to = from;
        }
        *self.components[to].2.entry(new).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::constraints::Constraints;
    use crate::model::gpu::Inventory;
    use crate::model::resources::ResourceRequest;
    use crate::placement::{Room, fits, place};

    fn feature(at: usize) -> String {
        format!("f{at}")
    }

    fn hosts(kinds: &[u32]) -> Hosts {
        let mut hosts = Hosts::default();
        for (number, kind) in kinds.iter().enumerate() {
            let name: NodeName = format!("n{number}").parse().expect("a name");
            let features = (0..8).filter(|at| kind >> at & 1 == 1).map(feature);
            let inventory = Inventory {
                cpus: 8,
                memory_bytes: 1 << 30,
                features: features.collect(),
                ..Inventory::default()
            };
            hosts.set_inventory(&name, &inventory);
            let room = Room {
                cpus: 8,
                memory_bytes: 1 << 30,
                ..Room::default()
            };
            hosts.set_room(&name, room);
        }
        hosts
    }

    fn request(at: usize, nodes: u32) -> ResourceRequest {
        ResourceRequest {
            nodes,
            constraints: Constraints {
                features: Some(feature(at).parse().expect("a feature")),
                ..Constraints::default()
            },
            ..ResourceRequest::default()
        }
    }

    /// Tries every host for every component.
    fn possible(kinds: &[u32], wanted: &mut [u32]) -> bool {
        let Some((kind, rest)) = kinds.split_first() else {
            return wanted.iter().all(|nodes| *nodes == 0);
        };
        if possible(rest, wanted) {
            return true;
        }
        for at in 0..wanted.len() {
            if kind >> at & 1 == 1 && wanted[at] > 0 {
                wanted[at] -= 1;
                let found = possible(rest, wanted);
                wanted[at] += 1;
                if found {
                    return true;
                }
            }
        }
        false
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

        #[test]
        fn components_that_compete_are_placed_whenever_they_can_be(
            kinds in proptest::collection::vec(0u32..16, 0..9),
            mut wanted in proptest::collection::vec(1u32..4, 2..=4),
        ) {
            let hosts = hosts(&kinds);
            let requests: Vec<ResourceRequest> = wanted.iter().enumerate().map(|(at, nodes)| request(at, *nodes)).collect();
            let (first, more) = requests.split_first().expect("two at least");
            let request = ResourceRequest { more: more.to_vec(), ..first.clone() };
            let needs = Needs::from(&request);
            let placed = place(&hosts, needs, Assume::Now);
            let expected = possible(&kinds, &mut wanted);
            prop_assert_eq!(placed.is_ok(), expected);
            prop_assert_eq!(fits(&hosts, needs, Assume::Now), expected);
            let Ok(parts) = placed else { return Ok(()) };
            let names: BTreeSet<&NodeName> = parts.iter().map(|part| &part.node).collect();
            prop_assert_eq!(names.len(), parts.len(), "distinct nodes");
            for (at, nodes) in wanted.iter().enumerate() {
                let own: Vec<&Part> = parts.iter().filter(|part| part.component == at).collect();
                prop_assert_eq!(own.len(), *nodes as usize);
                for part in own {
                    let number: usize = part.node.as_str()[1..].parse().expect("a number");
                    prop_assert!(kinds[number] >> at & 1 == 1, "a host that fits");
                }
            }
            prop_assert!(parts.is_sorted_by_key(|part| part.component), "ranks in the order of components");
        }
    }

    #[test]
    fn a_node_that_one_component_names_is_no_other_s() {
        let hosts = hosts(&[3, 3, 3]);
        let named = |at: usize, nodes: u32, list: &str| {
            let mut request = request(at, nodes);
            request.constraints.nodelist = crate::model::host_list::parse(list).expect("a host list");
            request
        };
        let request = ResourceRequest {
            more: vec![named(1, 2, "n0")],
            ..request(0, 1)
        };
        let parts = place(&hosts, &request, Assume::Now).expect("a place");
        let of = |component: usize| {
            let own = parts.iter().filter(move |part| part.component == component);
            own.map(|part| part.node.to_string()).collect::<Vec<_>>()
        };
        assert!(of(1).contains(&"n0".to_owned()));
        assert!(!of(0).contains(&"n0".to_owned()));
    }
}
