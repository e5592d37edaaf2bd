use proptest::prelude::*;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::*;
use crate::model::gpu::{GpuInfo, Inventory, NicInfo};
use crate::model::topology::Link;
use crate::model::topology::{LinkMatrix, Topology};
use crate::placement::HostKind;
use crate::placement::gpu_set::positions;
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
        include_str!("../../model/topology/testdata/dgx1-v100-8x-4ib.txt"),
        include_str!("../../model/topology/testdata/h100-8x-nv18-noNIC.txt"),
        include_str!("../../model/topology/testdata/a100pcie-4x-bridge-pairs.txt"),
        include_str!("../../model/topology/testdata/rtx6000ada-4x-2numa-4nic.txt"),
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
