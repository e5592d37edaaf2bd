//! What hosts of one kind can give to a request, or what they lack.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::filter::Filter;
use super::gang;
use super::gpu_set::positions;
use super::groups::{Alike, Member, SameGpus};
use super::hosts::{Assume, Hosts, Kind};
use super::kind::Class;
use super::prospect::{FreeGpus, Prospect, Prospects};
use super::units::{Chosen, Free, PartRoom, Units};
use super::{Needs, Part};
use crate::model::gpu_unit::WHOLE_MILLI;
use crate::model::ids::NodeName;
use crate::model::resources::UnitRequest;
use crate::model::topology::Link;

/// What a host lacks; [`Refusal`](super::Refusal) without its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lack {
    FreeGpus,
    FreeSlices,
    FreeShares,
    FreeLeast,
    FreeNvlinkSet,
    FreeCpus,
    FreeMemory,
    /// Nothing of it held.
    Idle,
    /// All of its memory.
    IdleMemory,
    /// CPUs that are kept for its free GPUs.
    KeptCpus(u32),
    /// Bytes of memory that are kept for its free GPUs.
    KeptMemory(u64),
    AnyGpus,
    Model,
    Gpus,
    GpuMemory,
    Slices,
    /// Slices that its GPUs could be cut into, if they were cut anew.
    UncutSlices,
    Shares,
    Least,
    NvlinkSet,
    Cpus,
    Memory,
    /// Root for its users; the number of its kind.
    Root(u32),
    /// A place among the nodes that may be meant at all.
    NotInPartition,
    /// Its name among those that alone will do.
    NotListed,
    /// A name that is not to be left out.
    Excluded,
    Features,
}

/// Hosts that can take a part, and the part.
pub(super) struct Candidate<'a> {
    pub alike: Alike<'a>,
    chosen: Chosen,
    /// What requests to come lose, beyond what is used.
    lost: i64,
    /// Free whole GPUs that one would be left with.
    left_gpus: u32,
    left_cpus: u32,
    left_memory: u64,
}

/// What decides between hosts; the smallest wins.
type Rank = (
    u64,
    Reverse<(Option<Link>, u64)>,
    bool,
    i64,
    u64,
    u32,
    u32,
    u32,
    u64,
);

impl<'a> Candidate<'a> {
    pub fn rank(&self) -> Rank {
        let (set, (memory, links)) = (&self.chosen.set, self.links());
        // Jobs without GPUs stay away from hosts with some.
        let wrong_kind = set.mask == 0 && self.alike.kind.host.gpus() > 0;
        (
            memory,
            links,
            wrong_kind,
            self.lost,
            set.cost,
            self.left_gpus,
            set.numa_nodes,
            self.left_cpus,
            self.left_memory,
        )
    }

    /// What sets the pace inside of each; the smallest is the best.
    pub fn links(&self) -> (u64, Reverse<(Option<Link>, u64)>) {
        let Chosen { set, memory, .. } = &self.chosen;
        (*memory, Reverse((set.worst, set.sum)))
    }

    /// Models of its GPUs, each once, in order.
    pub fn models(&self) -> Vec<&'a str> {
        let kind = self.alike.kind;
        let mut models: Vec<&str> = positions(self.chosen.set.mask)
            .map(|p| kind.host.models[p].as_str())
            .collect();
        models.sort_unstable();
        models.dedup();
        models
    }

    /// The parts of as many of its hosts, the lowest names first.
    pub fn parts(&self, count: usize) -> impl Iterator<Item = Part> {
        self.alike
            .first(count)
            .into_iter()
            .map(|member| self.part(member))
    }

    /// The part of one of its hosts.
    pub fn part(&self, member: &Member) -> Part {
        Part {
            node: member.node.clone(),
            component: 0,
            units: self.chosen.units.clone(),
        }
    }

    /// The names of all its hosts.
    pub fn nodes(&self) -> impl Iterator<Item = &'a NodeName> {
        let members = self.alike.first(usize::MAX).into_iter();
        members.map(|member| &member.node)
    }

    /// Every pair of its GPUs is joined by NVLink.
    pub fn joined(&self) -> bool {
        matches!(self.chosen.set.worst, None | Some(Link::NvLink(_)))
    }
}

