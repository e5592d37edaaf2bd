//! What the broker is told.

use super::entry::{Entry, Phase};
use super::{Agent, MAX_SENT, Now};
use crate::model::cpus::Binding;
use crate::model::gpu::Inventory;
use crate::model::ids::JobKey;
use crate::model::node::{Observed, ObservedJob, ObservedPhase};

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
        inventory
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
    }
}
