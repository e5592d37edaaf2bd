//! Looks at what jobs do, again and again: at their GPUs, their CPU time, and whether somebody is there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use carrel_core::agent::{GpuReading, Input, Reading};
use carrel_core::model::activity::HostUse;
use carrel_core::model::gpu_unit::GpuUnit;
use carrel_core::model::ids::JobKey;
use carrel_proto::v1::InitStatus;
use futures::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::gpu::{self, NvmlSource};
use crate::init_client;
use crate::jobs::Held;
use crate::runtime::Runtime;

/// Longest wait for NVML, which hangs on sick hardware.
const NVML_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for carrel-init's word: one that hangs is asked again at the next look.
const INIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks at CPU time and memory: some files of each job's cgroup, tens of microseconds.
const HOST_USE_EVERY: Duration = Duration::from_secs(1);
/// carrel-inits that are asked at once: they answer within a millisecond.
const ASKED_AT_ONCE: usize = 16;

/// What is looked at.
pub(crate) struct Looks {
    /// Where containers are.
    pub(crate) runtime: Runtime,
    /// Whom to ask about GPUs.
    pub(crate) nvml: NvmlSource,
    /// What each job holds.
    pub(crate) held: watch::Receiver<Held>,
    /// Who is told.
    pub(crate) inputs: mpsc::Sender<Input>,
    /// Between two looks.
    pub(crate) every: Duration,
}

/// Looks until cancelled.
pub(crate) async fn run(looks: Looks, cancel: CancellationToken) {
    let hangs = Arc::new(AtomicBool::new(false));
    loop {
        tokio::select! {
            // Both only wait.
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(looks.every) => {}
        }
        let held = looks.held.borrow().clone();
        if held.is_empty() {
            continue;
        }
        tokio::select! {
            // What is dropped is a look that nobody waits for any more.
            () = cancel.cancelled() => return,
            readings = looks.look(held, &hangs) => {
                if !readings.is_empty() && looks.inputs.send(Input::Measured(readings)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Looks at what jobs use of CPUs and memory, until cancelled: more often than at the rest, because memory comes and
/// goes, and what is between two looks is not seen.
pub(crate) async fn run_host_use(
    runtime: Runtime,
    held: watch::Receiver<Held>,
    inputs: mpsc::Sender<Input>,
    cancel: CancellationToken,
) {
    loop {
        tokio::select! {
            // Both only wait.
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(HOST_USE_EVERY) => {}
        }
        let keys: Vec<JobKey> = held.borrow().keys().copied().collect();
        if keys.is_empty() {
            continue;
        }
        let runtime = runtime.clone();
        let read = move || keys.into_iter().map(|key| (key, runtime.host_use(key))).collect();
        let asked = tokio::task::spawn_blocking(read);
        tokio::select! {
            // What is dropped is a look that nobody waits for any more.
            () = cancel.cancelled() => return,
            asked = asked => match asked {
                Ok(used) => if inputs.send(Input::HostUse(used)).await.is_err() {
                    return;
                },
                Err(error) => tracing::error!(%error, "looking at jobs' CPU time and memory broke"),
            }
        }
    }
}

/// One job that is up.
struct Job {
    key: JobKey,
    units: Vec<GpuUnit>,
    status: InitStatus,
    host: HostUse,
    processes: BTreeSet<u32>,
}

impl Looks {
    /// A look at each job whose carrel-init answers. Of others nothing is said.
    async fn look(&self, held: Held, hangs: &Arc<AtomicBool>) -> Vec<(JobKey, Reading)> {
        let asked = futures::stream::iter(held.into_iter().map(|(key, units)| self.ask(key, units)));
        let jobs: Vec<Job> = asked
            .buffered(ASKED_AT_ONCE)
            .filter_map(async |job| job)
            .collect()
            .await;
        let units = jobs.iter().flat_map(|job| {
            let own = |unit: &GpuUnit| (unit.clone(), job.processes.clone());
            job.units.iter().map(own)
        });
        let mut loads = self.load(units.collect(), hangs).await.into_iter();
        let readings = jobs.into_iter().map(|job| {
            let units = job.units.into_iter();
            let gpus = units.map(|unit| (unit, loads.next().unwrap_or(GpuReading::Unknown)));
            let reading = Reading {
                cpu_us: job.host.cpu_us(),
                gpus: gpus.collect(),
                input_ago_ms: job.status.idle_ms,
                connection_ago_ms: job.status.connection_idle_ms,
            };
            (job.key, reading)
        });
        readings.collect()
    }

    async fn ask(&self, key: JobKey, units: Vec<GpuUnit>) -> Option<Job> {
        let socket = self.runtime.run_dir(key).join("ctl.sock");
        let status = tokio::time::timeout(INIT_TIMEOUT, init_client::status(&socket)).await;
        let status = status.ok()?.ok().filter(|status| status.ready)?;
        let runtime = self.runtime.clone();
        // Whose processes they are matters where jobs have a GPU together.
        let host = tokio::task::spawn_blocking(move || runtime.host_use(key));
        let processes = if units.is_empty() {
            Vec::new()
        } else {
            self.runtime.processes(key).await.unwrap_or_default()
        };
        Some(Job {
            key,
            units,
            status,
            host: host.await.unwrap_or_default(),
            processes: processes
                .into_iter()
                .filter_map(|pid| pid.try_into().ok())
                .collect(),
        })
    }

    /// What NVML says of units; nothing is known while it hangs.
    async fn load(&self, units: Vec<(GpuUnit, BTreeSet<u32>)>, hangs: &Arc<AtomicBool>) -> Vec<GpuReading> {
        let unknown = vec![GpuReading::Unknown; units.len()];
        // One thread that hangs is enough.
        if units.is_empty() || hangs.swap(true, Ordering::AcqRel) {
            return unknown;
        }
        let (nvml, lately, hangs) = (self.nvml.clone(), self.every, Arc::clone(hangs));
        let asked = tokio::task::spawn_blocking(move || {
            let load = gpu::load(&nvml, &units, lately);
            hangs.store(false, Ordering::Release);
            load
        });
        match tokio::time::timeout(NVML_TIMEOUT, asked).await {
            Ok(Ok(load)) => load,
            Ok(Err(error)) => {
                tracing::error!(%error, "asking how busy GPUs are broke");
                unknown
            }
            Err(_) => {
                tracing::warn!("NVML does not answer how busy the GPUs are");
                unknown
            }
        }
    }
}
