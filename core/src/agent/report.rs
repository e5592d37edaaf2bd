//! What the broker is told.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{Entry, Phase};
use super::places::named;
use super::{Agent, MAX_SENT, Now};
use crate::model::cpus::Binding;
use crate::model::gang_network::RankNetwork;
use crate::model::gpu::{GpuInfo, Inventory, MigInstance};
use crate::model::gpu_unit::Slice;
use crate::model::ids::{JobId, JobKey};
use crate::model::node::{Observed, ObservedJob, ObservedPhase};

/// GPUs changed under jobs that a note names.
const MAX_CHANGED: usize = 8;

impl Agent {
    /// A report, to be sent now. The lease counts from here when it is answered.
    pub fn observed(&mut self, now: Now) -> Observed {
        self.seq += 1;
        self.sent.insert(self.seq, now.boot_ms);
        while self.sent.len() > MAX_SENT {
            self.sent.pop_first();
        }
        Observed {
            node: self.myself.node.clone(),
            boot_id: self.myself.boot_id.clone(),
            seq: self.seq,
            accepted: self
                .accepted
                .map(|incarnation| (self.myself.cluster.clone(), incarnation)),
            generation: self.applied,
            inventory: self.inventory(),
            jobs: self
                .entries
                .iter()
                .map(|(key, entry)| observed_job(*key, entry))
                .collect(),
            version: self.myself.version.clone(),
            images: self.images.clone(),
            activity: self.activity(now),
        }
    }

    /// As discovered, less what is not offered because of what happens here.
    pub fn inventory(&self) -> Inventory {
        let mut inventory = self.inventory.clone();
        for gpu in &mut inventory.gpus {
            if let Some(why) = self.drained.get(&gpu.uuid) {
                gpu.drained.get_or_insert_with(|| why.clone());
            }
        }
        for note in self.gpus_gone().into_iter().chain(self.changed_under_jobs()) {
            if !inventory.gpu_note.is_empty() {
                inventory.gpu_note += "; ";
            }
            inventory.gpu_note += &note;
        }
        inventory
    }

    /// GPUs that were changed while jobs use them, in words. The jobs go on as long as their devices do.
    fn changed_under_jobs(&self) -> Vec<String> {
        let running = self.entries.iter().filter(|(_, entry)| match entry.phase {
            Phase::Ready | Phase::Stopping { .. } => true,
            // What is not made yet is not there either.
            Phase::Waiting
            | Phase::Held { .. }
            | Phase::Starting
            | Phase::Removing { .. }
            | Phase::Released => false,
        });
        let units = running.flat_map(|(key, entry)| entry.holding.gpus.iter().map(|unit| (key.job, unit)));
        let mut changed: BTreeMap<(u32, String), BTreeSet<JobId>> = BTreeMap::new();
        for (job, unit) in units {
            let gpu = self.inventory.gpus.iter().find(|gpu| gpu.uuid == unit.gpu);
            if let Some((gpu, now)) = gpu.and_then(|gpu| Some((gpu, other_now(gpu, &unit.slice)?))) {
                changed.entry((gpu.index, now)).or_default().insert(job);
            }
        }
        let told = changed.iter().map(|((index, now), jobs)| {
            let (go, their) = if jobs.len() == 1 {
                ("goes", "its")
            } else {
                ("go", "their")
            };
            format!(
                "GPU {index} {now}: {} {go} on, and until {their} end nothing else is placed there",
                named(jobs)
            )
        });
        told.take(MAX_CHANGED).collect()
    }
}

/// What a GPU is now that it was not when a job got this of it; none: nothing that matters.
fn other_now(gpu: &GpuInfo, slice: &Slice) -> Option<String> {
    match (slice, &gpu.mig) {
        (Slice::Whole, Some(_)) => Some("is in MIG mode now, and was given as a whole".to_owned()),
        (Slice::Share { .. }, Some(_)) => Some("is in MIG mode now, and was given in shares".to_owned()),
        (Slice::Mig { .. }, None) => Some("is not in MIG mode any more, and was given in slices".to_owned()),
        (Slice::Mig { profile, start, .. }, Some(mig)) => {
            let there = |instance: &MigInstance| instance.profile == *profile && instance.start == *start;
            let gone = !mig.instances.iter().any(there);
            gone.then(|| format!("has no slice {profile} at {start} any more, which was given"))
        }
        (Slice::Whole | Slice::Share { .. }, None) => None,
    }
}

fn observed_job(key: JobKey, entry: &Entry) -> ObservedJob {
    let phase = match entry.phase {
        Phase::Waiting | Phase::Held { .. } | Phase::Starting => ObservedPhase::Preparing,
        Phase::Ready => ObservedPhase::Ready,
        Phase::Stopping { .. } | Phase::Removing { .. } => ObservedPhase::Stopping,
        Phase::Released => ObservedPhase::Released,
    };
    let holding = &entry.holding;
    let holds = entry.phase.holds();
    ObservedJob {
        key,
        session: holding.session,
        phase,
        detail: entry.detail.clone(),
        host_key: entry.host_key.clone(),
        cause: entry.cause,
        exit_code: entry.exit_code,
        gpus: if holds { holding.gpus.clone() } else { Vec::new() },
        cpus: if holds { holding.cpus } else { 0 },
        memory_bytes: if holds { holding.memory_bytes } else { 0 },
        user: holding.user.clone(),
        name: holding.name.clone(),
        deadline: holding.deadline,
        cluster: holding.cluster.clone(),
        connections: entry.connections,
        rank: holding.rank,
        nodes: holding.nodes,
        started: holding.started,
        image: holding.image.clone(),
        binding: if holds {
            holding.binding.clone()
        } else {
            Binding::default()
        },
        containment: entry.containment,
        network: if holds { holding.network } else { RankNetwork::Own },
    }
}
