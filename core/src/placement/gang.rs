//! Which of the hosts that fit a request takes: several for a gang, by where they are in the fabric.
//!
//! What is inside of the hosts comes first, as far as it sets the gang's pace: GPUs of one model, and on every
//! host joined by NVLink, where enough hosts have that; a link between hosts is slower than that, and faster than
//! or as fast as the others. Then the fabric ([`super::pack`]). Then what is better on the single hosts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::Part;
use super::fit::Candidate;
use super::groups::Member;
use super::hosts::Hosts;
use super::pack::{ALONE, Cells, Spot, Value, Wish, pack, value_of};
use crate::model::host_list::natural;
use crate::model::ids::NodeName;
use crate::model::resources::ResourceRequest;
use crate::model::topology::Link;

/// Not any hosts will do: which ones, and how they lie to each other, is part of the request.
pub(super) fn insists(request: &ResourceRequest) -> bool {
    request.constraints.must_have(request.nodes).is_some()
        || request.nodes > 1 && request.constraints.arrange()
}

/// How the hosts lie to each other matters: all that fit are to be looked at.
pub(super) fn arranges(hosts: &Hosts, request: &ResourceRequest) -> bool {
    insists(request) || request.nodes > 1 && !hosts.is_flat()
}

/// The best `request.nodes` of the hosts that fit and are not left out; none: there is no such choice. In the order of ranks: those of a
/// block follow each other, and so do those of a switch; then by name.
pub(super) fn choose(
    hosts: &Hosts,
    fitting: &[Candidate<'_>],
    request: &ResourceRequest,
    left_out: &BTreeSet<&NodeName>,
) -> Option<Vec<Part>> {
    choose_paced(hosts, fitting, request, left_out).map(|(_, parts)| parts)
}

/// What sets the pace inside of the hosts of a gang; the smallest is the best.
type Pace = (u64, Reverse<(Option<Link>, u64)>);

/// The same, with the pace of the slowest of them.
pub(super) fn choose_paced(
    hosts: &Hosts,
    fitting: &[Candidate<'_>],
    request: &ResourceRequest,
    left_out: &BTreeSet<&NodeName>,
) -> Option<(Option<Pace>, Vec<Part>)> {
    let gang = Gang::new(hosts, fitting, request, left_out)?;
    let mut chosen = gang.tiers().iter().find_map(|tier| {
        let choices = tier.iter().filter_map(|pool| gang.choose_of(pool));
        // The first of equals.
        choices.min_by_key(|(value, _)| *value).map(|(_, chosen)| chosen)
    })?;
    if gang.arranges {
        order(&mut chosen);
    } else {
        chosen.sort_unstable_by_key(|host| &host.member.node);
    }
    let pace = chosen.iter().map(|host| host.of.links()).max();
    Some((
        pace,
        chosen.iter().map(|host| host.of.part(host.member)).collect(),
    ))
}

/// Whether there is a choice at all.
pub(super) fn is_possible(hosts: &Hosts, fitting: &[Candidate<'_>], request: &ResourceRequest) -> bool {
    // All hosts together: what can be chosen of some can be chosen of all.
    let left_out = BTreeSet::new();
    let gang = Gang::new(hosts, fitting, request, &left_out);
    gang.is_some_and(|gang| gang.choose_of(&gang.fitting).is_some())
}

/// A host that fits.
#[derive(Clone, Copy)]
struct Host<'a> {
    member: &'a Member,
    of: &'a Candidate<'a>,
    /// How many kinds of hosts are better.
    rank: u32,
}

/// Hosts that fit and are not left out.
#[derive(Clone, Copy)]
struct Ranked<'a> {
    of: &'a Candidate<'a>,
    count: usize,
    /// How many kinds of hosts are better.
    rank: u32,
}

/// Hosts that a gang is chosen of, the best first.
type Pool<'a> = Vec<Ranked<'a>>;

struct Gang<'a> {
    /// The best first.
    fitting: Vec<Ranked<'a>>,
    all: &'a Hosts,
    request: &'a ResourceRequest,
    left_out: &'a BTreeSet<&'a NodeName>,
    arranges: bool,
}

