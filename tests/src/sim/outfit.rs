//! What simulated hosts have.

use std::collections::BTreeSet;

use carrel_core::model::cpus::{HostCpus, NumaNode};
use carrel_core::model::gang_network::Reach;
use carrel_core::model::gpu::{GpuInfo, Inventory, Mig, MigProfile};
use carrel_core::model::gpu_unit::Sharing;
use carrel_core::model::ids::NodeName;
use carrel_core::model::topology::{Link, LinkMatrix};

use super::rng::Rng;

/// Whole GPUs of a host; one in MIG mode follows them.
pub const GPUS: u32 = 4;
/// CPUs of a host.
pub const CPUS: u32 = 16;
/// NUMA nodes of a host, each with two GPUs.
const NUMA_NODES: u32 = 2;
/// Memory of a host, bytes.
pub const MEMORY: u64 = 256 << 30;

/// Features that hosts may have.
pub const FEATURES: [&str; 3] = ["ib", "fast", "big"];

/// In what hosts differ.
#[derive(Clone, Debug)]
pub struct Outfit {
    wiring: Wiring,
    features: BTreeSet<String>,
    /// The NVLink domain that its driver tells of; empty: none.
    pub domain: String,
}

/// Which of a host's whole GPUs NVLink joins.
#[derive(Clone, Copy, Debug)]
enum Wiring {
    /// By two.
    Pairs,
    /// Each with each.
    All,
    /// Each with the next.
    Chain,
    /// None.
    Apart,
}

impl Outfit {
    /// One by chance.
    pub fn random(rng: &mut Rng) -> Self {
        let wirings = [
            Wiring::Pairs,
            Wiring::Pairs,
            Wiring::All,
            Wiring::Chain,
            Wiring::Apart,
        ];
        let wiring = rng.pick(&wirings).copied().unwrap_or(Wiring::Pairs);
        let features = FEATURES.iter().filter(|_| rng.one_in(2));
        Self {
            wiring,
            features: features.map(|&name| name.to_owned()).collect(),
            domain: match rng.below(6) {
                0 | 1 => format!("cluster.{}", rng.below(2)),
                _ => String::new(),
            },
        }
    }

    /// Four GPUs, of which jobs may share the first two; and one in MIG mode.
    pub fn inventory(&self, node: &NodeName) -> Inventory {
        let gpus = (0..=GPUS).map(|index| GpuInfo {
            uuid: format!("GPU-{node}-{index}").parse().expect("a GPU UUID"),
            index,
            model: "NVIDIA A100-PCIE-80GB".into(),
            memory_bytes: 80 << 30,
            pci_address: format!("00000000:{index:02X}:00.0"),
            numa_node: Some(index / 2),
            minor: Some(index),
            mig: (index == GPUS).then(mig),
            sharing: (index < 2).then_some(Sharing::TimeSlice),
            drained: None,
            cpu_affinity: String::new(),
            nvlink_version: 3,
        });
        Inventory {
            cpus: CPUS,
            memory_bytes: MEMORY,
            gpus: gpus.collect(),
            links: LinkMatrix::from_fn(GPUS as usize + 1, |a, b| {
                let joined = match self.wiring {
                    Wiring::Pairs => a / 2 == b / 2,
                    Wiring::All => true,
                    Wiring::Chain => a + 1 == b,
                    Wiring::Apart => false,
                };
                // A GPU in MIG mode has none.
                if joined && b < GPUS as usize {
                    Link::NvLink(12)
                } else {
                    Link::Sys
                }
            }),
            features: self.features.clone(),
            nvlink_domain: self.domain.clone(),
            reach: Reach {
                routed: !self.features.contains("big"),
                host: false,
                address: Some([192, 0, 2, 1].into()),
                namespace: node.to_string(),
            },
            ..Inventory::default()
        }
    }
}

/// Cut into slices of two sizes, as they are wanted.
fn mig() -> Mig {
    let profile = |name: &str, compute: u8, width: u8, starts: &[u8]| MigProfile {
        name: name.into(),
        id: width.into(),
        compute,
        memory_bytes: u64::from(width) * (10 << 30),
        width,
        starts: starts.to_vec(),
        most: starts.len() as u8,
    };
    Mig {
        profiles: vec![
            profile("1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
            profile("3g.40gb", 3, 4, &[0, 4]),
            profile("7g.80gb", 7, 8, &[0]),
        ],
        instances: Vec::new(),
        recut: true,
    }
}

/// The CPUs of every host: two threads a core, the NUMA nodes one after the other.
pub fn cpus() -> HostCpus {
    let each = CPUS / NUMA_NODES;
    let node = |id: u32| NumaNode {
        id,
        cpus: (id * each..(id + 1) * each).collect(),
        memory_bytes: MEMORY / u64::from(NUMA_NODES),
        distances: (0..NUMA_NODES)
            .map(|to| (to, if to == id { 10 } else { 21 }))
            .collect(),
    };
    HostCpus {
        usable: (0..CPUS).collect(),
        cores: (0..CPUS / 2)
            .map(|core| [2 * core, 2 * core + 1].into_iter().collect())
            .collect(),
        nodes: (0..NUMA_NODES).map(node).collect(),
        can_bind: true,
    }
}
