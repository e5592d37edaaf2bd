//! Who uses a GPU, or a slice of one, by what NVML says.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use carrel_core::model::gpu::Inventory;
use carrel_core::model::gpu_unit::{GpuUnit, Slice};

use crate::gpu::{self, Library, NvmlSource};

/// Longest wait for NVML, which hangs on sick hardware.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Processes that a message names.
const SHOWN: usize = 3;

/// Who uses any of these units, for people; none: nobody does. Of a GPU that jobs share it cannot be said:
/// there, the container's own processes are what is looked at.
///
/// # Errors
/// It is not known.
pub(super) async fn used_by(
    nvml: &NvmlSource,
    inventory: &Inventory,
    units: &[GpuUnit],
) -> Result<Option<String>> {
    let alone = units.iter().filter(|unit| match unit.slice {
        Slice::Whole | Slice::Mig { .. } => true,
        Slice::Share { .. } => false,
    });
    let alone: Vec<GpuUnit> = alone.cloned().collect();
    if alone.is_empty() {
        return Ok(None);
    }
    let (source, asked) = (nvml.clone(), alone.clone());
    let asked = tokio::task::spawn_blocking(move || users(&source, &asked));
    let used = tokio::time::timeout(TIMEOUT, asked)
        .await
        .context("NVML does not answer which processes use the GPUs")???;
    for (unit, pids) in alone.iter().zip(used) {
        let name = name(inventory, unit);
        match pids {
            None => {
                return Ok(Some(format!(
                    "{name} has fallen away: NVML does not list it any more; see dmesg on the node"
                )));
            }
            Some(pids) if !pids.is_empty() => return Ok(Some(message(&name, &pids))),
            Some(_) => {}
        }
    }
    Ok(None)
}

/// The process ids that use each unit; none: its GPU is not listed. Blocks.
fn users(source: &NvmlSource, units: &[GpuUnit]) -> Result<Vec<Option<Vec<u32>>>> {
    let library =
        Library::open(source.library.as_deref()).context("cannot ask which processes use the GPUs")?;
    let used = library.processes()?;
    let of_unit = |unit: &GpuUnit| {
        let Some(processes) = used.get(&unit.gpu) else {
            return Ok(None);
        };
        let instance = match &unit.slice {
            Slice::Whole | Slice::Share { .. } => None,
            Slice::Mig { profile, start, .. } => {
                let state = library.mig_state(&unit.gpu)?.unwrap_or_default();
                let there = state.instances.into_iter();
                let own = there
                    .filter(|instance| instance.profile == *profile && instance.start == *start)
                    .map(|instance| instance.id)
                    .next();
                // What is not there is used by nobody.
                let Some(own) = own else {
                    return Ok(Some(Vec::new()));
                };
                Some(own)
            }
        };
        Ok(Some(gpu::pids_in(processes, instance)))
    };
    units.iter().map(of_unit).collect()
}

/// "GPU 3", "slice 1g.10gb at 4 of GPU 3".
fn name(inventory: &Inventory, unit: &GpuUnit) -> String {
    let known = inventory.gpus.iter().find(|gpu| gpu.uuid == unit.gpu);
    let gpu = known.map_or_else(|| format!("GPU {}", unit.gpu), |gpu| format!("GPU {}", gpu.index));
    match &unit.slice {
        Slice::Whole | Slice::Share { .. } => gpu,
        slice @ Slice::Mig { .. } => format!("slice {slice} of {gpu}"),
    }
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
