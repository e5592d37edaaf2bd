//! Which of the hosts that fit a request takes: several for a gang, by where they are in the fabric.
//!
//! What is inside of the hosts comes first, as far as it sets the gang's pace: GPUs of one model, and on every
//! host joined by NVLink, where enough hosts have that; a link between hosts is slower than that, and faster than
//! or as fast as the others. Then the fabric ([`super::pack`]). Then what is better on the single hosts.

use std::collections::{BTreeMap, BTreeSet};

use super::Part;
use super::fit::Candidate;
use super::hosts::{Hosts, Member};
use super::pack::{ALONE, Spot, Value, Wish, pack, value_of};
use crate::model::host_list::natural;
use crate::model::ids::NodeName;
use crate::model::resources::ResourceRequest;

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
    let gang = Gang::new(hosts, fitting, request, left_out)?;
    let mut pools = gang.pools();
    let mut chosen = pools.find_map(|pool| gang.choose_of(&pool))?;
    if gang.arranges {
        gang.order(&mut chosen);
    } else {
        chosen.sort_unstable_by_key(|at| &gang.hosts[*at].member.node);
    }
    let hosts = chosen.into_iter().map(|at| &gang.hosts[at]);
    Some(hosts.map(|host| host.of.part(host.member)).collect())
}

/// Whether there is a choice at all.
pub(super) fn is_possible(hosts: &Hosts, fitting: &[Candidate<'_>], request: &ResourceRequest) -> bool {
    // All hosts together: what can be chosen of some can be chosen of all.
    let gang = Gang::new(hosts, fitting, request, &BTreeSet::new());
    gang.is_some_and(|gang| gang.choose_of(&gang.all()).is_some())
}

/// A host that fits.
struct Host<'a> {
    member: &'a Member,
    of: &'a Candidate<'a>,
    /// How many kinds of hosts are better.
    rank: u32,
}

struct Gang<'a> {
    /// By rank, then by name.
    hosts: Vec<Host<'a>>,
    all: &'a Hosts,
    request: &'a ResourceRequest,
    arranges: bool,
}

