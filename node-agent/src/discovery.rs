//! What the host has, looked at again and again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use carrel_core::agent::Input;
use carrel_core::model::cpus::{CpuSet, HostCpus};
use carrel_core::model::gpu::{GpuInfo, Inventory};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::cpus::Kernel;
use crate::gpu::{self, Given, NvmlSource};
use crate::jobs::Slices;
use crate::mps::Mps;
use crate::runtime::Runtime;

/// Between two looks: a GPU that fell off its bus is found by its jobs at once, and by others then.
const INTERVAL: Duration = Duration::from_mins(1);
/// Longest wait for one look; on sick hardware NVML hangs.
const TIMEOUT: Duration = Duration::from_mins(2);

/// What a host has.
#[derive(Clone, Debug)]
pub struct Host {
    /// As the broker is told.
    pub inventory: Inventory,
    /// Of which jobs are given their own.
    pub cpus: HostCpus,
}

/// What is looked at at once, though it is not time.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The images.
    pub images: Arc<Notify>,
    /// Everything.
    pub host: Arc<Notify>,
}

/// What the host is looked at through.
#[derive(Clone)]
pub struct Through {
    /// GPUs.
    pub nvml: NvmlSource,
    /// Containers, which are to be given them.
    pub runtime: Runtime,
    /// What GPUs are cut into.
    pub slices: Slices,
    /// Daemons of those that are shared by MPS.
    pub mps: Mps,
}

/// Looks once: what NVML and the kernel say, less the GPUs that containers could not be given.
///
/// # Errors
/// NVML hangs.
pub async fn look(through: &Through) -> Result<Host> {
    let Through {
        nvml,
        runtime,
        slices,
        mps,
    } = through;
    let source = nvml.clone();
    let looking = tokio::task::spawn_blocking(move || gpu::discover(&source));
    let looked = tokio::time::timeout(TIMEOUT, looking).await;
    let mut inventory = looked.context("NVML does not answer: see dmesg on the node")??;
    inventory.reach = runtime.reach().clone();
    inventory.no_root = runtime.no_root().unwrap_or_default().to_owned();
    for gpu in &mut inventory.gpus {
        if gpu.drained.is_some() {
            continue;
        }
        if let Err(error) = givable(gpu, runtime, slices).await {
            gpu.drained = Some(format!("containers cannot be given it: {error:#}"));
        }
    }
    slices.correct(&mut inventory);
    mps.correct(&mut inventory);
    let runtime_of_task = runtime.clone();
    let cpus = move || Kernel::default().cpus(runtime_of_task.limits().as_ref());
    let cpus = tokio::task::spawn_blocking(cpus).await?;
    if nvml.sizes.cpus.is_none() && !cpus.usable.is_empty() {
        // What the parent cgroup of jobs lacks is not to be had, though this process may run there.
        let there = u32::try_from(cpus.usable.len()).unwrap_or(u32::MAX);
        inventory.cpus = inventory.cpus.min(there.saturating_sub(nvml.sizes.reserved_cpus));
    }
    inventory.isolation = format!("{}; {}", runtime.isolation(), own_cpus(&inventory, &cpus));
    Ok(Host { inventory, cpus })
}

/// For people: whether jobs get CPUs of their own, and near to what.
fn own_cpus(inventory: &Inventory, cpus: &HostCpus) -> String {
    if let Some(why) = cpus.obstacle(inventory.cpus) {
        return format!("no CPUs of a job's own ({why})");
    }
    let far = inventory
        .gpus
        .iter()
        .filter(|gpu| cpus.near(&gpu.cpu_affinity, gpu.numa_node).is_empty());
    let far: CpuSet = far.map(|gpu| gpu.index).collect();
    if far.is_empty() {
        "each job has CPUs of its own".to_owned()
    } else {
        format!("each job has CPUs of its own (which are near to GPU {far} is not known)")
    }
}

/// Whether containers could be given a GPU, or the slices that it has.
async fn givable(gpu: &GpuInfo, runtime: &Runtime, slices: &Slices) -> Result<()> {
    let given = match &gpu.mig {
        None => vec![Given::from(gpu.clone())],
        Some(mig) => slices.there(gpu, &mig.instances).await?,
    };
    runtime.gpu_environment(&given).await?;
    Ok(())
}

/// Says what was found, for the log.
pub fn announce(inventory: &Inventory) {
    if !inventory.gpu_note.is_empty() {
        tracing::warn!(note = inventory.gpu_note, "GPUs");
    }
    let mut drained = inventory.gpus.iter().filter(|gpu| gpu.drained.is_some());
    if let Some(first) = drained.next() {
        let reason = first.drained.as_deref().unwrap_or_default();
        let more = drained.count();
        tracing::warn!(
            gpu = first.index,
            reason,
            more,
            "GPUs are not offered; `carrel nodes` shows why"
        );
    }
    tracing::info!(
        gpus = inventory.gpus.len(),
        cpus = inventory.cpus,
        memory_mib = inventory.memory_bytes >> 20,
        driver = inventory.driver_version,
        "this node"
    );
}

/// Says which GPUs have fallen away, or are others than they were, for the log.
fn announce_lost(before: &Inventory, now: &Inventory) {
    for gpu in &before.gpus {
        if now.gpus.iter().any(|other| other.uuid == gpu.uuid) {
            continue;
        }
        let in_its_place = now.gpus.iter().find(|other| other.pci_address == gpu.pci_address);
        tracing::warn!(
            gpu = gpu.index,
            uuid = %gpu.uuid,
            pci_address = gpu.pci_address,
            in_its_place = in_its_place.map(|other| other.uuid.as_str()),
            left = now.gpus.len(),
            "a GPU is gone: NVML does not list it any more; see dmesg"
        );
    }
}

/// Looks at the host now and then, and at the images also; at either at once when it changes, until cancelled.
pub async fn run(
    through: Through,
    mut last: Inventory,
    changes: Changes,
    inputs: mpsc::Sender<Input>,
    cancel: CancellationToken,
) {
    let mut due = false;
    loop {
        let inputs_of_host = if due {
            match look(&through).await {
                Ok(Host { inventory, cpus }) => {
                    if inventory != last {
                        announce_lost(&last, &inventory);
                        announce(&inventory);
                        last.clone_from(&inventory);
                    }
                    vec![Input::Inventory(Box::new(inventory)), Input::Cpus(Box::new(cpus))]
                }
                Err(error) => {
                    tracing::error!(
                        error = format!("{error:#}"),
                        "the host cannot be looked at; going on with what was there"
                    );
                    Vec::new()
                }
            }
        } else {
            Vec::new()
        };
        let images = match through.runtime.images().await {
            Ok(images) => Some(Input::Images(images)),
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the images on this node are not known"
                );
                None
            }
        };
        for input in inputs_of_host.into_iter().chain(images) {
            if inputs.send(input).await.is_err() {
                return;
            }
        }
        tokio::select! {
            // All arms only wait; notifications are not lost, since each has a permit.
            () = cancel.cancelled() => return,
            () = changes.images.notified() => due = false,
            () = changes.host.notified() => due = true,
            () = tokio::time::sleep(INTERVAL) => due = true,
        }
    }
}
