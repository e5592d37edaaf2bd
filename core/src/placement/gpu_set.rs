//! Which GPUs of one host: the best set of k.
//!
//! Hosts of up to [`MAX_TABLE_GPUS`](super::MAX_TABLE_GPUS) GPUs have a [`Table`]. On larger ones all sets are
//! looked at, but for those that cannot win: sets with a link
//! worse than the best set's worst, and sets that differ from one already
//! looked at only by an exchange of twins (GPUs that have the same links to all
//! others and the same NUMA node). The twins make an 8-GPU host behind NVSwitch
//! a matter of five sets instead of seventy.

use std::cmp::Reverse;

use super::kind::HostKind;
use super::table::Table;
use crate::model::topology::Link;

/// Steps after which the search returns the best set so far. Hosts of up to 20
/// GPUs, whatever their links, and larger ones with twins stay below it.
const MAX_STEPS: u32 = 1 << 20;

/// How good a set is; greater is better. The order of the fields is the objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SetScore {
    /// Slowest link in the set; none for fewer than two GPUs.
    pub worst: Option<Link>,
    /// Sum of the bandwidths of its links, MB/s.
    pub sum: u64,
    /// NUMA nodes that it touches.
    pub numa_nodes: Reverse<u32>,
    /// Sum of the bandwidths within what stays free, MB/s.
    pub left_sum: u64,
    /// Pairs on one NUMA node within what stays free.
    pub left_numa_pairs: u32,
}

/// A set of a host's GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GpuSet {
    /// One bit per position in [`HostKind::models`].
    pub mask: u64,
    /// Slowest link in the set; none for fewer than two GPUs.
    pub worst: Option<Link>,
    /// Sum of the bandwidths of its links, MB/s.
    pub sum: u64,
    /// NUMA nodes that it touches.
    pub numa_nodes: u32,
    /// What is lost to requests to come ([`Best::cost`](super::Best::cost)).
    pub cost: u64,
}

/// A set as the search finds it.
#[derive(Clone, Copy)]
struct Found {
    mask: u64,
    score: SetScore,
}

/// The best `count` of the GPUs in `candidates`, where the GPUs in `pool` (a superset) are free; with
/// `nvlink`, only sets whose every pair is joined by NVLink. None when there is no such set.
///
/// Looked up where the host has a table, and searched for otherwise.
pub(super) fn best_set(
    host: &HostKind,
    table: Option<&Table>,
    pool: u64,
    candidates: u64,
    count: usize,
    nvlink: bool,
) -> Option<GpuSet> {
    if count == 0 {
        return Some(GpuSet::default());
    }
    let Some(table) = table else {
        return search(host, pool, candidates, count, nvlink);
    };
    let best = table.best(pool as u32, candidates as u32, count)?;
    let joined = best.quality.worst.is_none_or(Link::is_nvlink);
    if nvlink && !joined {
        // A mixture may be joined where no GPUs of one model are.
        let mixed = !table.is_of_one_model();
        return mixed
            .then(|| search(host, pool, candidates, count, nvlink))
            .flatten();
    }
    Some(GpuSet {
        mask: best.set.into(),
        worst: best.quality.worst,
        sum: best.quality.sum.into(),
        numa_nodes: best.quality.numa_nodes.0,
        cost: best.cost,
    })
}

/// The positions of a mask, ascending.
pub(super) fn positions(mask: u64) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lowest = (left != 0).then(|| left.trailing_zeros() as usize);
        left &= left.wrapping_sub(1);
        lowest
    })
}