/// Hosts that can take a part of a request: all of them where it matters how they lie to each other; else, of those
/// that give the same GPUs and are of one class, the tightest, as many as are needed.
pub(super) fn candidates<'a>(hosts: &'a Hosts, needs: Needs<'a>, assume: Assume) -> Vec<Candidate<'a>> {
    let all = gang::arranges(hosts, needs.request);
    collect(hosts, needs, assume, |so_far| {
        if all || so_far < needs.request.nodes as usize {
            Next::Host
        } else {
            Next::Class
        }
    })
}

/// All hosts that can take a part of a request.
pub(super) fn all_candidates<'a>(hosts: &'a Hosts, needs: Needs<'a>, assume: Assume) -> Vec<Candidate<'a>> {
    collect(hosts, needs, assume, |_| Next::Host)
}

fn collect<'a>(
    hosts: &'a Hosts,
    needs: Needs<'a>,
    assume: Assume,
    next: impl Fn(usize) -> Next,
) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    let prospects = Some(hosts.prospects());
    each_fitting(hosts, needs, assume, prospects, None, |candidate, so_far| {
        found.push(candidate);
        next(so_far)
    });
    found
}

/// Whether a request fits.
pub(super) fn fits(hosts: &Hosts, needs: Needs<'_>, assume: Assume) -> bool {
    let (mut nodes, wanted) = (0, needs.request.nodes as usize);
    if gang::insists(needs.request) {
        return gang::is_possible(hosts, &candidates(hosts, needs, assume), needs.request);
    }
    each_fitting(hosts, needs, assume, None, None, |candidate, _| {
        nodes += candidate.alike.count();
        if nodes < wanted { Next::Host } else { Next::Nothing }
    });
    nodes >= wanted
}

/// Numbers of the kinds of hosts that could take a part, and how many of each.
pub(super) fn kinds(hosts: &Hosts, needs: Needs<'_>, assume: Assume) -> Vec<(u32, usize)> {
    let mut kinds = Vec::new();
    each_fitting(hosts, needs, assume, None, None, |candidate, _| {
        kinds.push((candidate.alike.kind.number, candidate.alike.count()));
        Next::Host
    });
    kinds
}

/// How many hosts could take a part, and what the others lack.
pub(super) fn lacks(hosts: &Hosts, needs: Needs<'_>, assume: Assume) -> (usize, BTreeMap<Lack, u32>) {
    let (mut fitting, mut lacks) = (0, BTreeMap::new());
    let mut note = |lack: Lack, count: usize| *lacks.entry(lack).or_default() += count as u32;
    each_fitting(hosts, needs, assume, None, Some(&mut note), |candidate, _| {
        fitting += candidate.alike.count();
        Next::Host
    });
    (fitting, lacks)
}

/// What is to be looked at next.
enum Next {
    Host,
    /// Hosts of another class, or with other GPUs free.
    Class,
    Nothing,
}

/// Hosts of a class, as they are gone through.
struct InClass {
    class: Class,
    /// What requests to come lose there.
    lost: i64,
    /// How many were taken.
    taken: usize,
    /// The others need no look.
    enough: bool,
}