impl<'a> Gang<'a> {
    /// None: they are too few.
    fn new(
        all: &'a Hosts,
        fitting: &'a [Candidate<'a>],
        request: &'a ResourceRequest,
        left_out: &BTreeSet<&NodeName>,
    ) -> Option<Self> {
        let nodes = request.nodes as usize;
        let count: usize = fitting.iter().map(|candidate| candidate.alike.count()).sum();
        if count < nodes {
            return None;
        }
        let mut sorted: Vec<&Candidate<'_>> = fitting.iter().collect();
        sorted.sort_by_key(|candidate| candidate.rank());
        let arranges = arranges(all, request);
        // Of hosts that lie alike no more than are needed of each kind.
        let most = if arranges {
            usize::MAX
        } else {
            nodes + left_out.len()
        };
        let mut hosts = Vec::new();
        for (rank, equals) in (0..).zip(sorted.chunk_by(|a, b| a.rank() == b.rank())) {
            let from = hosts.len();
            for candidate in equals {
                let members = candidate.alike.first(most).into_iter();
                let members = members.filter(|member| !left_out.contains(&member.node));
                hosts.extend(members.map(|member| Host {
                    member,
                    of: candidate,
                    rank,
                }));
            }
            if equals.len() > 1 {
                hosts[from..].sort_unstable_by_key(|host| &host.member.node);
            }
        }
        (hosts.len() >= nodes).then_some(Self {
            hosts,
            all,
            request,
            arranges,
        })
    }

    fn nodes(&self) -> usize {
        self.request.nodes as usize
    }

    fn all(&self) -> Vec<usize> {
        (0..self.hosts.len()).collect()
    }

    /// Hosts to choose of, the best first: of one model and joined, of one model, joined, any. Of several models the
    /// one whose slowest host is the best.
    fn pools(&self) -> impl Iterator<Item = Vec<usize>> {
        let joined = |at: &usize| self.hosts[*at].of.joined();
        let mut pools = Vec::new();
        if self.nodes() > 1 {
            let mut models: BTreeMap<Vec<&str>, Vec<usize>> = BTreeMap::new();
            // Hosts of one candidate follow each other, but for equals.
            for run in self
                .all()
                .chunk_by(|a, b| std::ptr::eq(self.hosts[*a].of, self.hosts[*b].of))
            {
                let model = models.entry(self.hosts[run[0]].of.models()).or_default();
                model.extend(run);
            }
            let whole: Vec<Vec<usize>> = models
                .values()
                .map(|of| of.iter().copied().filter(joined).collect())
                .collect();
            for mut some in [whole, models.into_values().collect()] {
                some.retain(|pool| pool.len() >= self.nodes());
                some.sort_by_key(|pool| (self.hosts[pool[self.nodes() - 1]].rank, pool[0]));
                pools.extend(some);
            }
            pools.push(self.all().into_iter().filter(joined).collect());
        }
        pools.push(self.all());
        pools.retain(|pool| pool.len() >= self.nodes());
        pools.dedup();
        pools.into_iter()
    }

    /// The best choice of some of the hosts.
    fn choose_of(&self, pool: &[usize]) -> Option<Vec<usize>> {
        if !self.arranges {
            return pool.get(..self.nodes()).map(<[usize]>::to_vec);
        }
        let constraints = &self.request.constraints;
        let must_have = constraints.must_have(self.request.nodes);
        let must = |member: &Member| must_have.is_some_and(|names| names.contains(&member.node));
        // Numbered as they come, which is the same whatever the order in which nodes joined.
        let mut blocks: BTreeMap<u32, u32> = BTreeMap::new();
        let spots: Vec<Spot> = pool
            .iter()
            .map(|at| {
                let Host { member, rank, .. } = &self.hosts[*at];
                let next = blocks.len() as u32;
                Spot {
                    leaf: member.leaf,
                    block: match member.block {
                        ALONE => ALONE,
                        block => *blocks.entry(block).or_insert(next),
                    },
                    rank: *rank,
                    forced: must(member),
                }
            })
            .collect();
        let forced = spots.iter().filter(|spot| spot.forced).count();
        if forced < must_have.map_or(0, BTreeSet::len) {
            return None;
        }
        let wish = Wish {
            nodes: self.nodes(),
            switches: (constraints.switches > 0).then_some(constraints.switches as usize),
            segment: constraints.segment.max(1) as usize,
        };
        let taken = if constraints.contiguous {
            self.next_to_each_other(pool, &spots, wish)
        } else {
            let switches = self.all.fabric().switches();
            pack(switches, &spots, wish).map(|(_, taken)| taken)
        };
        Some(taken?.into_iter().map(|at| pool[at]).collect())
    }

    /// The best run of hosts that follow each other in the order of all nodes' names.
    fn next_to_each_other(&self, pool: &[usize], spots: &[Spot], wish: Wish) -> Option<Vec<usize>> {
        let mut names: Vec<&NodeName> = self.all.names().collect();
        names.sort_by(|a, b| natural(a.as_str(), b.as_str()));
        let spot_of: BTreeMap<&NodeName, usize> = (0..pool.len())
            .map(|at| (&self.hosts[pool[at]].member.node, at))
            .collect();
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
        windows.min_by_key(|(value, _)| *value).map(|(_, taken)| taken)
    }

    /// Puts a choice into the order of ranks.
    fn order(&self, chosen: &mut [usize]) {
        let member = |at: usize| self.hosts[at].member;
        // A block stands where its first switch and its first name do.
        let mut blocks: BTreeMap<u32, (u32, &str)> = BTreeMap::new();
        let less = |a: (u32, &'a str), b: (u32, &'a str)| match a.0.cmp(&b.0).then_with(|| natural(a.1, b.1))
        {
            std::cmp::Ordering::Greater => b,
            std::cmp::Ordering::Less | std::cmp::Ordering::Equal => a,
        };
        let place = |member: &'a Member| (member.leaf, member.node.as_str());
        for member in chosen
            .iter()
            .map(|at| member(*at))
            .filter(|member| member.block != ALONE)
        {
            let first = blocks.entry(member.block).or_insert(place(member));
            *first = less(*first, place(member));
        }
        let first = |member: &'a Member| blocks.get(&member.block).copied().unwrap_or(place(member));
        chosen.sort_by(|a, b| {
            let (a, b) = (member(*a), member(*b));
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
}
