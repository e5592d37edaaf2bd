//! What hosts of one kind can give to a request, or what they lack.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::gpu_set::{GpuSet, best_set, positions};
use super::hosts::{Alike, Assume, Hosts, Kind};
use super::{Needs, Part};
use crate::model::topology::Link;

/// What a host lacks; [`Refusal`](super::Refusal) without its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lack {
    FreeGpus,
    FreeNvlinkSet,
    FreeCpus,
    FreeMemory,
    AnyGpus,
    Model,
    Gpus,
    NvlinkSet,
    Cpus,
    Memory,
    /// Root for its users; the number of its kind.
    Root(u32),
}

/// Hosts that can take a part, and the part.
pub(super) struct Candidate<'a> {
    pub alike: Alike<'a>,
    set: GpuSet,
    /// Free whole GPUs that one would be left with.
    left_gpus: u32,
    left_cpus: u32,
    left_memory: u64,
}

/// What decides between hosts; the smallest wins.
type Rank = (Reverse<(Option<Link>, u64)>, bool, u64, u32, u32, u32, u64);

impl<'a> Candidate<'a> {
    pub fn rank(&self) -> Rank {
        let set = self.set;
        // Jobs without GPUs stay away from hosts with some.
        let wrong_kind = set.mask == 0 && self.alike.kind.host.gpus() > 0;
        (
            Reverse((set.worst, set.sum)),
            wrong_kind,
            set.cost,
            self.left_gpus,
            set.numa_nodes,
            self.left_cpus,
            self.left_memory,
        )
    }

    /// Models of its GPUs, each once, in order.
    pub fn models(&self) -> Vec<&'a str> {
        let kind = self.alike.kind;
        let mut models: Vec<&str> = positions(self.set.mask)
            .map(|p| kind.host.models[p].as_str())
            .collect();
        models.sort_unstable();
        models.dedup();
        models
    }

    /// The parts of as many of its hosts, the lowest names first.
    pub fn parts(&self, count: usize) -> impl Iterator<Item = Part> {
        let gpus = self.set.mask;
        self.alike.first(count).into_iter().map(move |node| Part {
            node: node.clone(),
            gpus,
        })
    }
}

/// Hosts that can take a part of a request: of those that give the same GPUs the tightest, as many as are needed.
pub(super) fn candidates<'a>(hosts: &'a Hosts, needs: Needs<'_>, assume: Assume) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    each_fitting(hosts, needs, assume, None, |candidate, so_far| {
        found.push(candidate);
        so_far < needs.request.nodes as usize
    });
    found
}

/// Whether a request fits.
pub(super) fn fits(hosts: &Hosts, needs: Needs<'_>, assume: Assume) -> bool {
    let (mut nodes, wanted) = (0, needs.request.nodes as usize);
    each_fitting(hosts, needs, assume, None, |candidate, _| {
        nodes += candidate.alike.count();
        nodes < wanted
    });
    nodes >= wanted
}

/// How many hosts could take a part, and what the others lack.
pub(super) fn lacks(hosts: &Hosts, needs: Needs<'_>, assume: Assume) -> (usize, BTreeMap<Lack, u32>) {
    let (mut fitting, mut lacks) = (0, BTreeMap::new());
    let mut note = |lack: Lack, count: usize| *lacks.entry(lack).or_default() += count as u32;
    each_fitting(hosts, needs, assume, Some(&mut note), |candidate, _| {
        fitting += candidate.alike.count();
        true
    });
    (fitting, lacks)
}

/// Goes through the hosts that fit, those that give the same GPUs together, until `take` has enough of them: it is
/// told how many hosts of the group it was given, this one included. `note` is told what the others lack, of
/// hosts that were looked at.
fn each_fitting<'a>(
    hosts: &'a Hosts,
    needs: Needs<'_>,
    assume: Assume,
    mut note: Option<&mut dyn FnMut(Lack, usize)>,
    mut take: impl FnMut(Candidate<'a>, usize) -> bool,
) {
    let request = needs.request;
    // What is so of a kind is found once: groups of a kind follow each other.
    let mut of_kind: Option<(&Kind, Result<u64, Lack>)> = None;
    for group in hosts.same_gpus(assume) {
        let right = match of_kind {
            Some((kind, right)) if std::ptr::eq(kind, group.kind) => right,
            _ => right_gpus(group.kind, needs),
        };
        of_kind = Some((group.kind, right));
        let set = right.and_then(|right| best_of(group.kind, group.gpus, right, needs, assume));
        let set = match set {
            Ok(set) => set,
            Err(lack) => {
                if let Some(note) = &mut note {
                    note(lack, group.count());
                }
                continue;
            }
        };
        let (mut taken, mut looked_at) = (0, 0);
        for alike in group.with_cpus(request.cpus_per_node) {
            looked_at += alike.count();
            if alike.memory_bytes < request.memory_bytes_per_node {
                if let Some(note) = &mut note {
                    note(Lack::FreeMemory, alike.count());
                }
                continue;
            }
            taken += alike.count();
            let candidate = Candidate {
                set,
                left_gpus: alike.gpus.count_ones() - request.gpus_per_node,
                left_cpus: alike.cpus - request.cpus_per_node,
                left_memory: alike.memory_bytes - request.memory_bytes_per_node,
                alike,
            };
            if !take(candidate, taken) {
                break;
            }
        }
        if let Some(note) = &mut note {
            note(Lack::FreeCpus, group.count() - looked_at);
        }
    }
}

/// GPUs of a kind of host that a request may get; or what all such hosts lack for good.
fn right_gpus(kind: &Kind, needs: Needs<'_>) -> Result<u64, Lack> {
    let (host, request) = (&kind.host, needs.request);
    let wanted = request.gpus_per_node;
    if needs.root && !host.no_root.is_empty() {
        return Err(Lack::Root(kind.number));
    }
    let right = match wanted {
        0 => 0,
        _ => host.of_model(&request.gpu_model),
    };
    if wanted > 0 && host.gpus() == 0 {
        return Err(Lack::AnyGpus);
    }
    if wanted > 0 && right == 0 {
        return Err(Lack::Model);
    }
    if (host.placeable & right).count_ones() < wanted {
        return Err(Lack::Gpus);
    }
    if host.cpus < request.cpus_per_node {
        return Err(Lack::Cpus);
    }
    if host.memory_bytes < request.memory_bytes_per_node {
        return Err(Lack::Memory);
    }
    Ok(right)
}

/// The best of the free GPUs, or what they lack.
fn best_of(kind: &Kind, free: u64, right: u64, needs: Needs<'_>, assume: Assume) -> Result<GpuSet, Lack> {
    let request = needs.request;
    let wanted = request.gpus_per_node;
    if (free & right).count_ones() < wanted {
        return Err(Lack::FreeGpus);
    }
    let (host, table) = (&kind.host, kind.table.as_deref());
    let best = |free: u64| best_set(host, table, free, free & right, wanted as usize, request.nvlink);
    best(free).ok_or_else(|| {
        let never = assume != Assume::Now || best(host.placeable).is_none();
        if never {
            Lack::NvlinkSet
        } else {
            Lack::FreeNvlinkSet
        }
    })
}