impl<'a> Gang<'a> {
    /// None: they are too few.
    fn new(
        all: &'a Hosts,
        fitting: &'a [Candidate<'a>],
        request: &'a ResourceRequest,
        left_out: &'a BTreeSet<&'a NodeName>,
    ) -> Option<Self> {
        let mut sorted: Vec<_> = fitting.iter().map(|one| (one.rank(), one)).collect();
        sorted.sort_by_key(|(rank, _)| *rank);
        let count = |of: &Candidate<'_>| {
            if left_out.is_empty() {
                of.alike.count()
            } else {
                of.nodes().filter(|node| !left_out.contains(node)).count()
            }
        };
        let groups = (0..).zip(sorted.chunk_by(|(a, _), (b, _)| a == b));
        let fitting = groups.flat_map(|(rank, equals)| {
            equals.iter().map(move |(_, of)| Ranked {
                of,
                count: count(of),
                rank,
            })
        });
        let gang = Self {
            fitting: fitting.collect(),
            all,
            request,
            left_out,
            arranges: arranges(all, request),
        };
        gang.are_enough(&gang.fitting).then_some(gang)
    }

    fn nodes(&self) -> usize {
        self.request.nodes as usize
    }

    fn are_enough(&self, pool: &[Ranked<'_>]) -> bool {
        pool.iter().map(|ranked| ranked.count).sum::<usize>() >= self.nodes()
    }

    /// Goes through the hosts of a pool, by rank, then as [`Member`]s are ordered.
    fn each_host(&self, pool: &[Ranked<'a>], mut take: impl FnMut(Host<'a>)) {
        let of = |ranked: &Ranked<'a>| {
            let Ranked { of, rank, .. } = *ranked;
            let members = of.alike.members();
            let members = members.filter(|member| !self.left_out.contains(&member.node));
            members.map(move |member| Host { member, of, rank })
        };
        for equals in pool.chunk_by(|a, b| a.rank == b.rank) {
            match equals {
                [one] if one.of.alike.are_sorted() => of(one).for_each(&mut take),
                _ => {
                    let mut hosts: Vec<Host<'a>> = equals.iter().flat_map(of).collect();
                    hosts.sort_unstable_by_key(|host| host.member);
                    hosts.into_iter().for_each(&mut take);
                }
            }
        }
    }

    /// The first hosts of a pool, by rank, then as [`Member`]s are ordered, as many as the gang has nodes.
    fn first(&self, pool: &[Ranked<'a>]) -> Vec<Host<'a>> {
        let mut hosts = Vec::new();
        for equals in pool.chunk_by(|a, b| a.rank == b.rank) {
            if self.nodes() == 1
                && let Some(host) = self.tightest(equals)
            {
                return vec![host];
            }
            let from = hosts.len();
            for Ranked { of, rank, .. } in equals {
                let members = of
                    .alike
                    .first(self.nodes() - from + self.left_out.len())
                    .into_iter();
                let members = members.filter(|member| !self.left_out.contains(&member.node));
                hosts.extend(members.map(|member| Host {
                    member,
                    of,
                    rank: *rank,
                }));
            }
            hosts[from..].sort_unstable_by_key(|host| host.member);
            hosts.truncate(self.nodes());
            if hosts.len() == self.nodes() {
                break;
            }
        }
        hosts
    }

    /// For a job on one host, that of equals which leaves blocks and switches whole; none: they are no such hosts.
    fn tightest(&self, equals: &[Ranked<'a>]) -> Option<Host<'a>> {
        if self.all.is_flat() || !equals.iter().any(|ranked| ranked.of.alike.are_vacant()) {
            return None;
        }
        let of = |member: &Member| {
            let mut equals = equals.iter();
            let of = equals.find(|ranked| ranked.of.alike.contains(member));
            of.filter(|_| !self.left_out.contains(&member.node))
        };
        let member = self.all.vacant().tightest(|member| of(member).is_some())?;
        let Ranked { of, rank, .. } = *of(member)?;
        Some(Host { member, of, rank })
    }

    /// Hosts to choose of, the best first: of one model and joined, of one model, joined, any. Of several models those
    /// whose slowest host has the best links; where these are the same, the fabric decides: they are of one tier.
    fn tiers(&self) -> Vec<Vec<Pool<'a>>> {
        let mut tiers: Vec<Vec<Pool<'a>>> = Vec::new();
        if self.nodes() > 1 {
            let joined = |ranked: &Ranked<'a>| ranked.of.joined();
            let mut models: BTreeMap<Vec<&str>, Pool<'a>> = BTreeMap::new();
            for ranked in &self.fitting {
                models.entry(ranked.of.models()).or_default().push(*ranked);
            }
            let whole: Vec<Pool<'a>> = models
                .values()
                .map(|of| of.iter().copied().filter(joined).collect())
                .collect();
            for mut some in [whole, models.into_values().collect()] {
                some.retain(|pool| self.are_enough(pool));
                if let [_] = some[..] {
                    tiers.push(some);
                    continue;
                }
                let mut some: Vec<_> = some
                    .into_iter()
                    .filter_map(|pool| {
                        let hosts = self.first(&pool);
                        let (first, slowest) = (*hosts.first()?, *hosts.last()?);
                        let place = (slowest.of.links(), slowest.rank, first.rank, first.member);
                        Some((place, pool))
                    })
                    .collect();
                some.sort_by_key(|(place, _)| *place);
                let equals = some.chunk_by(|((a, ..), _), ((b, ..), _)| !self.arranges || a == b);
                tiers.extend(equals.map(|equals| equals.iter().map(|(_, pool)| pool.clone()).collect()));
            }
            tiers.push(vec![self.fitting.iter().copied().filter(joined).collect()]);
        }
        tiers.push(vec![self.fitting.clone()]);
        tiers.retain(|tier| tier.iter().any(|pool| self.are_enough(pool)));
        let same = |a: &Pool<'a>, b: &Pool<'a>| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| std::ptr::eq(a.of, b.of))
        };
        tiers.dedup_by(|a, b| a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same(a, b)));
        tiers
    }

    /// The best choice of some of the hosts, and how good it is where it matters how they lie.
    fn choose_of(&self, pool: &[Ranked<'a>]) -> Option<(Option<Value>, Vec<Host<'a>>)> {
        if !self.arranges {
            let chosen = self.first(pool);
            return (chosen.len() == self.nodes()).then_some((None, chosen));
        }
        let constraints = &self.request.constraints;
        let must_have = constraints.must_have(self.request.nodes);
        let spot = |Host { member, rank, .. }: &Host<'a>| Spot {
            leaf: member.leaf,
            block: member.block,
            rank: *rank,
            forced: must_have.is_some_and(|names| names.contains(&member.node)),
        };
        let wish = Wish {
            nodes: self.nodes(),
            switches: (constraints.switches > 0).then_some(constraints.switches as usize),
            segment: constraints.segment.max(1) as usize,
        };
        let wanted = must_have.map_or(0, BTreeSet::len);
        if constraints.contiguous {
            let (mut hosts, mut spots) = (Vec::new(), Vec::new());
            self.each_host(pool, |host| {
                spots.push(spot(&host));
                hosts.push(host);
            });
            let forced = spots.iter().filter(|spot| spot.forced).count();
            return if forced < wanted {
                None
            } else {
                self.next_to_each_other(&hosts, &spots, wish)
            };
        }
        let mut cells = Cells::new(self.nodes());
        self.each_host(pool, |host| cells.add(spot(&host), host));
        let (cells, first) = cells.sorted();
        if cells.iter().map(|cell| cell.forced).sum::<usize>() < wanted {
            return None;
        }
        let (value, taken) = pack(self.all.fabric().switches(), &cells, wish)?;
        let taken = taken.into_iter().flat_map(|(cell, count)| &first[cell][..count]);
        Some((Some(value), taken.copied().collect()))
    }

    /// The best run of hosts that follow each other in the order of all nodes' names.
    fn next_to_each_other(
        &self,
        hosts: &[Host<'a>],
        spots: &[Spot],
        wish: Wish,
    ) -> Option<(Option<Value>, Vec<Host<'a>>)> {
        let mut names: Vec<&NodeName> = self.all.names().collect();
        names.sort_by(|a, b| natural(a.as_str(), b.as_str()));
        let places = hosts.iter().enumerate();
        let spot_of: BTreeMap<&NodeName, usize> = places.map(|(at, host)| (&host.member.node, at)).collect();
        let forced = spots.iter().filter(|spot| spot.forced).count();
        let row: Vec<Option<usize>> = names.iter().map(|name| spot_of.get(name).copied()).collect();
        let windows = row.windows(wish.nodes).filter_map(|window| {
            let taken: Vec<usize> = window.iter().copied().collect::<Option<_>>()?;
            if taken.iter().filter(|at| spots[**at].forced).count() < forced {
                return None;
            }
            let value: Value = value_of(self.all.fabric().switches(), spots, &taken, wish)?;
            Some((value, taken))
        });
        let (value, taken) = windows.min_by_key(|(value, _)| *value)?;
        Some((Some(value), taken.into_iter().map(|at| hosts[at]).collect()))
    }
}

