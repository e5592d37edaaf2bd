//! Which CPUs of its host a job gets.
//!
//! First how many from where, then which. A job with GPUs takes CPUs near to them, each GPU its share;
//! what is missing it takes from the nearest NUMA nodes. A job without GPUs takes those of which no
//! free GPU would miss any; then from where most are left for each free GPU. Among CPUs that are the
//! same in all this, whole physical cores come first.

mod memory;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;

pub use memory::{Claim, MemoryNodes, Settled};

use crate::model::cpus::{CpuSet, HostCpus};

/// What decides about a job's CPUs.
#[derive(Clone, Debug)]
pub struct CpuRequest<'a> {
    /// Its host.
    pub host: &'a HostCpus,
    /// CPUs that other jobs hold.
    pub held: &'a CpuSet,
    /// CPUs near to each of its GPUs; empty: not known.
    pub own_gpus: &'a [CpuSet],
    /// CPUs near to each GPU that nobody holds.
    pub free_gpus: &'a [CpuSet],
    /// How many it gets.
    pub cpus: u32,
}

/// A NUMA node; which of the job's GPUs are near, and which free ones.
type CellKey = (Option<u32>, Vec<usize>, Vec<usize>);

/// CPUs that are the same to the job: on one NUMA node, and near to the same GPUs.
struct Cell {
    /// None: of no node.
    node: Option<u32>,
    /// Those of its own GPUs that are near, by position.
    own: Vec<usize>,
    /// Free GPUs that are near.
    free_gpus: usize,
    /// CPUs that nobody holds.
    free: CpuSet,
    /// How many of them the job takes.
    taken: usize,
}

impl Cell {
    fn left(&self) -> usize {
        self.free.len() - self.taken
    }

    fn take(&mut self, wanted: usize) -> usize {
        let taken = wanted.min(self.left());
        self.taken += taken;
        taken
    }

    /// The more CPUs would be left for each free GPU here, the smaller; the smallest where there is none.
    fn strands(&self, wanted: usize) -> Reverse<u64> {
        const SCALE: u64 = 1 << 20;
        let after = self.left().saturating_sub(wanted) as u64;
        Reverse(
            (after * SCALE)
                .checked_div(self.free_gpus as u64)
                .unwrap_or(u64::MAX),
        )
    }
}

/// The CPUs that a job gets; none: the host has too few that are free.
pub fn choose_cpus(request: &CpuRequest<'_>) -> Option<CpuSet> {
    let wanted = request.cpus as usize;
    let mut cells = cells(request);
    if cells.iter().map(|cell| cell.free.len()).sum::<usize>() < wanted {
        return None;
    }
    let located = request.own_gpus.iter().any(|near| !near.is_empty());
    if located {
        count_near(request, &mut cells, wanted);
    } else {
        count_unstranding(&mut cells, wanted);
    }
    let chosen = cells
        .iter()
        .flat_map(|cell| pick(request.host, &cell.free, cell.taken));
    Some(chosen.collect())
}

fn cells(request: &CpuRequest<'_>) -> Vec<Cell> {
    let host = request.host;
    let mut cells: BTreeMap<CellKey, Vec<u32>> = BTreeMap::new();
    let near = |gpus: &[CpuSet], cpu| -> Vec<usize> {
        let near = gpus.iter().enumerate().filter(|(_, near)| near.contains(cpu));
        near.map(|(at, _)| at).collect()
    };
    for cpu in host.usable.without(request.held).iter() {
        let node = host.nodes.iter().find(|node| node.cpus.contains(cpu));
        let key = (
            node.map(|node| node.id),
            near(request.own_gpus, cpu),
            near(request.free_gpus, cpu),
        );
        cells.entry(key).or_default().push(cpu);
    }
    let cell = |((node, own, free_gpus), cpus): (CellKey, Vec<u32>)| Cell {
        node,
        own,
        free_gpus: free_gpus.len(),
        free: cpus.into_iter().collect(),
        taken: 0,
    };
    cells.into_iter().map(cell).collect()
}

/// For a job with GPUs: near to them first, to each of them alike, then the nearest.
fn count_near(request: &CpuRequest<'_>, cells: &mut [Cell], wanted: usize) {
    let mut left = wanted;
    let by_gpus = shares(request, wanted);
    for (gpu, share) in by_gpus {
        // Those near to fewer of its GPUs are left for no other one.
        let mut near: Vec<&mut Cell> = cells.iter_mut().filter(|cell| cell.own.contains(&gpu)).collect();
        near.sort_by_key(|cell| (cell.own.len(), cell.strands(share)));
        let mut missing = share;
        for cell in near {
            missing -= cell.take(missing);
        }
        left -= share - missing;
    }
    let distances = distances(request);
    let far = |cell: &Cell| match (cell.own.is_empty(), cell.node) {
        (false, _) => 0,
        (true, Some(node)) => distances.get(&node).copied().unwrap_or(u32::MAX),
        (true, None) => u32::MAX,
    };
    while left > 0 {
        let open = cells.iter_mut().filter(|cell| cell.left() > 0);
        let Some(best) = open.min_by_key(|cell| (far(cell), cell.strands(left), cell.free.first())) else {
            return;
        };
        left -= best.take(left);
    }
}

