//! How busy GPUs are, and with whose work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_core::agent::GpuReading;
use carrel_core::model::gpu_unit::{GpuUnit, Sharing, Slice};
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use super::{Library, NvmlSource};

/// What processes do with units of GPUs, in their order: with each unit come the ids of the processes that have it.
/// What processes did lately is that of the last so long. Blocks.
///
/// Of a whole GPU the driver tells the part of the time in which anything ran on it
/// (`nvmlDeviceGetUtilizationRates`). Of a share it tells it of each process (`nvmlDeviceGetProcessUtilization`). Of a
/// MIG slice it tells neither: what changes of its processes' memory is taken for work then.
pub fn load(source: &NvmlSource, units: &[(GpuUnit, BTreeSet<u32>)], lately: Duration) -> Vec<GpuReading> {
    let Ok(library) = Library::open(source.library.as_deref()) else {
        return vec![GpuReading::Unknown; units.len()];
    };
    let reading = |(unit, own): &(GpuUnit, BTreeSet<u32>)| {
        let device = library.device(&unit.gpu).ok()?;
        match &unit.slice {
            Slice::Whole => whole(&device, own),
            Slice::Share { sharing, .. } => share(&device, own, *sharing, lately),
            Slice::Mig { .. } => memory(&device, own),
        }
    };
    units
        .iter()
        .map(|unit| reading(unit).unwrap_or(GpuReading::Unknown))
        .collect()
}

fn whole(device: &Device<'_>, own: &BTreeSet<u32>) -> Option<GpuReading> {
    match device.utilization_rates() {
        Ok(rates) => Some(GpuReading::Busy(rates.gpu)),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => memory(device, own),
        Err(_) => None,
    }
}

fn share(device: &Device<'_>, own: &BTreeSet<u32>, sharing: Sharing, lately: Duration) -> Option<GpuReading> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = u64::try_from(now.saturating_sub(lately).as_micros()).unwrap_or(u64::MAX);
    let samples = match device.process_utilization_stats(since) {
        Ok(samples) => samples,
        // None of them did anything.
        Err(NvmlError::NotFound) => Vec::new(),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => return memory(device, own),
        Err(_) => return None,
    };
    // The newest of each process.
    let mut newest: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
    for sample in samples {
        let known = newest.entry(sample.pid).or_default();
        *known = (*known).max((sample.timestamp, sample.sm_util));
    }
    let busy = |(pid, (_, busy)): (&u32, &(u64, u32))| own.contains(pid).then_some(*busy);
    let sum: u32 = newest.iter().filter_map(busy).sum();
    let all: u32 = newest.values().map(|(_, busy)| busy).sum();
    match sharing {
        // The driver may count clients' work as their server's: then nobody knows whose it is.
        Sharing::Mps if sum == 0 && all > 0 => None,
        Sharing::Mps | Sharing::TimeSlice => Some(GpuReading::Busy(sum.min(100))),
    }
}

/// What its own processes have of a GPU's memory.
fn memory(device: &Device<'_>, own: &BTreeSet<u32>) -> Option<GpuReading> {
    let processes = match device.running_compute_processes() {
        // Drivers before 510 know only the second version of the call.
        Err(NvmlError::FailedToLoadSymbol(_)) => device.running_compute_processes_v2(),
        other => other,
    };
    let own = processes.ok()?.into_iter().filter(|one| own.contains(&one.pid));
    let bytes = own.map(|one| match one.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => bytes,
        // At least it comes and goes.
        UsedGpuMemory::Unavailable => 1,
    });
    Some(GpuReading::Memory(bytes.fold(0, u64::saturating_add)))
}
