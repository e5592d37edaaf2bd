//! What the host has, looked at again and again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use carrel_core::agent::Input;
use carrel_core::model::gpu::Inventory;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::gpu::{self, NvmlSource};
use crate::runtime::Runtime;

/// Between two looks: a GPU that fell off its bus is found by its jobs at once, and by others then.
const INTERVAL: Duration = Duration::from_mins(1);
/// Longest wait for one look; on sick hardware NVML hangs.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Looks once: what NVML and the kernel say, less the GPUs that containers could not be given.
///
/// # Errors
/// NVML hangs.
pub async fn look(nvml: &NvmlSource, runtime: &Runtime) -> Result<Inventory> {
    let source = nvml.clone();
    let looking = tokio::task::spawn_blocking(move || gpu::discover(&source));
    let looked = tokio::time::timeout(TIMEOUT, looking).await;
    let mut inventory = looked.context("NVML does not answer: see dmesg on the node")??;
    inventory.isolation = runtime.isolation();
    inventory.no_root = runtime.no_root().unwrap_or_default().to_owned();
    for gpu in &mut inventory.gpus {
        if gpu.drained.is_none()
            && gpu.mig.is_none()
            && let Err(error) = runtime.gpu_environment(std::slice::from_ref(gpu)).await
        {
            gpu.drained = Some(format!("containers cannot be given it: {error:#}"));
        }
    }
    Ok(inventory)
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

/// Looks at the host now and then, and at the images also when `images_changed` says so, until cancelled.
pub async fn run(
    nvml: NvmlSource,
    runtime: Runtime,
    mut last: Inventory,
    images_changed: Arc<Notify>,
    inputs: mpsc::Sender<Input>,
    cancel: CancellationToken,
) {
    let mut due = false;
    loop {
        let input = if due {
            match look(&nvml, &runtime).await {
                Ok(inventory) => {
                    if inventory != last {
                        announce(&inventory);
                        last.clone_from(&inventory);
                    }
                    Some(Input::Inventory(Box::new(inventory)))
                }
                Err(error) => {
                    tracing::error!(
                        error = format!("{error:#}"),
                        "the host cannot be looked at; going on with what was there"
                    );
                    None
                }
            }
        } else {
            None
        };
        let images = match runtime.images().await {
            Ok(images) => Some(Input::Images(images)),
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the images on this node are not known"
                );
                None
            }
        };
        for input in input.into_iter().chain(images) {
            if inputs.send(input).await.is_err() {
                return;
            }
        }
        tokio::select! {
            // All arms only wait; a notification is not lost, since there is one permit.
            () = cancel.cancelled() => return,
            () = images_changed.notified() => due = false,
            () = tokio::time::sleep(INTERVAL) => due = true,
        }
    }
}
