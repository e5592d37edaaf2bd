//! What is done in a job: looked at again and again, and counted.

use std::collections::BTreeMap;

use super::{Agent, Now};
use crate::model::activity::{Activity, Counter, HostUse, Seen, Signals, Thresholds, Used};
use crate::model::gpu::Inventory;
use crate::model::gpu_unit::{GpuUnit, WHOLE_MILLI};
use crate::model::ids::JobKey;

/// Longest time between two looks over which anything is said, milliseconds: several times the time between them.
/// What happened in a longer one, as in one in which the host slept, nobody knows.
const LONGEST_GAP: u64 = 90_000;

/// One look at a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// CPU time of its processes since its start, microseconds; none: the host does not count it.
    pub cpu_us: Option<u64>,
    /// What its GPU units do.
    pub gpus: Vec<(GpuUnit, GpuReading)>,
    /// How long ago somebody typed or started a command, milliseconds; none: never.
    pub input_ago_ms: Option<u64>,
    /// How long ago somebody connected, or worked through a connection, milliseconds; none: never.
    pub connection_ago_ms: Option<u64>,
}

/// What a GPU unit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuReading {
    /// The job's work takes so much of the whole GPU's time, per cent.
    Busy(u32),
    /// The driver measures no time of it, as of MIG slices; the job's processes have so many bytes of its memory.
    Memory(u64),
    /// It does not answer.
    Unknown,
}

/// What is known of the use of one job.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    /// The last look, boot milliseconds.
    last: u64,
    /// Since when there was no gap, boot milliseconds.
    since: u64,
    /// When there was a sign of use, boot milliseconds.
    active: Signals<Option<u64>>,
    cpu_us: Option<u64>,
    memory: Option<u64>,
    gpu_percent: Option<u32>,
    cpu_percent: Option<u32>,
    counter: Counter,
}

impl Meter {
    fn new(now: u64) -> Self {
        Self {
            last: now,
            since: now,
            active: Signals::default(),
            cpu_us: None,
            memory: None,
            gpu_percent: None,
            cpu_percent: None,
            counter: Counter {
                since: now,
                by_model: BTreeMap::new(),
            },
        }
    }

    /// Takes in a look at the job. Whether there is a sign of use that is newer than the look before.
    fn take(&mut self, now: u64, reading: &Reading, thresholds: Thresholds, inventory: &Inventory) -> bool {
        let passed = now.saturating_sub(self.last);
        let before = self.last;
        self.last = now;
        if passed > LONGEST_GAP {
            *self = Self {
                counter: std::mem::take(&mut self.counter),
                ..Self::new(now)
            };
        } else if passed > 0 {
            self.count(passed, reading, inventory);
        }
        self.see_gpus(now, reading, thresholds);
        self.see_cpu(now, passed, reading, thresholds);
        let then = |ago: Option<u64>| ago.map(|ago| now.saturating_sub(ago));
        self.active.input = self.active.input.max(then(reading.input_ago_ms));
        self.active.connection = self.active.connection.max(then(reading.connection_ago_ms));
        self.active.each().iter().any(|(_, at)| *at > Some(before))
    }

    /// Adds up what the time since the last look is worth.
    fn count(&mut self, passed: u64, reading: &Reading, inventory: &Inventory) {
        for (unit, gpu) in &reading.gpus {
            let GpuReading::Busy(percent) = gpu else { continue };
            let known = inventory.gpus.iter().find(|known| known.uuid == unit.gpu);
            let Some(known) = known else { continue };
            let busy = passed * u64::from((*percent).min(100)) * u64::from(WHOLE_MILLI) / 100;
            let used = Used {
                busy,
                measured: passed * u64::from(unit.slice.milli()),
            };
            let models = &mut self.counter.by_model;
            models.entry(known.model.clone()).or_default().add(used);
        }
    }

