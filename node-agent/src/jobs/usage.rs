//! Who uses a GPU, by what NVML says.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use carrel_core::model::gpu::Inventory;
use carrel_core::model::gpu_unit::{GpuUnit, Slice};
use carrel_core::model::ids::GpuUuid;

use crate::gpu::{self, NvmlSource};

/// Longest wait for NVML, which hangs on sick hardware.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Processes that a message names.
const SHOWN: usize = 3;

/// Who uses any of these GPUs, for people; none: nobody does. Of a GPU that jobs share it cannot be said:
/// there, the container's own processes are what is looked at.
///
/// # Errors
/// It is not known.
pub(super) async fn used_by(
    nvml: &NvmlSource,
    inventory: &Inventory,
    units: &[GpuUnit],
) -> Result<Option<String>> {
    let whole = units.iter().filter(|unit| unit.slice == Slice::Whole);
    let gpus: Vec<&GpuUuid> = whole.map(|unit| &unit.gpu).collect();
    if gpus.is_empty() {
        return Ok(None);
    }
    let source = nvml.clone();
    let asked = tokio::task::spawn_blocking(move || gpu::processes(&source));
    let used = tokio::time::timeout(TIMEOUT, asked)
        .await
        .context("NVML does not answer which processes use the GPUs")???;
    for uuid in gpus {
        let Some(pids) = used.get(uuid) else {
            let name = name(inventory, uuid);
            return Ok(Some(format!(
                "{name} has fallen away: NVML does not list it any more; see dmesg on the node"
            )));
        };
        if !pids.is_empty() {
            return Ok(Some(message(&name(inventory, uuid), pids)));
        }
    }
    Ok(None)
}

/// "GPU 3".
fn name(inventory: &Inventory, uuid: &GpuUuid) -> String {
    let known = inventory.gpus.iter().find(|gpu| gpu.uuid == *uuid);
    known.map_or_else(|| format!("GPU {uuid}"), |gpu| format!("GPU {}", gpu.index))
}

fn message(gpu: &str, pids: &[u32]) -> String {
    let mut text = format!("{gpu} is in use by process ");
    for (n, pid) in pids.iter().take(SHOWN).enumerate() {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let comm = comm.trim();
        let comma = if n > 0 { ", " } else { "" };
        let _infallible = match comm {
            "" => write!(text, "{comma}{pid}"),
            comm => write!(text, "{comma}{pid} ({comm})"),
        };
    }
    if pids.len() > SHOWN {
        let _infallible = write!(text, " and {} more", pids.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_gpu_are_named() {
        let own = std::process::id();
        let text = message("GPU 3", &[own, u32::MAX, 1, 2, 3]);
        assert!(
            text.starts_with(&format!("GPU 3 is in use by process {own} (")),
            "{text}"
        );
        assert!(text.ends_with("and 2 more"), "{text}");
    }
}
