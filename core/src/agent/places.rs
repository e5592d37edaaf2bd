//! Where on the host the GPUs are that jobs hold.
//!
//! A job holds a GPU by its UUID, and its container has the device node that was that GPU's when it was made. After a
//! swapped board, a reset to other settings or a renumbering by the driver another UUID may stand in that place: it is the
//! same device to the container, and so is not free.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Agent, Holding};
use crate::model::gpu::GpuInfo;
use crate::model::gpu_unit::{GpuUnit, Slice};
use crate::model::ids::{GpuUuid, JobId, JobKey};

/// GPUs that are gone that a note names.
const MAX_NAMED: usize = 8;

/// Where a GPU is on its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The driver's index.
    pub index: u32,
    /// PCI address, "00000000:1B:00.0"; empty: not known.
    pub pci_address: String,
    /// N of `/dev/nvidiaN`, where the driver says.
    pub minor: Option<u32>,
}

impl Place {
    fn of(gpu: &GpuInfo) -> Self {
        Self {
            index: gpu.index,
            pci_address: gpu.pci_address.clone(),
            minor: gpu.minor,
        }
    }

    /// Whether it is known by its index alone, and the other place by more.
    fn tells_less(&self, other: &Self) -> bool {
        let bare = |place: &Self| place.pci_address.is_empty() && place.minor.is_none();
        bare(self) && !bare(other)
    }

    /// Whether a GPU is there, or has the device node that was made for it.
    fn is_of(&self, gpu: &GpuInfo) -> bool {
        let there = !self.pci_address.is_empty() && self.pci_address == gpu.pci_address;
        there || (self.minor.is_some() && self.minor == gpu.minor)
    }
}

impl Holding {
    /// Which of its GPUs was where this one is; none: this one is its own, or is elsewhere.
    fn former(&self, gpu: &GpuInfo) -> Option<&GpuUuid> {
        if self.gpus.iter().any(|unit| unit.gpu == gpu.uuid) {
            return None;
        }
        let mut places = self.places.iter();
        places.find_map(|(uuid, place)| place.is_of(gpu).then_some(uuid))
    }
}

impl Agent {
    /// Where the GPUs are that a job is about to be given.
    pub(super) fn places_of(&self, units: &[GpuUnit]) -> BTreeMap<GpuUuid, Place> {
        let gpus = self.inventory.gpus.iter();
        let own = gpus.filter(|gpu| units.iter().any(|unit| unit.gpu == gpu.uuid));
        own.map(|gpu| (gpu.uuid.clone(), Place::of(gpu))).collect()
    }

    /// Notes where the GPUs are that there are, for the time when they are no more; and of jobs of which that was
    /// not noted at their start: a former version's, and containers of which the ledger knew nothing.
    pub(super) fn note_places(&mut self) {
        for gpu in &self.inventory.gpus {
            self.seen.insert(gpu.uuid.clone(), Place::of(gpu));
        }
        let mut noted = false;
        for entry in self.entries.values_mut().filter(|entry| entry.phase.holds()) {
            for unit in &entry.holding.gpus {
                let gpu = self.inventory.gpus.iter().find(|gpu| gpu.uuid == unit.gpu);
                let known = entry.holding.places.get(&unit.gpu);
                let place = gpu
                    .map(Place::of)
                    .filter(|place| known.is_none_or(|known| known.tells_less(place)));
                if let Some(place) = place {
                    entry.holding.places.insert(unit.gpu.clone(), place);
                    noted = true;
                }
            }
        }
        if noted {
            self.persist(false);
        }
    }

    /// Who holds the place of a GPU as another GPU's, and that one.
    pub(super) fn former_in_place_of(&self, gpu: &GpuInfo) -> Option<(JobKey, &GpuUuid)> {
        let mut holders = self.holders();
        holders.find_map(|(key, holding)| Some((key, holding.former(gpu)?)))
    }

    /// Why nothing is placed on GPUs that stand where jobs hold others.
    pub(super) fn in_held_places(&self) -> BTreeMap<GpuUuid, String> {
        let gpus = self.inventory.gpus.iter();
        let taken = gpus.filter_map(|gpu| {
            let (key, former) = self.former_in_place_of(gpu)?;
            let why = format!(
                "it was {former} and is {}: job {} goes on, and until its end nothing else is placed there",
                gpu.uuid, key.job
            );
            Some((gpu.uuid.clone(), why))
        });
        taken.collect()
    }

    /// What a job holds, as it has to be asked for now: GPUs that stand in the places of its own as well. Shares are
    /// left out: of these, NVML's list of processes tells nothing.
    pub fn units_to_verify(&self, key: JobKey) -> Vec<GpuUnit> {
        let Some(holding) = self.holding(key) else {
            return Vec::new();
        };
        let mut units = holding.gpus.clone();
        for gpu in &self.inventory.gpus {
            let Some(former) = holding.former(gpu) else {
                continue;
            };
            let held = holding.gpus.iter().filter(|unit| unit.gpu == *former);
            let alone = held.filter(|unit| !matches!(unit.slice, Slice::Share { .. }));
            units.extend(alone.map(|unit| GpuUnit {
                gpu: gpu.uuid.clone(),
                slice: unit.slice.clone(),
            }));
        }
        units
    }

    /// GPUs that were there, and are no more, and who holds them, in words; none: all are there.
    pub(super) fn gpus_gone(&self) -> Option<String> {
        let mut known: BTreeMap<&GpuUuid, &Place> = self.seen.iter().collect();
        known.extend(self.holders().flat_map(|(_, holding)| &holding.places));
        // Where another one stands it is said of that one, as long as it matters.
        known.retain(|uuid, place| {
            let mut gpus = self.inventory.gpus.iter();
            !gpus.any(|gpu| gpu.uuid == **uuid || place.is_of(gpu))
        });
        let mut gone: Vec<(&GpuUuid, &Place)> = known.into_iter().collect();
        gone.sort_by_key(|(_, place)| place.index);
        let (there, missing) = (self.inventory.gpus.len(), gone.len());
        let name = |(uuid, place): &(&GpuUuid, &Place)| {
            let held = self.holders().filter(|(_, holding)| {
                let mut units = holding.gpus.iter();
                units.any(|unit| unit.gpu == **uuid)
            });
            let jobs: BTreeSet<JobId> = held.map(|(key, _)| key.job).collect();
            if jobs.is_empty() {
                format!("GPU {} ({uuid})", place.index)
            } else {
                format!("GPU {} ({uuid}, held by {})", place.index, named(&jobs))
            }
        };
        let mut names: Vec<String> = gone.iter().take(MAX_NAMED).map(name).collect();
        if missing > MAX_NAMED {
            names.push(format!("{} more", missing - MAX_NAMED));
        }
        (missing > 0).then(|| {
            format!(
                "{there} of {} GPUs are left: NVML does not list {} any more; see dmesg on the node",
                there + missing,
                names.join(", ")
            )
        })
    }
}

/// "job 6", "jobs 6, 7, 30".
pub(super) fn named(jobs: &BTreeSet<JobId>) -> String {
    let names: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    match names.as_slice() {
        [one] => format!("job {one}"),
        several => format!("jobs {}", several.join(", ")),
    }
}
