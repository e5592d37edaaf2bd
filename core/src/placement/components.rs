//! A heterogeneous gang: components that each ask for nodes of their own, all placed or none, on distinct nodes.
//!
//! Components are placed one after the other, the choosiest first. Before each, hosts are set aside for those
//! that come after it ([`Cover`]): as few as can be of those that it could use itself, and the ones that it likes
//! least. So there is a place if and only if this finds one, as long as any hosts that fit will do for each: what is
//! set aside takes the fewest hosts from it that any placement of the others leaves it without.
//!
//! Where a component also asks how its hosts lie to each other, these may be the wrong ones. Then sets of hosts are
//! tried for it one after the other, of hosts that are alike in all that matters one set for all ([`Sets`]), until the
//! others have a place too. On clusters of some dozen hosts that is exact; on larger ones [`MAX_LOOKS`] ends it, and
//! a place may be missed where components need the same few hosts.

mod sets;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use self::sets::{Sets, Tried};
use super::fit::{self, Candidate};
use super::gang;
use super::hosts::Hosts;
use super::{Assume, Needs, Part};
use crate::model::ids::NodeName;

/// Components of one request: the hosts that fit are told apart by which of them they fit.
pub const MAX_COMPONENTS: usize = 8;

/// Hosts that are looked at, counted each time, while sets are tried: some ten milliseconds.
const MAX_LOOKS: usize = 1 << 14;

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
    let mut search = Search {
        hosts,
        components: &components,
        fits: &fits,
        looks: 0,
    };
    let mut parts = search.place(&order, &BTreeSet::new())?;
    parts.sort_by_key(|(at, _)| *at);
    let of = |(at, parts): (usize, Vec<Part>)| {
        parts.into_iter().map(move |part| Part {
            component: at,
            ..part
        })
    };
    Some(parts.into_iter().flat_map(of).collect())
}

struct Search<'a> {
    hosts: &'a Hosts,
    components: &'a [Component<'a>],
    fits: &'a BTreeMap<&'a NodeName, u32>,
    looks: usize,
}

