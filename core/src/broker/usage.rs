//! What live jobs hold of each node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::state::State;
use crate::maps::change;
use crate::model::gpu_unit::{GpuUnit, Slice, WHOLE_MILLI};
use crate::model::ids::{GpuUuid, JobKey};
use crate::model::job::{Ending, Job, JobState, Placed};
use crate::model::resources::NodeAllocation;
use crate::model::time::Timestamp;

/// What live jobs hold on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// Who holds what of each GPU of which something is held.
    pub gpus: BTreeMap<GpuUuid, Vec<(JobKey, Slice)>>,
    /// Hardware threads held.
    pub cpus: u64,
    /// Bytes of memory held.
    pub memory: u64,
}

impl NodeUsage {
    /// Who holds something that keeps a GPU unit from being held as well.
    pub fn in_the_way(&self, unit: &GpuUnit) -> Option<JobKey> {
        let held = self.gpus.get(&unit.gpu)?;
        let other = held.iter().find(|(_, slice)| slice.excludes(&unit.slice));
        let shares = held.iter().map(|(_, slice)| slice).chain([&unit.slice]);
        let too_many = shares.map(Slice::share_milli).sum::<u32>() > u32::from(WHOLE_MILLI);
        let other = other.or_else(|| held.first().filter(|_| too_many));
        other.map(|(key, _)| *key)
    }

    /// A job holds GPUs.
    pub(super) fn hold_gpus(&mut self, key: JobKey, part: &NodeAllocation) {
        for unit in &part.gpus {
            let held = self.gpus.entry(unit.gpu.clone()).or_default();
            held.push((key, unit.slice.clone()));
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
        for unit in &part.gpus {
            if let Some(held) = self.gpus.get_mut(&unit.gpu) {
                held.retain(|(holder, _)| *holder != key);
                if held.is_empty() {
                    self.gpus.remove(&unit.gpu);
                }
            }
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