/// The same for any host, by looking at the sets.
///
/// GPUs of one model are preferred over any mixture. Of equally good sets, the
/// one with the lowest positions.
fn search(host: &HostKind, pool: u64, candidates: u64, count: usize, nvlink: bool) -> Option<GpuSet> {
    if (candidates.count_ones() as usize) < count {
        return None;
    }
    let free = Free::new(host, pool);
    let mut best: Option<Found> = None;
    for one_model in models(host, candidates) {
        if let Some(set) = free.search(one_model, count, nvlink)
            && best.is_none_or(|b| set.score > b.score)
        {
            best = Some(set);
        }
    }
    let Found { mask, score } = best.or_else(|| free.search(candidates, count, nvlink))?;
    Some(GpuSet {
        mask,
        worst: score.worst,
        sum: score.sum,
        numa_nodes: score.numa_nodes.0,
        // Of a thousand a GPU, as much as links are lost.
        cost: (free.sum - score.left_sum) * 1000 * u64::from(pool.count_ones()) / free.sum.max(1),
    })
}

/// The candidates, model by model.
fn models(host: &HostKind, candidates: u64) -> Vec<u64> {
    let mut models: Vec<(&str, u64)> = Vec::new();
    for position in positions(candidates) {
        let model = host.models[position].as_str();
        match models.iter_mut().find(|(name, _)| *name == model) {
            Some((_, mask)) => *mask |= 1 << position,
            None => models.push((model, 1 << position)),
        }
    }
    models.into_iter().map(|(_, mask)| mask).collect()
}

/// A host's free GPUs and what is between them.
struct Free {
    /// Positions of the free GPUs; everything below counts along this list.
    free: Vec<usize>,
    /// Row by row; the diagonal is not used.
    links: Vec<Link>,
    /// MB/s, row by row; 0 on the diagonal.
    bandwidths: Vec<u64>,
    /// Sum of each row of `bandwidths`.
    row_sums: Vec<u64>,
    /// Which of the host's NUMA nodes, numbered as they occur.
    numa: Vec<usize>,
    /// How many other free GPUs share the NUMA node.
    numa_peers: Vec<u32>,
    sum: u64,
    numa_pairs: u32,
}

impl Free {
    fn new(host: &HostKind, pool: u64) -> Self {
        let free: Vec<usize> = positions(pool).collect();
        let n = free.len();
        let (mut links, mut bandwidths) = (vec![Link::Sys; n * n], vec![0; n * n]);
        for a in 0..n {
            for b in a + 1..n {
                let link = host.links.link(free[a], free[b]);
                let bandwidth = u64::from(host.bandwidth(free[a], free[b]));
                for at in [a * n + b, b * n + a] {
                    (links[at], bandwidths[at]) = (link, bandwidth);
                }
            }
        }
        let mut nodes = Vec::new();
        let mut number = |node: Option<u32>| {
            nodes.iter().position(|known| *known == node).unwrap_or_else(|| {
                nodes.push(node);
                nodes.len() - 1
            })
        };
        let numa: Vec<usize> = free.iter().map(|position| number(host.numa[*position])).collect();
        let peers = |gpu: usize| numa.iter().filter(|node| **node == numa[gpu]).count() as u32 - 1;
        let numa_peers: Vec<u32> = (0..n).map(peers).collect();
        let row_sums: Vec<u64> = (0..n)
            .map(|a| bandwidths[a * n..(a + 1) * n].iter().sum())
            .collect();
        Self {
            sum: row_sums.iter().sum::<u64>() / 2,
            numa_pairs: numa_peers.iter().sum::<u32>() / 2,
            free,
            links,
            bandwidths,
            row_sums,
            numa,
            numa_peers,
        }
    }

    fn search(&self, candidates: u64, count: usize, nvlink: bool) -> Option<Found> {
        let candidates: Vec<usize> = (0..self.free.len())
            .filter(|gpu| candidates >> self.free[*gpu] & 1 == 1)
            .collect();
        if candidates.len() < count {
            return None;
        }
        let twins = self.twins(&candidates);
        let mut search = Search {
            host: self,
            candidates,
            twins,
            count,
            nvlink,
            steps: 0,
            best: None,
        };
        search.extend(0, &Partial::default());
        search.best
    }