impl Search<'_> {
    /// Places for these components on hosts that are not taken.
    fn place(&mut self, order: &[usize], taken: &BTreeSet<NodeName>) -> Option<Vec<(usize, Vec<Part>)>> {
        let Some((at, others)) = order.split_first() else {
            return Some(Vec::new());
        };
        let (at, component) = (*at, &self.components[*at]);
        let aside = set_aside(self.components, self.fits, taken, at, others)?;
        let aside: BTreeSet<&NodeName> = aside.into_iter().collect();
        // What another component names is not this one's, even when it is not set aside.
        let free = component.names.iter().copied();
        let free: Vec<&NodeName> = free
            .filter(|name| self.fits[*name] >> at & 1 == 1 && !taken.contains(*name))
            .collect();
        let first: BTreeSet<&NodeName> = free
            .iter()
            .copied()
            .filter(|name| !aside.contains(*name))
            .collect();
        if let Some(places) = self.place_on(&first, at, others, taken) {
            return Some(places);
        }
        let request = component.needs.request;
        let possible = || self.choose(at, &free.iter().copied().collect(), taken).is_some();
        if !gang::insists(request) || others.is_empty() || !possible() {
            return None;
        }
        let sets = if request.constraints.contiguous {
            Sets::of_neighbours(self.hosts, &free, request.nodes as usize)
        } else {
            let mut others = self.components.iter();
            let apart = others.any(|other| other.needs.request.constraints.contiguous);
            Sets::of_alike(component, self.fits, &free, apart)
        };
        sets.find_map(request.nodes as usize, |set| {
            self.looks += component.names.len();
            if self.looks > MAX_LOOKS {
                return Tried::Enough;
            }
            self.place_on(&set, at, others, taken)
                .map_or(Tried::InVain, Tried::Found)
        })
    }

    /// Places for a component on some of these hosts, and for the others on what is left.
    fn place_on(
        &mut self,
        on: &BTreeSet<&NodeName>,
        at: usize,
        others: &[usize],
        taken: &BTreeSet<NodeName>,
    ) -> Option<Vec<(usize, Vec<Part>)>> {
        let chosen = self.choose(at, on, taken)?;
        let mut taken = taken.clone();
        taken.extend(chosen.iter().map(|part| part.node.clone()));
        let mut places = self.place(others, &taken)?;
        places.push((at, chosen));
        Some(places)
    }

    /// The best of these hosts for a component: of those that are no slower inside, on the lowest switch above what
    /// others have taken.
    fn choose(&self, at: usize, on: &BTreeSet<&NodeName>, taken: &BTreeSet<NodeName>) -> Option<Vec<Part>> {
        let component = &self.components[at];
        let choose = |will_do: &dyn Fn(&NodeName) -> bool| {
            let names = component.names.iter().copied();
            let left_out = names
                .filter(|name| !on.contains(name) || !will_do(name))
                .collect();
            let request = component.needs.request;
            gang::choose_paced(self.hosts, &component.fitting, request, &left_out)
        };
        let (pace, chosen) = choose(&|_| true)?;
        let fabric = self.hosts.fabric();
        let near = fabric.switches_above(taken).into_iter().find_map(|switch| {
            let found = choose(&|name| fabric.is_below(name, switch))?;
            (found.0 <= pace).then_some(found.1)
        });
        Some(near.unwrap_or(chosen))
    }
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

    use std::sync::Arc;

    use super::*;
    use crate::model::constraints::Constraints;
    use crate::model::fabric::{BlockText, Fabric, FabricText, SwitchText};
    use crate::model::gpu::Inventory;
    use crate::model::resources::ResourceRequest;
    use crate::placement::{Room, fits, place};

    fn feature(at: usize) -> String {
        format!("f{at}")
    }

    fn hosts(kinds: &[u32]) -> Hosts {
        hosts_over(Arc::default(), kinds)
    }

    fn hosts_over(fabric: Arc<Fabric>, kinds: &[u32]) -> Hosts {
        let mut hosts = Hosts::over(fabric);
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

    /// How a component asks its hosts to lie.
    fn wishes() -> impl Strategy<Value = (u32, u32, bool)> {
        prop_oneof![
            Just((0, 0, false)),
            Just((1, 0, false)),
            Just((2, 0, false)),
            Just((0, 2, false)),
            Just((1, 2, false)),
            Just((0, 0, true)),
        ]
    }

    /// Tries every choice of hosts for one component after the other.
    fn possible_as_they_lie(hosts: &[(u32, u32, u32)], requests: &[&ResourceRequest], taken: u32) -> bool {
        let Some((at, request)) = requests.len().checked_sub(1).map(|at| (at, requests[at])) else {
            return true;
        };
        let lies_well = |set: u32| {
            let chosen: Vec<usize> = (0..hosts.len()).filter(|host| set >> host & 1 == 1).collect();
            let leaves: BTreeSet<u32> = chosen.iter().map(|host| hosts[*host].1).collect();
            let mut blocks: BTreeMap<u32, u32> = BTreeMap::new();
            for host in &chosen {
                *blocks.entry(hosts[*host].2).or_default() += 1;
            }
            let Constraints {
                switches,
                segment,
                contiguous,
                ..
            } = request.constraints;
            chosen.iter().all(|host| hosts[*host].0 >> at & 1 == 1)
                && (switches == 0 || leaves.len() <= switches as usize)
                && blocks.values().all(|count| count % segment.max(1) == 0)
                && (!contiguous || chosen.last().unwrap_or(&0) - chosen[0] + 1 == chosen.len())
        };
        (1..1_u32 << hosts.len())
            .filter(|set| set & taken == 0 && set.count_ones() == request.nodes && lies_well(*set))
            .any(|set| possible_as_they_lie(hosts, &requests[..at], taken | set))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

        /// Of kinds, on leaf switches, in blocks.
        #[test]
        fn components_that_ask_how_their_hosts_lie_are_placed_whenever_they_can_be(
            nodes in proptest::collection::vec((0u32..8, 0u32..3, 0u32..3), 1..8),
            wanted in proptest::collection::vec((1u32..4, wishes()), 2..=3),
        ) {
            let list = |at: usize, of: u32| {
                let own = nodes.iter().enumerate().filter(|(_, node)| if at == 0 { node.1 == of } else { node.2 == of });
                own.map(|(number, _)| format!("n{number}")).chain([format!("x{of}")]).collect::<Vec<_>>().join(",")
            };
            let fabric = FabricText {
                switch: (0..3).map(|leaf| SwitchText { name: format!("s{leaf}"), nodes: list(0, leaf), switches: String::new() }).collect(),
                block: (0..3).map(|block| BlockText { name: format!("b{block}"), nodes: list(1, block) }).collect(),
            };
            let kinds: Vec<u32> = nodes.iter().map(|node| node.0).collect();
            let fabric = Fabric::try_from(fabric).expect("a fabric");
            let hosts = hosts_over(fabric.into(), &kinds);
            let requests: Vec<ResourceRequest> = wanted.iter().enumerate().map(|(at, (nodes, wish))| {
                // Whole segments.
                let mut request = request(at, nodes * wish.1.max(1));
                let constraints = &mut request.constraints;
                (constraints.switches, constraints.segment, constraints.contiguous) = *wish;
                request
            }).collect();
            let (first, more) = requests.split_first().expect("two at least");
            let request = ResourceRequest { more: more.to_vec(), ..first.clone() };
            let expected = possible_as_they_lie(&nodes, &requests.iter().collect::<Vec<_>>(), 0);
            prop_assert_eq!(fits(&hosts, Needs::from(&request), Assume::Now), expected);
        }
    }

    #[test]
    fn a_component_leaves_another_s_nodes_next_to_each_other() {
        let hosts = hosts(&[3; 6]);
        let named = |at: usize, nodes: u32, list: &str, contiguous: bool| {
            let mut request = request(at, nodes);
            request.constraints.nodelist = crate::model::host_list::parse(list).expect("a host list");
            request.constraints.contiguous = contiguous;
            request
        };
        // The first can have n5 beside n4 alone: the other needs n0 to n3.
        let request = ResourceRequest {
            more: vec![named(1, 4, "n3", true)],
            ..named(0, 2, "n4", false)
        };
        let parts = place(&hosts, &request, Assume::Now).expect("a place");
        let names: Vec<&str> = parts.iter().map(|part| part.node.as_str()).collect();
        assert_eq!(names, ["n4", "n5", "n0", "n1", "n2", "n3"]);
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
