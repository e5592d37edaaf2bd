//! GPUs and NICs, as an agent finds them.

use serde::{Deserialize, Serialize};

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
    /// MIG mode is on.
    pub mig_enabled: bool,
    /// Why nothing may be placed on it.
    pub drained: Option<String>,
    /// CPUs near to it, as a kernel cpulist ("0-51,104-155"); empty: unknown.
    pub cpu_affinity: String,
    /// NVLink version (4 on Hopper); 0: none or unknown.
    pub nvlink_version: u32,
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
}
