//! What this host has: its GPUs through NVML, the rest from the kernel.
//!
//! NVML is a library of the driver, loaded at run time. A host without it, or
//! where it fails, is a node without GPUs that says why. A fact that a driver
//! or a GPU does not know is left out, and only that fact.
//!
//! Every function here may block for long: on sick hardware NVML's calls take
//! seconds, or hang. Async callers go through `spawn_blocking`.

mod fabric;
mod given;
mod host;
mod library;
mod links;
mod load;
mod mig;
mod mode;
mod policy;
mod sysfs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Context as _;
use carrel_core::model::gpu::Inventory;
use carrel_core::model::ids::GpuUuid;

pub use given::{Given, GivenSlice};
pub use host::HostSizes;
pub use library::{Library, Process};
pub use load::load;
pub use mig::{GpuInstance, Inside, MigDevice, MigState};
pub use mode::{Mode, compute_mode, set_compute_mode};
pub use policy::{Chosen, GpuName, GpuPolicy};

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
    /// What may be done with the GPUs.
    pub policy: GpuPolicy,
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
        Ok(library) => library.describe(&sysfs, &source.policy, &mut inventory),
        Err(error) => inventory.gpu_note = error.note(&sysfs),
    }
    inventory.nics = sysfs.nics(&inventory.gpus);
    inventory
}

/// Those that use a GPU, or one of its MIG GPU instances. A process of which the driver does not say where it is
/// may be in any.
pub fn pids_in(processes: &[Process], instance: Option<u32>) -> Vec<u32> {
    let in_it = |process: &&Process| {
        instance.is_none() || process.gpu_instance.is_none() || process.gpu_instance == instance
    };
    processes
        .iter()
        .filter(in_it)
        .map(|process| process.pid)
        .collect()
}

/// The processes that have a compute context on each GPU, also over MPS; a
/// GPU that nobody uses has an empty list. Blocks.
///
/// An error means that it is not known: a GPU must not be taken as free then.
pub fn processes(source: &NvmlSource) -> anyhow::Result<BTreeMap<GpuUuid, Vec<Process>>> {
    let library =
        Library::open(source.library.as_deref()).context("cannot ask which processes use the GPUs")?;
    library.processes()
}

/// A GPU in MIG mode, as it is now; none: it is not in MIG mode, or not there. Blocks.
pub fn mig_state(source: &NvmlSource, gpu: &GpuUuid) -> anyhow::Result<Option<MigState>> {
    let library = Library::open(source.library.as_deref()).context("cannot ask what a GPU is cut into")?;
    library.mig_state(gpu)
}
