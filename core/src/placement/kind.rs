//! What placement looks at of a host, apart from what is free.

use std::ops::RangeBounds;

use super::gpu_set::positions;
use super::slices::{MigLayout, MigRoom};
use super::units::PartRoom;
use crate::model::gpu::{GpuInfo, Inventory};
use crate::model::gpu_unit::{Sharing, WHOLE_MILLI};
use crate::model::resources::model_matches;
use crate::model::topology::{Link, LinkMatrix};

/// Most GPUs of a host that are looked at: bits of a mask.
pub const MAX_GPUS: usize = 64;

/// Hosts of one kind are alike in everything that placement looks at. Positions are those of
/// [`Inventory::gpus`]; what a host has beyond [`MAX_GPUS`] is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostKind {
    /// Hardware threads that jobs may use.
    pub cpus: u32,
    /// Memory that jobs may use, bytes.
    pub memory_bytes: u64,
    /// Product name of each GPU.
    pub models: Vec<String>,
    /// NUMA node of each GPU.
    pub numa: Vec<Option<u32>>,
    /// NVLink version of each GPU.
    pub nvlink_versions: Vec<u32>,
    /// Links between the GPUs.
    pub links: LinkMatrix,
    /// Links of each NIC to the GPUs.
    pub nics: Vec<Vec<Link>>,
    /// Why users cannot be root in containers on them; empty: they can.
    pub no_root: String,
    /// Memory of each GPU, bytes.
    pub gpu_memory: Vec<u64>,
    /// GPUs that may be placed as whole GPUs: neither drained nor in MIG mode.
    pub placeable: u64,
    /// What each GPU in MIG mode that is not drained can be cut into.
    pub mig: Vec<Option<MigLayout>>,
    /// How jobs may share each of the placeable GPUs.
    pub sharing: Vec<Option<Sharing>>,
}

/// What requests to come see of a host: which of its GPUs they are is the same to them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Outfit {
    /// Hardware threads.
    pub cpus: u32,
    /// Memory, bytes, a little less than it is: hosts that are otherwise alike differ in it by a page or two.
    pub memory_bytes: u64,
    /// GPUs that are placed as whole ones or as shares, in order.
    pub gpus: Vec<OutfitGpu>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OutfitGpu {
    pub model: String,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// How jobs may share it.
    pub sharing: Option<Sharing>,
}

/// How much of a host's CPUs and of its memory is free, in steps of [`CPU_STEPS`] and of [`MEMORY_STEPS`] of all.
pub(super) type Class = (u16, u16);
/// On hosts with as many CPUs, or with fewer, each counts.
const CPU_STEPS: u64 = 128;
/// Memory is seldom what is short.
const MEMORY_STEPS: u64 = 16;

/// The whole part of `a * b / of`, which is no more than `b`.
fn part(a: u64, b: u64, of: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / of,
        // Wider numbers are slower to divide.
        None => (u128::from(a) * u128::from(b) / u128::from(of)) as u64,
    }
}

impl Outfit {
    /// Thousandths of its GPUs.
    pub fn milli(&self) -> u64 {
        self.gpus.len() as u64 * u64::from(WHOLE_MILLI)
    }

    /// The class of a host with so much free.
    pub fn class(&self, cpus: u32, memory_bytes: u64) -> Class {
        let step = |free: u64, all: u64, steps: u64| part(free.min(all), steps, all.max(1)) as u16;
        (
            step(cpus.into(), self.cpus.into(), CPU_STEPS),
            step(memory_bytes, self.memory_bytes, MEMORY_STEPS),
        )
    }

    /// CPUs and memory that every host of a class has free.
    pub fn least(&self, (cpus, memory): Class) -> (u32, u64) {
        let least = |step: u16, all: u64, steps: u64| {
            let step = u64::from(step);
            part(step, all, steps) + u64::from(!(step * (all % steps)).is_multiple_of(steps))
        };
        let cpus = least(cpus, self.cpus.into(), CPU_STEPS) as u32;
        (cpus, least(memory, self.memory_bytes, MEMORY_STEPS))
    }

    /// The class of what is left of a class after so much was taken.
    pub fn left(&self, class: Class, cpus: u32, memory_bytes: u64) -> Class {
        let (free_cpus, free_memory) = self.least(class);
        self.class(
            free_cpus.saturating_sub(cpus),
            free_memory.saturating_sub(memory_bytes),
        )
    }
}

/// NUMA node of each GPU. Where none is told, as by old drivers, GPUs that are near the same CPUs are on one.
fn numa_nodes(gpus: &[GpuInfo]) -> Vec<Option<u32>> {
    if gpus.iter().any(|gpu| gpu.numa_node.is_some()) {
        return gpus.iter().map(|gpu| gpu.numa_node).collect();
    }
    let mut known: Vec<&str> = Vec::new();
    let mut node = |affinity| {
        let at = known.iter().position(|other| *other == affinity);
        at.unwrap_or_else(|| {
            known.push(affinity);
            known.len() - 1
        })
    };
    let near = |gpu: &&GpuInfo| !gpu.cpu_affinity.is_empty();
    let told = gpus.iter().map(|gpu| Some(gpu).filter(near));
    told.map(|gpu| gpu.map(|gpu| node(gpu.cpu_affinity.as_str()) as u32))
        .collect()
}

