//! What live jobs hold of each node.

use std::sync::Arc;
use std::time::Duration;

use super::state::State;
use crate::maps::change;
use crate::model::gpu_unit::{GpuUnit, Slice, WHOLE_MILLI};
use crate::model::ids::{GpuUuid, JobKey};
use crate::model::job::{Ending, Job, JobState, Placed};
use crate::model::resources::NodeAllocation;
use crate::model::time::Timestamp;

/// Something of a GPU that a live job holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldUnit {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Who holds it.
    pub key: JobKey,
    /// What of it.
    pub slice: Slice,
}

/// What live jobs hold on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// What is held of GPUs: those of one GPU together, the GPUs in the order of their names.
    pub units: Vec<HeldUnit>,
    /// Hardware threads held.
    pub cpus: u64,
    /// Bytes of memory held.
    pub memory: u64,
}

impl NodeUsage {
    /// Who holds something that keeps a GPU unit from being held as well.
    pub fn in_the_way(&self, unit: &GpuUnit) -> Option<JobKey> {
        let held = self.of(&unit.gpu);
        let other = held.iter().find(|held| held.slice.excludes(&unit.slice));
        let shares = held.iter().map(|held| &held.slice).chain([&unit.slice]);
        let too_many = shares.map(Slice::share_milli).sum::<u32>() > u32::from(WHOLE_MILLI);
        let other = other.or_else(|| held.first().filter(|_| too_many));
        other.map(|held| held.key)
    }

    /// What is held of a GPU.
    pub fn of(&self, gpu: &GpuUuid) -> &[HeldUnit] {
        let from = self.units.partition_point(|held| held.gpu < *gpu);
        let own = self.units[from..].iter().take_while(|held| held.gpu == *gpu);
        &self.units[from..from + own.count()]
    }

    /// The GPUs of which something is held, and what.
    pub fn gpus(&self) -> impl Iterator<Item = &[HeldUnit]> {
        self.units.chunk_by(|a, b| a.gpu == b.gpu)
    }

    /// A job holds GPUs.
    pub(super) fn hold_gpus(&mut self, key: JobKey, part: &NodeAllocation) {
        self.units.reserve_exact(part.gpus.len());
        for unit in &part.gpus {
            let at = self.units.partition_point(|held| held.gpu <= unit.gpu);
            let held = HeldUnit {
                gpu: unit.gpu.clone(),
                key,
                slice: unit.slice.clone(),
            };
            self.units.insert(at, held);
        }
    }

    /// A job holds a part of the node.
    pub(super) fn hold(&mut self, key: JobKey, part: &NodeAllocation) {
        self.hold_gpus(key, part);
        self.cpus += u64::from(part.cpus);
        self.memory = self.memory.saturating_add(part.memory_bytes);
    }

    /// It does no more.
    pub(super) fn let_go(&mut self, key: JobKey, part: &NodeAllocation) {
        if !part.gpus.is_empty() {
            let has = |gpu: &GpuUuid| part.gpus.iter().any(|unit| unit.gpu == *gpu);
            self.units.retain(|held| held.key != key || !has(&held.gpu));
        }
        self.cpus = self.cpus.saturating_sub(u64::from(part.cpus));
        self.memory = self.memory.saturating_sub(part.memory_bytes);
    }
}

impl Placed {
    /// What of it is not released yet.
    pub(super) fn unreleased(&self) -> impl Iterator<Item = &NodeAllocation> {
        let ranks = self.allocation.nodes.iter().zip(&self.ranks);
        ranks.filter(|(_, rank)| !rank.released).map(|(part, _)| part)
    }
}

impl State {
    /// When a job that holds something has given it back, as far as its own time goes; none: its time has no end.
    pub(super) fn end_of(&self, placed: &Placed, now: Timestamp) -> Option<Timestamp> {
        let grace = self.settings.grace;
        match placed.leaving {
            // What is being ended does not wait for its deadline. What should be gone is, a little later.
            Some(leaving) if leaving.killed > now => Some(leaving.killed),
            Some(_) => Some(now.after(grace)),
            None => (placed.deadline < Timestamp::MAX).then(|| placed.deadline.max(now).after(grace)),
        }
    }

    /// Between the terminate signal and the kill of a job that ends in this way.
    pub(super) fn grace_of(&self, job: &Job, ending: &Ending) -> Duration {
        let qos = self.qos.get(&job.terms.qos);
        let own = qos.and_then(|qos| qos.grace);
        own.filter(|_| ending.state == JobState::Preempted)
            .unwrap_or(self.settings.grace)
    }

    /// Counts what a job holds of nodes, or takes it out.
    pub(super) fn count_held(&mut self, job: &Job, placed: &Placed, add: bool) {
        let key = JobKey {
            job: job.id,
            generation: placed.generation,
        };
        for part in placed.unreleased() {
            change(&mut self.usage, &part.node, |usage| {
                let usage = Arc::make_mut(usage);
                if add {
                    usage.hold(key, part);
                } else {
                    usage.let_go(key, part);
                }
            });
            change(&mut self.placed_on, &part.node, |jobs| {
                if add {
                    jobs.insert(job.id);
                } else {
                    jobs.remove(&job.id);
                }
            });
        }
    }
}
