//! What of each node may be given away.

use std::sync::Arc;

use super::state::State;
use super::usage::NodeUsage;
use crate::model::gpu::GpuInfo;
use crate::model::gpu_unit::Slice;
use crate::model::ids::{JobKey, NodeName, UserName};
use crate::model::node::{NodeRecord, ObservedJob};
use crate::placement::{Cut, MAX_GPUS, MigLayout, MigRoom, PartRoom, Room, room_of_shares};

/// What may be given away of a GPU that is in MIG mode, or of which such units are held, and by whom; none: nothing.
fn part_room(gpu: &GpuInfo, held: &[(&Slice, Option<&UserName>)]) -> Option<PartRoom> {
    let Some(mig) = &gpu.mig else {
        return room_of_shares(held.iter().copied(), gpu.sharing);
    };
    let layout = MigLayout::of(gpu)?;
    // Whatever is no slice of it as it is now has been given before it became so, and holds all of it.
    let cut = |(slice, _): &(&Slice, Option<&UserName>)| match slice {
        Slice::Mig { profile, start, .. } => layout.cut(profile, *start),
        Slice::Whole | Slice::Share { .. } => None,
    };
    let mut held: Vec<Cut> = held.iter().map(cut).collect::<Option<_>>()?;
    held.sort_unstable();
    // What is promised may be what is held now.
    held.dedup();
    let there = mig.instances.iter();
    let there = there.filter_map(|instance| layout.cut(&instance.profile, instance.start));
    let mut idle: Vec<Cut> = there.filter(|cut| !held.contains(cut)).collect();
    idle.sort_unstable();
    Some(PartRoom::Mig(MigRoom { held, idle }))
}

impl State {
    /// What of a node may be given away; none: there is no such node.
    pub fn room(&self, name: &NodeName) -> Option<Room> {
        self.room_beside(name, self.usage.get(name).map(Arc::as_ref))
    }

    /// What of a node may be given away beside this use of it.
    pub(super) fn room_beside(&self, name: &NodeName, usage: Option<&NodeUsage>) -> Option<Room> {
        let node = self.nodes.get(name)?;
        let inventory = &node.inventory;
        let strangers: Vec<&ObservedJob> = self.strangers(name).collect();
        let owner = |key: &JobKey| self.jobs.get(&key.job).map(|job| &job.owner);
        let (mut gpus, mut parts) = (0, Vec::new());
        for (position, gpu) in inventory.gpus.iter().take(MAX_GPUS).enumerate() {
            let ours = usage.map_or(&[][..], |usage| usage.of(&gpu.uuid));
            if gpu.mig.is_none() && ours.iter().any(|held| held.slice == Slice::Whole) {
                continue;
            }
            let ours = ours.iter().map(|held| (&held.slice, owner(&held.key)));
            let theirs = strangers.iter().flat_map(|stranger| {
                let units = stranger.gpus.iter().filter(|unit| unit.gpu == gpu.uuid);
                units.map(|unit| (&unit.slice, stranger.user.as_ref()))
            });
            let held: Vec<(&Slice, Option<&UserName>)> = ours.chain(theirs).collect();
            if gpu.mig.is_none() && held.is_empty() {
                gpus |= 1 << position;
            } else if let Some(room) = part_room(gpu, &held) {
                parts.push((position as u8, room));
            }
        }
        let cpus = usage.map_or(0, |usage| usage.cpus)
            + strangers
                .iter()
                .map(|stranger| u64::from(stranger.cpus))
                .sum::<u64>();
        let memory = strangers
            .iter()
            .fold(usage.map_or(0, |usage| usage.memory), |sum, stranger| {
                sum.saturating_add(stranger.memory_bytes)
            });
        Some(Room {
            gpus,
            parts: parts.into(),
            cpus: u64::from(inventory.cpus).saturating_sub(cpus) as u32,
            memory_bytes: inventory.memory_bytes.saturating_sub(memory),
            unavailable: self.unavailable(node),
        })
    }

    /// Why a node gets no new jobs, after "node is"; none: it does.
    pub fn unavailable(&self, node: &NodeRecord) -> Option<String> {
        let name = &node.name;
        if let Some(reason) = &node.drained {
            return Some(format!("drained ({reason})"));
        }
        if node.found.is_some() {
            return Some(format!(
                "found, not joined: an operator adopts it with `carrel node adopt {name}`"
            ));
        }
        let Some(link) = self.links.get(name) else {
            return Some("down".to_owned());
        };
        let Some(observed) = link.observed.as_ref().filter(|_| link.connected) else {
            return Some("down".to_owned());
        };
        match &observed.accepted {
            Some((cluster, _)) if *cluster != self.cluster.id => {
                Some(format!("another cluster's ({cluster})"))
            }
            _ => None,
        }
    }
}