impl HostKind {
    /// The kind of a host.
    pub fn of(inventory: &Inventory) -> Self {
        let gpus = &inventory.gpus[..inventory.gpus.len().min(MAX_GPUS)];
        let placeable = gpus
            .iter()
            .enumerate()
            .filter(|(_, gpu)| gpu.drained.is_none() && gpu.mig.is_none());
        // A matrix that is not of the GPUs' size says nothing of links: the slowest is assumed.
        let told = inventory.links.len() == inventory.gpus.len();
        let link = |a, b| {
            if told {
                inventory.links.link(a, b)
            } else {
                Link::Sys
            }
        };
        let near = |links: &[Link]| {
            (0..gpus.len())
                .map(|gpu| links.get(gpu).copied().unwrap_or(Link::Sys))
                .collect()
        };
        Self {
            cpus: inventory.cpus,
            memory_bytes: inventory.memory_bytes,
            models: gpus.iter().map(|gpu| gpu.model.clone()).collect(),
            numa: numa_nodes(gpus),
            nvlink_versions: gpus.iter().map(|gpu| gpu.nvlink_version).collect(),
            links: LinkMatrix::from_fn(gpus.len(), link),
            nics: inventory.nics.iter().map(|nic| near(&nic.gpu_links)).collect(),
            no_root: inventory.no_root.clone(),
            gpu_memory: gpus.iter().map(|gpu| gpu.memory_bytes).collect(),
            sharing: gpus
                .iter()
                .map(|gpu| gpu.sharing.filter(|_| gpu.drained.is_none() && gpu.mig.is_none()))
                .collect(),
            mig: gpus
                .iter()
                .map(|gpu| MigLayout::of(gpu).filter(|_| gpu.drained.is_none()))
                .collect(),
            placeable: placeable.fold(0, |mask, (position, _)| mask | 1 << position),
        }
    }

    pub(super) fn outfit(&self) -> Outfit {
        let gpus = positions(self.placeable).map(|gpu| OutfitGpu {
            model: self.models[gpu].clone(),
            memory_bytes: self.gpu_memory[gpu],
            sharing: self.sharing[gpu],
        });
        let mut gpus: Vec<OutfitGpu> = gpus.collect();
        gpus.sort_unstable();
        // The five highest bits: within 6 %.
        let lower = 64_u32.saturating_sub(self.memory_bytes.leading_zeros() + 5);
        Outfit {
            cpus: self.cpus,
            memory_bytes: self.memory_bytes >> lower << lower,
            gpus,
        }
    }

    /// Number of GPUs.
    pub fn gpus(&self) -> usize {
        self.models.len()
    }

    /// All GPUs.
    pub(super) fn all(&self) -> u64 {
        self.gpus_where(|_| true)
    }

    /// GPUs of the models that a request names; of any when it names none.
    pub(crate) fn of_model(&self, pattern: &str) -> u64 {
        if pattern.is_empty() {
            return self.all();
        }
        // Mostly they are of one model.
        let mut last: Option<(&str, bool)> = None;
        let mut mask = 0;
        for (position, model) in self.models.iter().enumerate() {
            let known = last.filter(|(known, _)| known == model);
            let (_, right) = *last.insert(known.unwrap_or_else(|| (model, model_matches(pattern, model))));
            mask |= u64::from(right) << position;
        }
        mask
    }

    /// GPUs with so much memory, bytes.
    pub(super) fn with_memory(&self, bytes: impl RangeBounds<u64>) -> u64 {
        self.gpus_where(|gpu| bytes.contains(&self.gpu_memory[gpu]))
    }

    /// GPUs that jobs may share, in this way or in any.
    pub(super) fn shared(&self, sharing: Option<Sharing>) -> u64 {
        self.gpus_where(|gpu| self.sharing[gpu].is_some_and(|by| sharing.is_none_or(|wanted| wanted == by)))
    }

    /// Whether GPUs in `right` have a MIG profile, and none of those in MIG mode is cut anew to have more of it.
    pub(super) fn is_uncut(&self, right: u64, profile: &str) -> bool {
        let layouts = positions(right).filter_map(|gpu| self.mig.get(gpu)?.as_ref());
        let (fixed, cut): (Vec<_>, Vec<_>) = layouts.partition(|layout| layout.fixed.is_some());
        let has = |layout: &&MigLayout| layout.profiles.iter().any(|known| known.name == profile);
        cut.is_empty() && fixed.iter().any(has)
    }

    /// GPUs of which not all may be given away, where nothing is held.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u8, PartRoom)> {
        let gpus = self.mig.iter().enumerate();
        gpus.filter(|(_, layout)| layout.is_some()).map(|(gpu, layout)| {
            let fixed = layout.as_ref().and_then(|layout| layout.fixed.clone());
            let room = MigRoom {
                held: Vec::new(),
                idle: fixed.unwrap_or_default(),
            };
            (gpu as u8, PartRoom::Mig(room))
        })
    }

    fn gpus_where(&self, holds: impl Fn(usize) -> bool) -> u64 {
        (0..self.gpus())
            .filter(|gpu| holds(*gpu))
            .fold(0, |mask, gpu| mask | 1 << gpu)
    }

    /// Bandwidth between two GPUs in MB/s.
    pub(super) fn bandwidth(&self, a: usize, b: usize) -> u32 {
        let version = self.nvlink_versions[a].min(self.nvlink_versions[b]);
        super::link_bandwidth(self.links.link(a, b), version)
    }
}
