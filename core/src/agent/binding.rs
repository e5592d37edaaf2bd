//! Which CPUs and memory nodes a job's container is bound to.

use super::Agent;
use super::entry::Phase;
use crate::model::cpus::{Binding, CpuSet};
use crate::model::gpu::GpuInfo;
use crate::model::gpu_unit::{GpuUnit, Slice};
use crate::model::ids::JobKey;
use crate::model::node::DesiredJob;
use crate::placement::cpus::{Claim, CpuRequest, MemoryNodes, choose_cpus};

impl Agent {
    /// Chooses the CPUs of a job that is about to be started, unless it has some that still serve. It
    /// keeps them for as long as it lives, so what others leave it may be far from its GPUs.
    pub(super) fn bind(&mut self, job: &DesiredJob) {
        let Some(entry) = self.entries.get(&job.key) else {
            return;
        };
        let had = entry.holding.binding.clone();
        let serves = had.cpus.len() == job.cpus as usize && had.cpus.is_subset(&self.cpus.usable);
        if serves && !had.cpus.is_empty() {
            return;
        }
        let binding = self.binding_for(job);
        if binding == had {
            return;
        }
        if let Some(entry) = self.entries.get_mut(&job.key) {
            entry.holding.binding = binding;
        }
        self.changed();
    }

    fn binding_for(&mut self, job: &DesiredJob) -> Binding {
        if self.cpus.obstacle(self.inventory.cpus).is_some() {
            return Binding::default();
        }
        let near = |gpu: &GpuInfo| self.cpus.near(&gpu.cpu_affinity, gpu.numa_node);
        let gpus = self.inventory.gpus.iter();
        let (own, other): (Vec<&GpuInfo>, Vec<&GpuInfo>) =
            gpus.partition(|gpu| job.gpus.iter().any(|unit| unit.gpu == gpu.uuid));
        // What is left of one that is cut or shared is to be had, too.
        let whole = |held: &GpuUnit, gpu: &GpuInfo| held.gpu == gpu.uuid && held.slice == Slice::Whole;
        let is_free = |gpu: &&GpuInfo| {
            let mut held = self
                .others_of(job.key)
                .flat_map(|key| &self.entries[&key].holding.gpus);
            let drained = gpu.drained.is_some() || self.drained.contains_key(&gpu.uuid);
            !drained && !held.any(|held| whole(held, gpu))
        };
        let own: Vec<CpuSet> = own.into_iter().map(near).collect();
        let free: Vec<CpuSet> = other.into_iter().filter(is_free).map(near).collect();
        let held = self.others_of(job.key);
        let held = held.fold(CpuSet::default(), |held, key| {
            held.or(&self.entries[&key].holding.binding.cpus)
        });
        let chosen = choose_cpus(&CpuRequest {
            host: &self.cpus,
            held: &held,
            own_gpus: &own,
            free_gpus: &free,
            cpus: job.cpus,
        });
        // Too few: containers that were bound before the host lost CPUs. Shared ones are better than none.
        let Some(cpus) = chosen else {
            return Binding::default();
        };
        let near = own.iter().fold(cpus.clone(), |near, gpu| near.or(gpu));
        let mems = self.settle_memory(job, &near);
        Binding { cpus, mems }
    }

    /// Where its memory comes from; those who relied on what it may take are bound no longer.
    fn settle_memory(&mut self, job: &DesiredJob, near: &CpuSet) -> CpuSet {
        let others: Vec<JobKey> = self.others_of(job.key).collect();
        let claims: Vec<Claim> = others
            .iter()
            .map(|key| {
                let holding = &self.entries[key].holding;
                Claim {
                    mems: holding.binding.mems.clone(),
                    bytes: holding.memory_bytes,
                }
            })
            .collect();
        let nodes = MemoryNodes {
            host: &self.cpus,
            offered: self.inventory.memory_bytes,
        };
        let settled = nodes.settle(near, job.memory_bytes, &claims);
        for at in settled.freed {
            let key = others[at];
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            entry.holding.binding.mems = CpuSet::default();
            if matches!(entry.phase, Phase::Starting | Phase::Ready) {
                self.configure(key);
            }
            self.changed();
        }
        settled.mems
    }

    /// The other jobs that hold something.
    fn others_of(&self, job: JobKey) -> impl Iterator<Item = JobKey> + '_ {
        let held = self.entries.iter().filter(|(_, entry)| entry.phase.holds());
        held.map(|(key, _)| *key).filter(move |key| *key != job)
    }
}