    fn see_gpus(&mut self, now: u64, reading: &Reading, thresholds: Thresholds) {
        let busy = reading.gpus.iter().filter_map(|(_, gpu)| match gpu {
            GpuReading::Busy(percent) => Some(*percent),
            GpuReading::Memory(_) | GpuReading::Unknown => None,
        });
        self.gpu_percent = busy.max();
        let memory = reading.gpus.iter().filter_map(|(_, gpu)| match gpu {
            GpuReading::Memory(bytes) => Some(*bytes),
            GpuReading::Busy(_) | GpuReading::Unknown => None,
        });
        let memory = memory.reduce(u64::saturating_add);
        let works = self.gpu_percent >= Some(thresholds.gpu_percent.max(1));
        let changed = self.memory.is_some() && memory.is_some() && memory != self.memory;
        // What cannot be told may be work.
        let unknown = reading.gpus.iter().any(|(_, gpu)| *gpu == GpuReading::Unknown);
        self.memory = memory;
        if works || changed || unknown {
            self.active.gpu = Some(now);
        }
    }

    fn see_cpu(&mut self, now: u64, passed: u64, reading: &Reading, thresholds: Thresholds) {
        self.cpu_percent = match (self.cpu_us, reading.cpu_us) {
            (Some(before), Some(after)) if passed > 0 => {
                let percent = after.saturating_sub(before) / (passed * 10);
                Some(u32::try_from(percent).unwrap_or(u32::MAX))
            }
            _ => None,
        };
        self.cpu_us = reading.cpu_us;
        if self.cpu_percent >= Some(thresholds.cpu_percent.max(1)) || reading.cpu_us.is_none() {
            self.active.cpu = Some(now);
        }
    }

    fn activity(&self, now: u64, host: HostUse) -> Activity {
        let ago = |at: Option<u64>| at.map(|at| now.saturating_sub(at));
        let fresh = now.saturating_sub(self.last) <= LONGEST_GAP;
        Activity {
            seen: fresh.then(|| Seen {
                for_ms: now.saturating_sub(self.since),
                ago_ms: Signals {
                    gpu: ago(self.active.gpu),
                    cpu: ago(self.active.cpu),
                    input: ago(self.active.input),
                    connection: ago(self.active.connection),
                },
                gpu_percent: self.gpu_percent,
                cpu_percent: self.cpu_percent,
            }),
            counter: self.counter.clone(),
            host,
        }
    }
}

impl Agent {
    /// Somebody has looked at jobs.
    pub(super) fn on_measured(&mut self, now: Now, readings: &[(JobKey, Reading)]) {
        for (key, reading) in readings {
            let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.phase.holds()) else {
                continue;
            };
            let meter = entry.meter.get_or_insert_with(|| Meter::new(now.boot_ms));
            let used = meter.take(now.boot_ms, reading, self.thresholds, &self.inventory);
            // Who is about to be ended as idle, and is not, is not left waiting.
            let warned = entry.job.as_ref().is_some_and(|job| job.idle_ends.is_some());
            self.out.report |= used && warned;
        }
    }

    /// Somebody has looked at what a job uses of CPUs and memory. Told with the next report.
    pub(super) fn on_host_use(&mut self, key: JobKey, host: HostUse) {
        let entry = self.entries.get_mut(&key).filter(|entry| entry.phase.holds());
        if let Some(entry) = entry.filter(|_| !host.is_nothing()) {
            entry.host.take(host);
        }
    }

    /// What is known of the use of jobs.
    pub(super) fn activity(&self, now: Now) -> BTreeMap<JobKey, Activity> {
        let metered = self.entries.iter().filter_map(|(key, entry)| {
            let activity = match &entry.meter {
                Some(meter) => meter.activity(now.boot_ms, entry.host),
                None if entry.host.is_nothing() => return None,
                // Whether it is used nobody has looked at.
                None => Activity {
                    host: entry.host,
                    ..Activity::default()
                },
            };
            Some((*key, activity))
        });
        metered.collect()
    }
}
