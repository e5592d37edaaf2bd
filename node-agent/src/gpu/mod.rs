//! What this host has: its GPUs through NVML, the rest from the kernel.
//!
//! NVML is a library of the driver, loaded at run time. A host without it, or
//! where it fails, is a node without GPUs that says why. A fact that a driver
//! or a GPU does not know is left out, and only that fact.
//!
//! Every function here may block for long: on sick hardware NVML's calls take
//! seconds, or hang. Async callers go through `spawn_blocking`.

mod fabric;
mod host;
mod library;
mod links;
mod sysfs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Context as _;
use carrel_core::model::gpu::Inventory;
use carrel_core::model::ids::GpuUuid;

pub use host::HostSizes;
pub use library::Library;

use sysfs::Sysfs;

/// Where GPUs are looked for, and how much of the host is offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvmlSource {
    /// NVML's library; none: `libnvidia-ml.so.1` as the dynamic linker finds
    /// it, then where drivers in containers and unusual systems put it.
    pub library: Option<PathBuf>,
    /// CPUs and memory to offer.
    pub sizes: HostSizes,
    /// What the operator says of the host, for `--constraint`.
    pub features: BTreeSet<String>,
}

/// Discovers the host. Blocks.
///
/// Never fails: what keeps GPUs from being offered stands in [`Inventory::gpu_note`].
pub fn discover(source: &NvmlSource) -> Inventory {
    let sysfs = Sysfs::default();
    let mut inventory = Inventory {
        cpus: source.sizes.offered_cpus(),
        memory_bytes: source.sizes.offered_memory(),
        os: host::operating_system(),
        features: source.features.clone(),
        ..Inventory::default()
    };
    match Library::open(source.library.as_deref()) {
        Ok(library) => library.describe(&sysfs, &mut inventory),
        Err(error) => inventory.gpu_note = error.note(&sysfs),
    }
    inventory.nics = sysfs.nics(&inventory.gpus);
    inventory
}

/// The process ids that have a compute context on each GPU, also over MPS; a
/// GPU that nobody uses has an empty list. Blocks.
///
/// An error means that it is not known: a GPU must not be taken as free then.
pub fn processes(source: &NvmlSource) -> anyhow::Result<BTreeMap<GpuUuid, Vec<u32>>> {
    let library =
        Library::open(source.library.as_deref()).context("cannot ask which processes use the GPUs")?;
    library.processes()
}