/// How many CPUs are for each group of GPUs with the same CPUs near to them, named by its first GPU: by
/// the number of its GPUs, in whole cores.
fn shares(request: &CpuRequest<'_>, wanted: usize) -> Vec<(usize, usize)> {
    let mut groups: BTreeMap<&CpuSet, (usize, usize)> = BTreeMap::new();
    for (at, near) in request.own_gpus.iter().enumerate() {
        if !near.is_empty() {
            groups.entry(near).or_insert((at, 0)).1 += 1;
        }
    }
    let threads = request
        .host
        .cores
        .iter()
        .map(CpuSet::len)
        .max()
        .unwrap_or(1)
        .max(1);
    let mut shares: Vec<(usize, usize, usize)> = groups
        .into_values()
        .map(|(first, gpus)| (first, gpus, 0))
        .collect();
    shares.sort_unstable();
    let mut left = wanted;
    while left > 0 {
        // Compared as fractions: what a group has for each of its GPUs.
        let least = shares
            .iter_mut()
            .min_by(|(_, a, has_a), (_, b, has_b)| (has_a * b).cmp(&(has_b * a)));
        let Some((_, _, has)) = least else { break };
        let more = threads.min(left);
        *has += more;
        left -= more;
    }
    shares
        .into_iter()
        .map(|(first, _, share)| (first, share))
        .collect()
}

/// How far each NUMA node is from the nearest one with CPUs near to the job's GPUs.
fn distances(request: &CpuRequest<'_>) -> BTreeMap<u32, u32> {
    let host = request.host;
    let homes = host.nodes.iter().filter(|node| {
        let mut gpus = request.own_gpus.iter();
        gpus.any(|near| !near.is_disjoint(&node.cpus))
    });
    let mut nearest: BTreeMap<u32, u32> = BTreeMap::new();
    for (to, far) in homes.flat_map(|home| &home.distances) {
        let known = nearest.entry(*to).or_insert(*far);
        *known = (*known).min(*far);
    }
    nearest
}

/// For a job without GPUs: where no free GPU misses any, on few NUMA nodes; then where most are left.
fn count_unstranding(cells: &mut [Cell], wanted: usize) {
    let mut left = wanted;
    for needed_by_gpus in [false, true] {
        while left > 0 {
            let open = || {
                let all = cells.iter().enumerate();
                all.filter(|(_, cell)| cell.left() > 0 && (cell.free_gpus > 0) == needed_by_gpus)
            };
            // One that holds all the rest; the tightest, where no GPU is near.
            let whole = open().filter(|(_, cell)| cell.left() >= left);
            let whole = whole.min_by_key(|(_, cell)| (cell.strands(left), cell.left(), cell.free.first()));
            let most = || open().min_by_key(|(_, cell)| (cell.strands(0), Reverse(cell.left())));
            let Some(at) = whole.or_else(most).map(|(at, _)| at) else {
                break;
            };
            left -= cells[at].take(left);
        }
    }
}

/// So many of these CPUs: the most that whole cores make up, then parts of cores that others share
/// already, so that whole ones are left.
fn pick(host: &HostCpus, free: &CpuSet, count: usize) -> Vec<u32> {
    let mut whole: Vec<CpuSet> = Vec::new();
    let mut parts: Vec<CpuSet> = Vec::new();
    let mut alone = free.clone();
    for core in &host.cores {
        let threads = core.and(&host.usable);
        let open = threads.and(&alone);
        alone = alone.without(core);
        if open.is_empty() {
            continue;
        }
        if open == threads { &mut whole } else { &mut parts }.push(open);
    }
    // Of which the kernel does not say what core they are of.
    whole.extend(alone.iter().map(|cpu| CpuSet::from_iter([cpu])));
    // The largest first is the most where sizes divide each other, as hardware's do.
    whole.sort_by_key(|core| (Reverse(core.len()), core.first()));
    parts.sort_by_key(|core| (core.len(), core.first()));
    let mut taken: Vec<u32> = Vec::with_capacity(count);
    let mut broken: Vec<CpuSet> = Vec::new();
    for core in whole {
        if taken.len() + core.len() <= count {
            taken.extend(core.iter());
        } else {
            broken.push(core);
        }
    }
    // The smallest rests first: as few as can be are left. Then the smallest whole core.
    broken.sort_by_key(|core| (core.len(), core.first()));
    let rest = parts.iter().chain(&broken).flat_map(CpuSet::iter);
    let missing = count - taken.len();
    taken.extend(rest.take(missing));
    taken
}
