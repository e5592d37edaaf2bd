//! Which GPUs of one host, looked up: for hosts of up to [`MAX_TABLE_GPUS`] GPUs.
//!
//! Hosts that are alike in what placement looks at are one [`Shape`], and share one [`Table`]. It
//! orders all sets of GPUs by what they are in themselves, knows of all sets what they are worth to
//! the requests to come, and keeps for each set of free GPUs the best part of every size. What is
//! looked up is filled in when it is first asked for; then it is one access.
//!
//! Cost at n GPUs: 2^n sets are scored once (n = 8: 256; n = 16: 65,536), and the parts of a free
//! set once each, when it first occurs: 2^k for k free ones, 3^n for all (n = 8: 6,561). Memory: 36 bytes
//! a set, and 2 bytes for each GPU of each free set that has occurred: 9 to 11 KiB for n = 8, 2.3 to
//! 3.3 MiB for n = 16.

use std::cmp::Reverse;
use std::sync::OnceLock;

use super::gpu_set::positions;
use super::kind::HostKind;
use crate::model::topology::Link;

/// Largest hosts that get a table: beyond, sets are too many to list.
pub const MAX_TABLE_GPUS: usize = 16;

/// What about a host decides which of its GPUs go together. Positions are those of
/// [`Inventory::gpus`](crate::model::gpu::Inventory::gpus).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// The first GPU of the model of each.
    models: Vec<u8>,
    /// NUMA node of each GPU.
    numa: Vec<Option<u32>>,
    /// NICs nearest to each GPU, a bit each; of more than 64 the first.
    nics: Vec<u64>,
    /// Link and its bandwidth in MB/s, of each pair: (0,1), (0,2) … (1,2) ….
    pairs: Vec<(Link, u32)>,
}

impl Shape {
    /// Of a kind of host; none when it has no GPUs, or too many for a table.
    pub fn of(host: &HostKind) -> Option<Self> {
        let gpus = host.gpus();
        if gpus == 0 || gpus > MAX_TABLE_GPUS {
            return None;
        }
        let number = |model: &String| host.models.iter().position(|other| other == model);
        let mut pairs = Vec::with_capacity(gpus * (gpus - 1) / 2);
        for a in 0..gpus {
            for b in a + 1..gpus {
                pairs.push((host.links.link(a, b), host.bandwidth(a, b)));
            }
        }
        Some(Self {
            models: host
                .models
                .iter()
                .map(|model| number(model).unwrap_or(0) as u8)
                .collect(),
            numa: host.numa.clone(),
            nics: (0..gpus).map(|gpu| nearest_nics(host, gpu)).collect(),
            pairs,
        })
    }

    /// Number of GPUs.
    pub fn gpus(&self) -> usize {
        self.models.len()
    }

    fn pair(&self, a: usize, b: usize) -> (Link, u32) {
        let (a, b, n) = (a.min(b), a.max(b), self.gpus());
        self.pairs[a * n - a * (a + 1) / 2 + (b - a - 1)]
    }

    /// Of the set, which is not empty.
    fn quality(&self, set: u32) -> Quality {
        let members: Vec<usize> = positions(set.into()).collect();
        let mut quality = Quality {
            one_model: members
                .iter()
                .all(|gpu| self.models[*gpu] == self.models[members[0]]),
            worst: None,
            sum: 0,
            numa_nodes: Reverse(0),
            nics: Reverse(0),
        };
        for (n, a) in members.iter().enumerate() {
            for b in &members[n + 1..] {
                let (link, bandwidth) = self.pair(*a, *b);
                quality.worst = Some(quality.worst.map_or(link, |worst| worst.min(link)));
                quality.sum += bandwidth;
            }
        }
        let mut numa: Vec<_> = members.iter().map(|gpu| self.numa[*gpu]).collect();
        numa.sort_unstable();
        numa.dedup();
        quality.numa_nodes = Reverse(numa.len() as u32);
        let nics = members.iter().fold(0, |nics, gpu| nics | self.nics[*gpu]);
        quality.nics = Reverse(nics.count_ones());
        quality
    }
}