    /// For each candidate the candidate before it that is its twin. Being twins
    /// is an equivalence, so a set with the lowest of each class stands for all
    /// sets that have as many of it.
    fn twins(&self, candidates: &[usize]) -> Vec<Option<usize>> {
        let n = self.free.len();
        let alike = |a: usize, b: usize| {
            self.numa[a] == self.numa[b]
                && (0..n).all(|c| {
                    c == a
                        || c == b
                        || self.links[a * n + c] == self.links[b * n + c]
                            && self.bandwidths[a * n + c] == self.bandwidths[b * n + c]
                })
        };
        let before = |at: usize| {
            candidates[..at]
                .iter()
                .rposition(|earlier| alike(*earlier, candidates[at]))
        };
        (0..candidates.len()).map(before).collect()
    }
}

/// A set as far as it is chosen. Counts along [`Search::candidates`].
#[derive(Clone, Default)]
struct Partial {
    chosen: u64,
    len: usize,
    worst: Option<Link>,
    sum: u64,
    numa_nodes: u64,
    numa_pairs: u32,
    row_sum: u64,
    numa_peers: u32,
}

struct Search<'a> {
    host: &'a Free,
    /// Numbers along [`Free::free`].
    candidates: Vec<usize>,
    twins: Vec<Option<usize>>,
    count: usize,
    nvlink: bool,
    steps: u32,
    best: Option<Found>,
}

impl Search<'_> {
    /// Tries every way to complete `partial` with candidates from `start` on.
    fn extend(&mut self, start: usize, partial: &Partial) {
        if partial.len == self.count {
            self.offer(partial);
            return;
        }
        for next in start..=self.candidates.len() - (self.count - partial.len) {
            let out_of_turn = self.twins[next].is_some_and(|twin| partial.chosen >> twin & 1 == 0);
            if out_of_turn || self.steps >= MAX_STEPS && self.best.is_some() {
                continue;
            }
            self.steps += 1;
            if let Some(more) = self.with(partial, next) {
                self.extend(next + 1, &more);
            }
        }
    }

    /// `partial` and one more; none when no set with them can be wanted.
    fn with(&self, partial: &Partial, next: usize) -> Option<Partial> {
        let (host, n, gpu) = (self.host, self.host.free.len(), self.candidates[next]);
        let mut more = partial.clone();
        for member in positions(partial.chosen).map(|at| self.candidates[at]) {
            let link = host.links[gpu * n + member];
            if self.nvlink && !link.is_nvlink() {
                return None;
            }
            more.worst = Some(more.worst.map_or(link, |worst| worst.min(link)));
            more.sum += host.bandwidths[gpu * n + member];
            more.numa_pairs += u32::from(host.numa[gpu] == host.numa[member]);
        }
        let hopeless = |best: Found| more.worst.is_some() && more.worst < best.score.worst;
        if self.best.is_some_and(hopeless) {
            return None;
        }
        more.chosen |= 1 << next;
        more.len += 1;
        more.numa_nodes |= 1 << host.numa[gpu];
        more.row_sum += host.row_sums[gpu];
        more.numa_peers += host.numa_peers[gpu];
        Some(more)
    }

    fn offer(&mut self, set: &Partial) {
        // A pair within what is left is a pair of all that neither touches the
        // set from outside nor lies in it; the rows of the set count the pairs
        // inside it twice.
        let score = SetScore {
            worst: set.worst,
            sum: set.sum,
            numa_nodes: Reverse(set.numa_nodes.count_ones()),
            left_sum: self.host.sum + set.sum - set.row_sum,
            left_numa_pairs: self.host.numa_pairs + set.numa_pairs - set.numa_peers,
        };
        if self.best.is_none_or(|best| score > best.score) {
            let mask =
                positions(set.chosen).fold(0, |mask, at| mask | 1 << self.host.free[self.candidates[at]]);
            self.best = Some(Found { mask, score });
        }
    }
}
