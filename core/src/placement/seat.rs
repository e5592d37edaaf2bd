//! What GPU units of a host have: how they are joined, and what is near to them.

use crate::model::gpu::{Inventory, NicInfo};
use crate::model::gpu_unit::{GpuUnit, Slice};
use crate::model::topology::Link;

/// What the units that a job holds on a host have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// Positions in [`Inventory::gpus`] of the GPUs, each once, as far as they are there.
    pub gpus: Vec<usize>,
    /// Link of each of them to each, none to itself; empty unless all are whole.
    pub links: Vec<Vec<Option<Link>>>,
    /// The slowest of these links, and the positions that it joins.
    pub worst: Option<(usize, usize, Link)>,
    /// NUMA nodes of the GPUs, ascending, as far as they are known.
    pub numa_nodes: Vec<u32>,
    /// NICs with the best link to one of the GPUs.
    pub nics: Vec<String>,
}

/// What these units of a host have.
pub fn seat(inventory: &Inventory, units: &[GpuUnit]) -> Seat {
    let mut gpus: Vec<usize> = Vec::new();
    for unit in units {
        let position = inventory.gpus.iter().position(|gpu| gpu.uuid == unit.gpu);
        gpus.extend(position.filter(|position| !gpus.contains(position)));
    }
    let whole = units.iter().all(|unit| unit.slice == Slice::Whole);
    // A matrix that is not of the GPUs' size says nothing of links: the slowest is assumed.
    let told = inventory.links.len() == inventory.gpus.len();
    let link = |a: usize, b: usize| {
        (a != b).then(|| {
            if told {
                inventory.links.link(a, b)
            } else {
                Link::Sys
            }
        })
    };
    let row = |a: &usize| gpus.iter().map(|b| link(*a, *b)).collect();
    let pairs = gpus.iter().enumerate().flat_map(|(n, a)| {
        let others = gpus[n + 1..].iter();
        others.filter_map(move |b| Some((*a, *b, link(*a, *b)?)))
    });
    let mut numa_nodes: Vec<u32> = gpus
        .iter()
        .filter_map(|gpu| inventory.gpus[*gpu].numa_node)
        .collect();
    numa_nodes.sort_unstable();
    numa_nodes.dedup();
    let near = |nic: &&NicInfo| {
        gpus.iter().any(|gpu| {
            let of = |nic: &NicInfo| nic.gpu_links.get(*gpu).copied();
            let best = inventory.nics.iter().filter_map(of).max();
            best.is_some() && of(nic) == best
        })
    };
    Seat {
        links: if whole {
            gpus.iter().map(row).collect()
        } else {
            Vec::new()
        },
        worst: pairs.filter(|_| whole).min_by_key(|(a, b, link)| (*link, *a, *b)),
        numa_nodes,
        nics: inventory
            .nics
            .iter()
            .filter(near)
            .map(|nic| nic.name.clone())
            .collect(),
        gpus,
    }
}