/// Puts a choice into the order of ranks.
fn order<'a>(chosen: &mut [Host<'a>]) {
    // A block stands where its first switch and its first name do.
    let mut blocks: BTreeMap<u32, (u32, &str)> = BTreeMap::new();
    let less = |a: (u32, &'a str), b: (u32, &'a str)| match a.0.cmp(&b.0).then_with(|| natural(a.1, b.1)) {
        std::cmp::Ordering::Greater => b,
        std::cmp::Ordering::Less | std::cmp::Ordering::Equal => a,
    };
    let place = |member: &'a Member| (member.leaf, member.node.as_str());
    let members = chosen.iter().map(|host| host.member);
    for member in members.filter(|member| member.block != ALONE) {
        let first = blocks.entry(member.block).or_insert(place(member));
        *first = less(*first, place(member));
    }
    let first = |member: &'a Member| blocks.get(&member.block).copied().unwrap_or(place(member));
    chosen.sort_by(|a, b| {
        let (a, b) = (a.member, b.member);
        let ((leaf_a, name_a), (leaf_b, name_b)) = (first(a), first(b));
        let in_block = a
            .leaf
            .cmp(&b.leaf)
            .then_with(|| natural(a.node.as_str(), b.node.as_str()));
        leaf_a
            .cmp(&leaf_b)
            .then_with(|| natural(name_a, name_b))
            .then(in_block)
    });
}