/// Goes through the hosts that fit, those that give the same GPUs and are of one class together; `take` is told how
/// many of the class it was given, these included. `note` is told what the others lack, of hosts that were looked
/// at. With `prospects`, what is lost to requests to come is found as well.
fn each_fitting<'a>(
    hosts: &'a Hosts,
    needs: Needs<'a>,
    assume: Assume,
    prospects: Option<&Prospects>,
    mut note: Option<&mut dyn FnMut(Lack, usize)>,
    mut take: impl FnMut(Candidate<'a>, usize) -> Next,
) {
    let request = needs.request;
    let filter = Filter::of(hosts, needs).map(Rc::new);
    // What is so of a kind is found once: groups of a kind follow each other.
    let mut of_kind: Option<(&Kind, Result<u64, Lack>)> = None;
    for group in hosts.same_gpus(assume, filter.as_ref()) {
        if let Some(note) = &mut note {
            group
                .left_out()
                .into_iter()
                .for_each(|(lack, count)| note(lack, count));
        }
        let right = match of_kind {
            Some((kind, right)) if std::ptr::eq(kind, group.kind) => right,
            _ => right_gpus(group.kind, needs),
        };
        of_kind = Some((group.kind, right));
        let chosen = right.and_then(|right| best_of(&group, right, needs, assume));
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(lack) => {
                if let Some(note) = &mut note {
                    note(lack, group.count());
                }
                continue;
            }
        };
        let loss = prospects.and_then(|prospects| Loss::of(prospects, &group, &chosen));
        let host = &group.kind.host;
        let amounts = request.amounts_of(host.cpus, host.memory_bytes);
        let mut looked_at = 0;
        let mut class: Option<InClass> = None;
        for alike in group.alike(amounts.0) {
            if class.as_ref().is_none_or(|of| of.class != alike.class) {
                let lost = loss.as_ref();
                class = Some(InClass {
                    class: alike.class,
                    lost: lost.map_or(0, |loss| loss.in_class(alike.class, amounts)),
                    taken: 0,
                    enough: false,
                });
            }
            let Some(class) = class.as_mut().filter(|class| !class.enough) else {
                continue;
            };
            let count = alike.count();
            if count == 0 {
                continue;
            }
            looked_at += count;
            let left_gpus = (alike.gpus & !chosen.units.gpus()).count_ones();
            if let Some(lack) = lacks_besides(hosts, &alike, left_gpus, needs) {
                if let Some(note) = &mut note {
                    note(lack, count);
                }
                continue;
            }
            class.taken += count;
            let candidate = Candidate {
                chosen: chosen.clone(),
                lost: class.lost,
                left_gpus,
                left_cpus: alike.cpus - amounts.0,
                left_memory: alike.memory_bytes - amounts.1,
                alike,
            };
            match take(candidate, class.taken) {
                Next::Host => {}
                Next::Class => class.enough = true,
                Next::Nothing => return,
            }
        }
        if let Some(note) = &mut note {
            let lack = if request.exclusive {
                Lack::Idle
            } else {
                Lack::FreeCpus
            };
            note(lack, group.count() - looked_at);
        }
    }
}

/// What hosts lack that have the GPUs and the CPUs, and would be left with so many free GPUs.
fn lacks_besides(hosts: &Hosts, alike: &Alike<'_>, left_gpus: u32, needs: Needs<'_>) -> Option<Lack> {
    let request = needs.request;
    if request.wants_idle() && alike.memory_bytes < alike.kind.host.memory_bytes {
        return Some(if request.exclusive {
            Lack::Idle
        } else {
            Lack::IdleMemory
        });
    }
    if alike.memory_bytes < request.memory_bytes_per_node {
        return Some(Lack::FreeMemory);
    }
    let free = (alike.cpus, alike.memory_bytes);
    hosts.keeps(&alike.kind.host, free, left_gpus, needs)
}

/// What is lost to requests to come on hosts that give the same GPUs.
struct Loss<'a> {
    prospect: &'a Prospect,
    before: FreeGpus,
    after: FreeGpus,
}

impl<'a> Loss<'a> {
    /// None: nothing is known of the requests for such hosts.
    fn of(prospects: &'a Prospects, group: &SameGpus<'_>, chosen: &Chosen) -> Option<Self> {
        let shared = || {
            group.parts.iter().filter_map(|(gpu, room)| match room {
                PartRoom::Shared { milli, .. } => Some((*gpu, *milli)),
                PartRoom::Mig(_) => None,
            })
        };
        let rests = || shared().map(|(_, milli)| milli);
        let free = group.gpus.count_ones();
        let before = FreeGpus::new(free, rests());
        let after = match &chosen.units {
            Units::Whole(gpus) => FreeGpus::new((group.gpus & !gpus).count_ones(), rests()),
            Units::Share(gpus, milli) => {
                let begun = shared().map(|(gpu, rest)| rest - (gpus >> gpu & 1) as u16 * milli);
                let opened = (group.gpus & gpus).count_ones();
                let new = std::iter::repeat_n(WHOLE_MILLI - milli, opened as usize);
                FreeGpus::new(free - opened, begun.chain(new))
            }
            Units::Mig(_) => before,
        };
        Some(Self {
            prospect: prospects.of(&group.kind.outfit)?,
            before,
            after,
        })
    }

    fn in_class(&self, class: Class, (cpus, memory_bytes): (u32, u64)) -> i64 {
        self.prospect
            .lost(class, self.before, self.after, cpus, memory_bytes)
    }
}