/// The NICs with the best link to a GPU.
fn nearest_nics(host: &HostKind, gpu: usize) -> u64 {
    let best = host.nics.iter().map(|nic| nic[gpu]).max();
    let nearest = host
        .nics
        .iter()
        .take(64)
        .enumerate()
        .filter(|(_, nic)| Some(nic[gpu]) == best);
    nearest.fold(0, |mask, (nic, _)| mask | 1 << nic)
}

/// How good a set is in itself; greater is better. The order of the fields is the objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quality {
    /// All of its GPUs are of one model.
    pub one_model: bool,
    /// Slowest link in the set; none for one GPU.
    pub worst: Option<Link>,
    /// Sum of the bandwidths of its links, MB/s.
    pub sum: u32,
    /// NUMA nodes that it touches.
    pub numa_nodes: Reverse<u32>,
    /// NICs that are the nearest to one of its GPUs.
    pub nics: Reverse<u32>,
}

impl Quality {
    /// What a request of `size` GPUs gets of this set, for weighing sizes and hosts against each other: a
    /// thousand for each GPU where this is the best set of the size that such a host has (`whole`), less as the
    /// mean bandwidth is lower, and a hundredth less for each NUMA node and NIC that it touches besides.
    fn worth(&self, size: u32, whole: &Self) -> u32 {
        let share = match whole.sum {
            0 => 1000,
            best => u64::from(self.sum) * 1000 / u64::from(best),
        };
        let beyond = |own: Reverse<u32>, best: Reverse<u32>| own.0.saturating_sub(best.0);
        let spread = beyond(self.numa_nodes, whole.numa_nodes) + beyond(self.nics, whole.nics);
        size * share as u32 / 100 * 100_u32.saturating_sub(spread)
    }
}

/// Thousandths of GPUs asked for that are experience.
const ENOUGH: u64 = 256_000;

/// How much requests for so many GPUs of a host are expected to ask for, one size against the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Demand([u8; MAX_TABLE_GPUS + 1]);

impl Default for Demand {
    /// Without experience: powers of two above all.
    fn default() -> Self {
        Self(std::array::from_fn(|size| match size {
            0 => 0,
            1 | 2 | 4 | 8 | 16 => 8,
            _ => 1,
        }))
    }
}

impl Demand {
    /// From how much was asked for by requests of each size, thousandths of GPUs. Shares are rounded, to a sixteenth of
    /// all, so that little experience changes little; with too little of it, as without.
    pub fn from_volumes(volumes: &[u64; MAX_TABLE_GPUS + 1]) -> Self {
        let all: u64 = volumes[1..].iter().sum();
        if all < ENOUGH {
            return Self::default();
        }
        Self(std::array::from_fn(|size| match size {
            0 => 0,
            _ => (volumes[size] * 64).div_ceil(all).div_ceil(4) as u8,
        }))
    }

    fn weight(&self, size: usize) -> u64 {
        self.0[size].into()
    }
}

/// A set that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Best {
    /// One bit a position in [`Inventory::gpus`](crate::model::gpu::Inventory::gpus).
    pub set: u32,
    /// How good it is.
    pub quality: Quality,
    /// What the free GPUs lose in worth to requests to come.
    pub cost: u64,
}

/// A [`Table`] that is made when it is first looked at.
#[derive(Debug)]
pub(super) struct LazyTable {
    shape: Shape,
    demand: Demand,
    table: OnceLock<Table>,
}

impl LazyTable {
    pub fn new(shape: Shape, demand: Demand) -> Self {
        Self {
            shape,
            demand,
            table: OnceLock::new(),
        }
    }

    pub fn get(&self) -> &Table {
        self.table
            .get_or_init(|| Table::new(self.shape.clone(), &self.demand))
    }

    /// Made for such hosts, with such requests expected.
    pub fn is_of(&self, shape: &Shape, demand: &Demand) -> bool {
        self.shape == *shape && self.demand == *demand
    }

    /// Sets of GPUs that it lists.
    pub fn sets(&self) -> usize {
        1 << self.shape.gpus()
    }
}

