//! CPUs and memory that a host keeps for its free GPUs.

use serde::{Deserialize, Serialize};

use super::fit::Lack;
use super::kind::HostKind;
use super::{Hosts, Needs};

/// What of a host only the job that holds a GPU may have, for each GPU (as Slurm's `RestrictedCoresPerGPU`):
/// as long as the GPU is free, nobody gets it. Nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    /// Hardware threads.
    pub cpus: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
}

impl Reserve {
    /// What so many free GPUs of a host keep. No host keeps more than it has: each GPU its even share at most.
    fn kept(self, host: &HostKind, free_gpus: u32) -> Self {
        let gpus = u32::try_from(host.gpus()).unwrap_or(u32::MAX).max(1);
        let free = free_gpus.min(gpus);
        Self {
            cpus: self.cpus.min(host.cpus / gpus) * free,
            memory_bytes: self.memory_bytes.min(host.memory_bytes / u64::from(gpus)) * u64::from(free),
        }
    }
}

impl Hosts {
    /// From now on, hosts keep this for their free GPUs.
    pub fn keep(&mut self, reserve: Reserve) {
        self.reserve = reserve;
    }

    /// What a host with so many CPUs and so much memory free, and so many GPUs beside those that the job
    /// gets, keeps from it.
    pub(super) fn keeps(
        &self,
        host: &HostKind,
        free: (u32, u64),
        left_gpus: u32,
        needs: Needs<'_>,
    ) -> Option<Lack> {
        let kept = self.reserve.kept(host, left_gpus);
        let (cpus, memory_bytes) = free;
        let amounts = needs.request.amounts_of(host.cpus, host.memory_bytes);
        if cpus.saturating_sub(amounts.0) < kept.cpus {
            Some(Lack::KeptCpus(kept.cpus))
        } else if memory_bytes.saturating_sub(amounts.1) < kept.memory_bytes {
            Some(Lack::KeptMemory(kept.memory_bytes))
        } else {
            None
        }
    }
}
