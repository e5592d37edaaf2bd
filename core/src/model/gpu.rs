//! GPUs and NICs, as an agent finds them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::gang_network::Reach;
use super::gpu_unit::Sharing;
use super::ids::GpuUuid;
use super::topology::{Link, LinkMatrix};

/// One GPU of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// The driver's UUID.
    pub uuid: GpuUuid,
    /// The driver's index on its host.
    pub index: u32,
    /// The driver's product name, "NVIDIA H100 80GB HBM3".
    pub model: String,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// PCI address, "00000000:1B:00.0".
    pub pci_address: String,
    /// NUMA node, where the platform says.
    pub numa_node: Option<u32>,
    /// N of `/dev/nvidiaN`, where the driver says.
    pub minor: Option<u32>,
    /// MIG mode is on: it is given in slices.
    pub mig: Option<Mig>,
    /// The operator lets jobs share it, in this way.
    pub sharing: Option<Sharing>,
    /// Why nothing may be placed on it.
    pub drained: Option<String>,
    /// CPUs near to it, as a kernel cpulist ("0-51,104-155"); empty: unknown.
    pub cpu_affinity: String,
    /// NVLink version (4 on Hopper); 0: none or unknown.
    pub nvlink_version: u32,
}

/// Most memory slices of a GPU: today's have 8.
pub const MAX_MEMORY_SLICES: u8 = 32;

/// A GPU in MIG mode (NVIDIA Multi-Instance GPU User Guide).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    /// GPU instances that it can be cut into.
    pub profiles: Vec<MigProfile>,
    /// GPU instances that there are.
    pub instances: Vec<MigInstance>,
    /// The operator lets idle parts of it be cut anew.
    pub recut: bool,
}

/// A kind of GPU instance, as the driver offers it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MigProfile {
    /// "1g.10gb".
    pub name: String,
    /// The driver's number, as `nvidia-smi mig -lgip` prints it.
    pub id: u32,
    /// Compute slices.
    pub compute: u8,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Memory slices.
    pub width: u8,
    /// Memory slices that it may start at, in order.
    pub starts: Vec<u8>,
    /// Most of them on one GPU.
    pub most: u8,
}

/// A GPU instance that there is, with one compute instance over all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    /// The profile's name.
    pub profile: String,
    /// First of its memory slices.
    pub start: u8,
    /// Number of its memory slices.
    pub width: u8,
    /// UUID of its MIG device, "MIG-…".
    pub uuid: GpuUuid,
}

/// One NIC of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicInfo {
    /// Kernel or RDMA device name.
    pub name: String,
    /// Link to each GPU, in the order of [`Inventory::gpus`].
    pub gpu_links: Vec<Link>,
    /// NUMA node, where the platform says.
    pub numa_node: Option<u32>,
}

/// What a host has, as its agent discovered it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Hardware threads that jobs may use.
    pub cpus: u32,
    /// Memory that jobs may use, bytes.
    pub memory_bytes: u64,
    /// In the driver's order.
    pub gpus: Vec<GpuInfo>,
    /// Links between them, by position in `gpus`.
    pub links: LinkMatrix,
    /// NICs.
    pub nics: Vec<NicInfo>,
    /// NVIDIA driver version; empty: none.
    pub driver_version: String,
    /// Operating system and kernel, for people.
    pub os: String,
    /// Why GPUs that may exist are not offered; empty: nothing to say.
    pub gpu_note: String,
    /// Library that the GPUs were discovered through; empty: none.
    pub nvml_library: String,
    /// For people: what a job's container is kept in, and which of its uses are limited.
    #[serde(default)]
    pub isolation: String,
    /// Why no container's user can be root in it here; empty: he can.
    #[serde(default)]
    pub no_root: String,
    /// What its operator says of it, for `--constraint`.
    #[serde(default)]
    pub features: BTreeSet<String>,
    /// NVLink domain over several hosts that its GPUs are in, as the driver names it: cluster UUID, '.',
    /// clique id. Empty: none.
    #[serde(default)]
    pub nvlink_domain: String,
    /// How the members of a gang can reach each other there.
    #[serde(default)]
    pub reach: Reach,
}