/// The best sets of all hosts of one shape.
#[derive(Debug)]
pub struct Table {
    shape: Shape,
    /// Of each set: its place among all, the better the higher; equal for equally good ones.
    ranks: Vec<u32>,
    /// Of each set, were it free: what requests to come would get of it.
    worths: Vec<u64>,
    /// Of each set, were it free: the best part of it of each size from 1 on.
    best: Vec<OnceLock<Box<[u16]>>>,
}

impl Table {
    /// For hosts of a shape, with these requests expected.
    pub fn new(shape: Shape, demand: &Demand) -> Self {
        let sets = 1_usize << shape.gpus();
        let mut ordered: Vec<(Quality, u32)> =
            (1..sets as u32).map(|set| (shape.quality(set), set)).collect();
        ordered.sort_unstable();
        let (mut ranks, mut qualities) = (vec![0; sets], Vec::new());
        for (quality, set) in ordered {
            if qualities.last() != Some(&quality) {
                qualities.push(quality);
            }
            ranks[set as usize] = qualities.len() as u32 - 1;
        }
        let worths = worths(shape.gpus(), &ranks, &qualities, demand);
        Self {
            shape,
            ranks,
            worths,
            best: std::iter::repeat_with(OnceLock::new).take(sets).collect(),
        }
    }

    /// Its hosts' GPUs are of one model.
    pub fn is_of_one_model(&self) -> bool {
        self.shape.models.iter().all(|model| *model == 0)
    }

    /// What it was made for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The best `size` of the GPUs in `candidates`, where those in `free`, a superset, are free; none when
    /// there are fewer, or when none are wanted.
    ///
    /// Best is, in this order: one model, the fastest worst link, the highest sum of bandwidths, the fewest
    /// NUMA nodes, the fewest NICs, the highest worth of what remains free, the lowest positions.
    pub fn best(&self, free: u32, candidates: u32, size: usize) -> Option<Best> {
        let all = self.best.len() as u32 - 1;
        let (free, candidates) = (free & all, candidates & free & all);
        if size == 0 || (candidates.count_ones() as usize) < size {
            return None;
        }
        let set = if free == candidates {
            let row = self.best[free as usize].get_or_init(|| self.row(free));
            u32::from(row[size - 1])
        } else {
            // Some of the free GPUs are not wanted: hosts of several models, which are few.
            let parts = parts_of(candidates).filter(|set| set.count_ones() as usize == size);
            parts.max_by_key(|set| self.key(free, *set))?
        };
        Some(Best {
            set,
            quality: self.shape.quality(set),
            cost: self.worths[free as usize].saturating_sub(self.worths[(free & !set) as usize]),
        })
    }

    /// What decides between parts of equal size of a free set.
    fn key(&self, free: u32, set: u32) -> (u32, u64, u32) {
        // Of two sets of a size, the one with the lower positions has the greater mirror image.
        let mirrored = set.reverse_bits();
        (
            self.ranks[set as usize],
            self.worths[(free & !set) as usize],
            mirrored,
        )
    }

    fn row(&self, free: u32) -> Box<[u16]> {
        let mut best = vec![((0, 0, 0), 0_u16); free.count_ones() as usize];
        for set in parts_of(free) {
            let place = &mut best[set.count_ones() as usize - 1];
            let key = self.key(free, set);
            if place.1 == 0 || key > place.0 {
                *place = (key, set as u16);
            }
        }
        best.into_iter().map(|(_, set)| set).collect()
    }
}

/// The parts of a set, without the empty one.
fn parts_of(set: u32) -> impl Iterator<Item = u32> {
    let mut next = set;
    std::iter::from_fn(move || {
        let part = next;
        next = part.wrapping_sub(1) & set;
        (part != 0).then_some(part)
    })
}