/// GPUs of a kind of host that a request may get; or what all such hosts lack for good. The GPUs come first: who asks
/// for them alone is not told of the CPUs that would go with them.
fn right_gpus(kind: &Kind, needs: Needs<'_>) -> Result<u64, Lack> {
    let (host, request) = (&kind.host, needs.request);
    if needs.root && !host.no_root.is_empty() {
        return Err(Lack::Root(kind.number));
    }
    let right = gpus_asked_for(kind, needs)?;
    let short = if host.cpus < request.cpus_per_node {
        Lack::Cpus
    } else if host.memory_bytes < request.memory_bytes_per_node {
        Lack::Memory
    } else {
        return Ok(right);
    };
    Err(if request.nvlink && emptied(kind).best(right, needs).is_none() {
        Lack::NvlinkSet
    } else {
        short
    })
}

/// All that an empty host of a kind has.
fn emptied(kind: &Kind) -> Free<'_> {
    Free {
        kind,
        gpus: kind.host.placeable,
        parts: &kind.parts,
    }
}

/// GPUs of a kind of host that are as a request wants them, if there are enough.
fn gpus_asked_for(kind: &Kind, needs: Needs<'_>) -> Result<u64, Lack> {
    let (host, request) = (&kind.host, needs.request);
    let wanted = request.gpus_per_node;
    if wanted == 0 {
        return Ok(0);
    }
    if host.gpus() == 0 {
        return Err(Lack::AnyGpus);
    }
    let right = host.of_model(&request.gpu_model);
    if right == 0 {
        return Err(Lack::Model);
    }
    let lack = match &request.unit {
        UnitRequest::Whole => {
            let large = right & host.with_memory(request.gpu_memory_bytes..);
            if (host.placeable & right).count_ones() < wanted {
                return Err(Lack::Gpus);
            }
            return if (host.placeable & large).count_ones() < wanted {
                Err(Lack::GpuMemory)
            } else {
                Ok(large)
            };
        }
        UnitRequest::Mig(profile) if host.is_uncut(right, profile) => Lack::UncutSlices,
        UnitRequest::Mig(_) => Lack::Slices,
        UnitRequest::Share { .. } => Lack::Shares,
        UnitRequest::Least => Lack::Least,
    };
    // Slices and shares: what an empty host would give.
    emptied(kind).best(right, needs).map(|_| right).ok_or(lack)
}

/// The best of what is free, or what it lacks.
fn best_of(group: &SameGpus<'_>, right: u64, needs: Needs<'_>, assume: Assume) -> Result<Chosen, Lack> {
    let request = needs.request;
    let kind = group.kind;
    let free = Free {
        kind,
        gpus: group.gpus,
        parts: group.parts,
    };
    if request.exclusive && !is_idle(group) {
        return Err(Lack::Idle);
    }
    let best = free.best(right, needs).map(|best| Chosen {
        units: if request.exclusive {
            Units::Whole(group.gpus)
        } else {
            best.units
        },
        ..best
    });
    best.ok_or_else(|| match &request.unit {
        UnitRequest::Mig(_) => Lack::FreeSlices,
        UnitRequest::Share { .. } => Lack::FreeShares,
        UnitRequest::Least => Lack::FreeLeast,
        UnitRequest::Whole if (group.gpus & right).count_ones() < request.gpus_per_node => Lack::FreeGpus,
        UnitRequest::Whole => {
            let gpus = kind.host.placeable;
            let ever = assume == Assume::Now && Free { gpus, ..free }.best(right, needs).is_some();
            if ever {
                Lack::FreeNvlinkSet
            } else {
                Lack::NvlinkSet
            }
        }
    })
}

/// Nobody holds anything of its GPUs.
fn is_idle(group: &SameGpus<'_>) -> bool {
    let host = &group.kind.host;
    let idle = |gpu: usize| {
        let mut parts = group.parts.iter().filter(|(at, _)| usize::from(*at) == gpu);
        parts.any(|(_, room)| matches!(room, PartRoom::Mig(room) if room.held.is_empty()))
    };
    let cut = host.mig.iter().enumerate().filter(|(_, layout)| layout.is_some());
    group.gpus == host.placeable && cut.into_iter().all(|(gpu, _)| idle(gpu))
}