/// Of each set, were it free: what it holds for each size of request, by how often that size is wanted.
/// What it holds is the worth of the best part of that size, of the best part of the rest, and so on.
fn worths(gpus: usize, ranks: &[u32], qualities: &[Quality], demand: &Demand) -> Vec<u64> {
    // Row by row: the best part of each size, and what the set holds for that size.
    let mut best = vec![0_u16; ranks.len() * gpus];
    let mut held = vec![0_u32; ranks.len() * gpus];
    let mut worths = vec![0; ranks.len()];
    let better = |a: u16, b: u16| {
        let key = |set: u16| (set != 0, ranks[usize::from(set)], set.reverse_bits());
        if key(a) > key(b) { a } else { b }
    };
    for set in 1..ranks.len() {
        let members = (set as u32).count_ones() as usize;
        let (smaller, own) = best.split_at_mut(set * gpus);
        own[members - 1] = set as u16;
        for gpu in positions(set as u64) {
            // Whatever is best of fewer is without one of them.
            let without = (set & !(1 << gpu)) * gpus;
            for (own, part) in own[..members - 1].iter_mut().zip(&smaller[without..]) {
                *own = better(*own, *part);
            }
        }
    }
    let quality = |set: u16| &qualities[ranks[usize::from(set)] as usize];
    let whole = best[best.len() - gpus..].to_vec();
    for set in 1..ranks.len() {
        for size in 1..=(set as u32).count_ones() as usize {
            let part = best[set * gpus + size - 1];
            let worth = quality(part).worth(size as u32, quality(whole[size - 1]));
            let all = worth + held[(set & !usize::from(part)) * gpus + size - 1];
            held[set * gpus + size - 1] = all;
            worths[set] += demand.weight(size) * u64::from(all);
        }
    }
    worths
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::collections::BTreeMap;

    use super::*;
    use crate::model::gpu::{GpuInfo, Inventory, NicInfo};
    use crate::model::topology::{LinkMatrix, Topology};
    use crate::placement::link_bandwidth;

    /// The oracle: it reads the inventory and nothing of the above but the weights.
    struct Oracle<'a> {
        host: &'a Inventory,
        demand: &'a Demand,
        worths: BTreeMap<Vec<usize>, u64>,
        wholes: BTreeMap<usize, Score>,
    }

    type Score = (bool, Option<Link>, u32, Reverse<usize>, Reverse<usize>);

    fn combinations(of: &[usize], size: usize) -> Vec<Vec<usize>> {
        match (of, size) {
            (_, 0) => vec![vec![]],
            ([], _) => vec![],
            ([first, rest @ ..], _) => {
                let mut all = combinations(rest, size - 1);
                for set in &mut all {
                    set.insert(0, *first);
                }
                all.extend(combinations(rest, size));
                all
            }
        }
    }

    impl Oracle<'_> {
        fn score(&self, set: &[usize]) -> Score {
            let gpus = &self.host.gpus;
            let pairs = combinations(set, 2);
            let speed = |pair: &Vec<usize>| {
                let version = pair
                    .iter()
                    .map(|gpu| gpus[*gpu].nvlink_version)
                    .min()
                    .unwrap_or(0);
                link_bandwidth(self.host.links.link(pair[0], pair[1]), version)
            };
            let mut numa: Vec<_> = set.iter().map(|gpu| gpus[*gpu].numa_node).collect();
            numa.sort_unstable();
            numa.dedup();
            let near = |nic: &&NicInfo| {
                set.iter().any(|gpu| {
                    let best = self.host.nics.iter().map(|nic| nic.gpu_links[*gpu]).max();
                    best == Some(nic.gpu_links[*gpu])
                })
            };
            (
                set.iter().all(|gpu| gpus[*gpu].model == gpus[set[0]].model),
                pairs
                    .iter()
                    .map(|pair| self.host.links.link(pair[0], pair[1]))
                    .min(),
                pairs.iter().map(speed).sum(),
                Reverse(numa.len()),
                Reverse(self.host.nics.iter().filter(near).count()),
            )
        }

        /// Of the best set of a size, were all free.
        fn whole(&mut self, size: usize) -> Score {
            let all: Vec<usize> = (0..self.host.gpus.len()).collect();
            if !self.wholes.contains_key(&size) {
                let scores = combinations(&all, size).into_iter().map(|set| self.score(&set));
                let best = scores.max().expect("as many");
                self.wholes.insert(size, best);
            }
            self.wholes[&size]
        }

        fn worth(&mut self, free: &[usize]) -> u64 {
            if let Some(worth) = self.worths.get(free) {
                return *worth;
            }
            let mut worth = 0;
            for size in 1..=free.len() {
                let mut left = free.to_vec();
                while left.len() >= size {
                    let mut sets = combinations(&left, size);
                    // The first of equals.
                    sets.reverse();
                    let set = sets
                        .into_iter()
                        .max_by_key(|set| self.score(set))
                        .expect("a part");
                    left.retain(|gpu| !set.contains(gpu));
                    let (_, _, sum, Reverse(numa), Reverse(nics)) = self.score(&set);
                    let (_, _, best, Reverse(least_numa), Reverse(least_nics)) = self.whole(size);
                    let share = if best == 0 {
                        1000
                    } else {
                        sum as usize * 1000 / best as usize
                    };
                    let spread = numa.saturating_sub(least_numa) + nics.saturating_sub(least_nics);
                    worth += self.demand.weight(size) * (size * share / 100 * (100 - spread)) as u64;
                }
            }
            self.worths.insert(free.to_vec(), worth);
            worth
        }

        fn best(&mut self, free: &[usize], wanted: &[usize], size: usize) -> Option<Vec<usize>> {
            let mut best: Option<((Score, u64), Vec<usize>)> = None;
            for set in combinations(wanted, size) {
                let rest: Vec<usize> = free.iter().copied().filter(|gpu| !set.contains(gpu)).collect();
                let key = (self.score(&set), self.worth(&rest));
                // The first of equals has the lowest positions.
                if best.as_ref().is_none_or(|(known, _)| key > *known) {
                    best = Some((key, set));
                }
            }
            best.map(|(_, set)| set)
        }
    }

    fn agrees(host: &Inventory, demand: &Demand, questions: impl Iterator<Item = (u32, u32, usize)>) {
        let table = Table::new(Shape::of(&HostKind::of(host)).expect("a small host"), demand);
        let mut oracle = Oracle {
            host,
            demand,
            worths: BTreeMap::new(),
            wholes: BTreeMap::new(),
        };
        let list =
            |mask: u32| -> Vec<usize> { (0..host.gpus.len()).filter(|gpu| mask >> gpu & 1 == 1).collect() };
        for (free, wanted, size) in questions {
            let found = table.best(free, wanted, size).map(|best| list(best.set));
            let right = oracle.best(&list(free), &list(free & wanted), size);
            assert_eq!(
                found,
                right.filter(|_| size > 0),
                "{size} of {wanted:#b} of {free:#b}"
            );
        }
    }

    fn host(links: LinkMatrix, numa: &[Option<u32>], models: &[&str], nics: Vec<Vec<Link>>) -> Inventory {
        let gpus = (0..links.len()).map(|position| GpuInfo {
            uuid: format!("GPU-{position}").parse().expect("a UUID"),
            index: position as u32,
            model: models[position % models.len()].into(),
            memory_bytes: 80 << 30,
            pci_address: String::new(),
            numa_node: numa[position],
            minor: None,
            mig: None,
            sharing: None,
            drained: None,
            cpu_affinity: String::new(),
            nvlink_version: 3,
        });
        let nics = nics.into_iter().enumerate().map(|(n, gpu_links)| NicInfo {
            name: format!("mlx5_{n}"),
            gpu_links,
            numa_node: None,
        });
        Inventory {
            gpus: gpus.collect(),
            links,
            nics: nics.collect(),
            ..Inventory::default()
        }
    }

    fn links() -> impl Strategy<Value = Link> {
        prop_oneof![
            Just(Link::Sys),
            Just(Link::Node),
            Just(Link::Pix),
            (1..4_u8).prop_map(Link::NvLink),
        ]
    }

    fn hosts() -> impl Strategy<Value = Inventory> {
        (1..=6_usize, 1..=2_usize, 0..3_usize).prop_flat_map(|(gpus, models, nics)| {
            let upper = proptest::collection::vec(links(), gpus * (gpus - 1) / 2);
            let numa = proptest::collection::vec(proptest::option::of(0..2_u32), gpus);
            let nics = proptest::collection::vec(proptest::collection::vec(links(), gpus), nics);
            (upper, numa, nics).prop_map(move |(upper, numa, nics)| {
                let matrix = LinkMatrix::from_upper(gpus, upper).expect("its length");
                host(matrix, &numa, &["A", "B"][..models], nics)
            })
        })
    }

    fn demands() -> impl Strategy<Value = Demand> {
        proptest::array::uniform17(0..20_u8).prop_map(Demand)
    }

    proptest! {
        /// On any host, of any free GPUs, for any size and any demand.
        #[test]
        fn equal_to_brute_force(host in hosts(), demand in demands(), wanted in any::<u32>()) {
            let all = (1_u32 << host.gpus.len()) - 1;
            let questions = (0..=all).flat_map(|free| (0..=host.gpus.len() + 1).map(move |size| (free, size)));
            agrees(&host, &demand, questions.flat_map(|(free, size)| [(free, free, size), (free, wanted, size)]));
        }
    }

    fn fixture(text: &str) -> Inventory {
        let topology = Topology::parse(text).expect("a fixture");
        let nics = topology.nics.iter().map(|nic| nic.gpu_links.clone()).collect();
        host(topology.links, &topology.numa_affinity, &["A"], nics)
    }

    #[test]
    fn real_hosts_are_equal_to_brute_force() {
        for text in [
            include_str!("../model/topology/testdata/dgx1-v100-8x-4ib.txt"),
            include_str!("../model/topology/testdata/h100-8x-nv18-noNIC.txt"),
            include_str!("../model/topology/testdata/a100pcie-4x-bridge-pairs.txt"),
            include_str!("../model/topology/testdata/rtx6000ada-4x-2numa-4nic.txt"),
        ] {
            let host = fixture(text);
            let all = (1_u32 << host.gpus.len()) - 1;
            let sizes = 1..=host.gpus.len();
            agrees(
                &host,
                &Demand::default(),
                (0..=all).flat_map(|free| sizes.clone().map(move |k| (free, free, k))),
            );
        }
    }

    /// Two hosts' worth of a cube mesh, and a plain host: all sets of the whole, and what is left after them.
    #[test]
    fn sixteen_gpus() {
        let ring = |a: usize, b: usize| match (b - a) % 8 {
            1 | 7 if a / 8 == b / 8 => Link::NvLink(2),
            2 if a / 8 == b / 8 => Link::NvLink(1),
            _ if a / 8 == b / 8 => Link::Node,
            _ => Link::Sys,
        };
        let numa: Vec<_> = (0..16).map(|gpu| Some(gpu / 8)).collect();
        let host = host(LinkMatrix::from_fn(16, ring), &numa, &["A"], vec![]);
        let table = Table::new(
            Shape::of(&HostKind::of(&host)).expect("sixteen"),
            &Demand::default(),
        );
        let mut oracle = Oracle {
            host: &host,
            demand: &Demand::default(),
            worths: BTreeMap::new(),
            wholes: BTreeMap::new(),
        };
        let whole: Vec<usize> = (0..16).collect();
        for size in [2, 3, 8] {
            let best = table.best(0xffff, 0xffff, size).expect("there are enough");
            let set: Vec<usize> = positions(best.set.into()).collect();
            let scores = combinations(&whole, size)
                .into_iter()
                .map(|set| oracle.score(&set));
            assert_eq!(Some(oracle.score(&set)), scores.max(), "{size}");
        }
        // A few free ones, whole objective.
        let free: Vec<usize> = vec![0, 1, 3, 7, 8, 9, 15];
        let mask = free.iter().fold(0, |mask, gpu| mask | 1 << gpu);
        for size in 1..=free.len() {
            let found = table
                .best(mask, mask, size)
                .map(|best| positions(best.set.into()).collect());
            assert_eq!(found, oracle.best(&free, &free, size), "{size}");
        }
    }

    #[test]
    fn experience_counts_once_there_is_enough_of_it() {
        let volumes = |scale: u64| {
            std::array::from_fn(|size| match size {
                3 => 90 * scale,
                1 => 10 * scale,
                _ => 0,
            })
        };
        assert_eq!(Demand::from_volumes(&volumes(1000)), Demand::default());
        let learned = Demand::from_volumes(&volumes(5000));
        assert!(learned.weight(3) > learned.weight(1) && learned.weight(1) > learned.weight(2));
        assert_eq!(learned.weight(2), 0);
    }
}
