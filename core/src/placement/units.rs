//! GPU units of one host: whole GPUs, MIG slices or shares, as a request wants them.

use std::sync::Arc;

use super::Needs;
use super::gpu_set::{GpuSet, best_set, positions};
use super::hosts::Kind;
use super::slices::{Cut, MigRoom, best_slices, profiles_of};
use crate::model::gpu::Inventory;
use crate::model::gpu_unit::{GpuUnit, Sharing, Slice, WHOLE_MILLI};
use crate::model::ids::UserName;
use crate::model::resources::{ResourceRequest, UnitRequest};

/// What of a GPU may be given away of which not all may.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartRoom {
    /// Of one that jobs share.
    Shared {
        /// Thousandths that nobody holds.
        milli: u16,
        /// Whose alone they are; none: anybody's.
        user: Option<UserName>,
    },
    /// Of one in MIG mode.
    Mig(MigRoom),
}

/// GPUs of a host of which not all may be given away, by position.
pub type Parts = Arc<[(u8, PartRoom)]>;

/// GPU units of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Units {
    /// GPUs: bit n is position n in [`Inventory::gpus`].
    Whole(u64),
    /// MIG slices, by position of their GPUs.
    Mig(Vec<(u8, Cut)>),
    /// A share of each of these GPUs, of so many thousandths.
    Share(u64, u16),
}

impl Units {
    /// The GPUs that they are of: bit n is position n in [`Inventory::gpus`].
    pub fn gpus(&self) -> u64 {
        match self {
            Self::Whole(gpus) | Self::Share(gpus, _) => *gpus,
            Self::Mig(cuts) => cuts.iter().fold(0, |gpus, (gpu, _)| gpus | 1 << gpu),
        }
    }

    /// As they are held.
    pub fn held(&self, inventory: &Inventory) -> Vec<GpuUnit> {
        let gpu = |position: usize| inventory.gpus.get(position);
        match self {
            Self::Whole(gpus) => positions(*gpus)
                .filter_map(|position| Some(gpu(position)?.uuid.clone().into()))
                .collect(),
            Self::Share(gpus, milli) => positions(*gpus)
                .filter_map(|position| {
                    let gpu = gpu(position)?;
                    Some(GpuUnit {
                        gpu: gpu.uuid.clone(),
                        slice: Slice::Share {
                            milli: *milli,
                            sharing: gpu.sharing?,
                        },
                    })
                })
                .collect(),
            Self::Mig(cuts) => cuts
                .iter()
                .filter_map(|(position, cut)| {
                    let gpu = gpu(usize::from(*position))?;
                    let profile = gpu.mig.as_ref()?.profiles.get(usize::from(cut.profile))?;
                    Some(GpuUnit {
                        gpu: gpu.uuid.clone(),
                        slice: Slice::Mig {
                            profile: profile.name.clone(),
                            start: cut.start,
                            width: profile.width,
                        },
                    })
                })
                .collect(),
        }
    }
}

/// GPU units that a request gets of a host.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub units: Units,
    /// The GPUs that they are of, and how these are joined where they are whole.
    pub set: GpuSet,
    /// Memory of each, where as little as is enough is wanted; else 0.
    pub memory: u64,
}

/// What is free of a host.
pub(super) struct Free<'a> {
    pub kind: &'a Kind,
    /// GPUs of which all is.
    pub gpus: u64,
    pub parts: &'a [(u8, PartRoom)],
}

impl Free<'_> {
    /// The best units for a request of the GPUs in `right`; none when there are too few.
    pub fn best(&self, right: u64, needs: Needs<'_>) -> Option<Chosen> {
        let request = needs.request;
        let count = request.gpus_per_node as usize;
        match &request.unit {
            UnitRequest::Whole => self.whole(right, request),
            _ if count == 0 => self.whole(right, request),
            UnitRequest::Mig(profile) => self.slices(right, &[profile], count),
            UnitRequest::Share { milli, sharing } => {
                self.shares(right, (*milli, *sharing), count, needs.user)
            }
            UnitRequest::Least => self.least(right, request),
        }
    }

    fn whole(&self, right: u64, request: &ResourceRequest) -> Option<Chosen> {
        let (host, table) = (&self.kind.host, self.kind.table());
        let (count, nvlink) = (request.gpus_per_node as usize, request.nvlink);
        let set = best_set(host, table, self.gpus, self.gpus & right, count, nvlink)?;
        Some(Chosen {
            units: Units::Whole(set.mask),
            set,
            memory: 0,
        })
    }

    /// Slices of one of these profiles, whichever are the best.
    fn slices(&self, right: u64, profiles: &[&str], count: usize) -> Option<Chosen> {
        let rooms = self.parts.iter().filter_map(|(gpu, room)| match room {
            PartRoom::Mig(room) => Some((*gpu, room.clone())),
            PartRoom::Shared { .. } => None,
        });
        let rooms: Vec<(u8, MigRoom)> = rooms.collect();
        let each = profiles
            .iter()
            .filter_map(|profile| best_slices(&self.kind.host, &rooms, right, profile, count));
        let slices = each.min()?;
        let mask = slices.cuts.iter().fold(0, |mask, (gpu, _)| mask | 1 << gpu);
        Some(Chosen {
            set: GpuSet {
                mask,
                numa_nodes: self.numa_nodes(mask),
                cost: slices.price(),
                ..GpuSet::default()
            },
            units: Units::Mig(slices.cuts),
            memory: 0,
        })
    }

    /// Shares of as many GPUs: of those with the least room that is enough, and then of free ones.
    fn shares(
        &self,
        right: u64,
        (milli, sharing): (u16, Option<Sharing>),
        count: usize,
        user: Option<&UserName>,
    ) -> Option<Chosen> {
        let host = &self.kind.host;
        let right = right & host.shared(sharing);
        let begun = self.parts.iter().filter_map(|(gpu, room)| match room {
            PartRoom::Shared {
                milli: free,
                user: of,
            } => {
                let open = of.as_ref().is_none_or(|of| Some(of) == user);
                (open && *free >= milli && right >> gpu & 1 == 1).then_some((*free, *gpu))
            }
            PartRoom::Mig(_) => None,
        });
        let mut begun: Vec<(u16, u8)> = begun.collect();
        begun.sort_unstable();
        let mut mask: u64 = begun.iter().take(count).fold(0, |mask, (_, gpu)| mask | 1 << gpu);
        let missing = count - u64::count_ones(mask) as usize;
        let table = self.kind.table();
        let new = best_set(host, table, self.gpus, self.gpus & right, missing, false)?;
        mask |= new.mask;
        Some(Chosen {
            units: Units::Share(mask, milli),
            set: GpuSet {
                mask,
                numa_nodes: self.numa_nodes(mask),
                cost: new.cost,
                ..GpuSet::default()
            },
            memory: 0,
        })
    }

    /// Slices or whole GPUs, those with the least memory that is enough.
    fn least(&self, right: u64, request: &ResourceRequest) -> Option<Chosen> {
        let host = &self.kind.host;
        let count = request.gpus_per_node as usize;
        let profiles = profiles_of(host, right, request.gpu_memory_bytes);
        let large = right & host.placeable & host.with_memory(request.gpu_memory_bytes..);
        let mut sizes: Vec<u64> = profiles.iter().map(|(memory, _)| *memory).collect();
        sizes.extend(positions(large).map(|gpu| host.gpu_memory[gpu]));
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().find_map(|memory| {
            let of_size = profiles.iter().filter(|(size, _)| *size == memory);
            let of_size: Vec<&str> = of_size.map(|(_, profile)| *profile).collect();
            let chosen = self
                .slices(right, &of_size, count)
                .or_else(|| self.whole(large & host.with_memory(..=memory), request));
            chosen.map(|chosen| Chosen { memory, ..chosen })
        })
    }

    fn numa_nodes(&self, mask: u64) -> u32 {
        let mut nodes: Vec<_> = positions(mask).map(|gpu| self.kind.host.numa[gpu]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len() as u32
    }
}

/// What is left of a GPU when such shares of it are held, each with whose it is where that is known; none: nothing
/// of it is given as a share.
///
/// One MPS server serves one user: who else comes waits for the last of its clients to leave ("CUDA
/// Multi-Process Service", Architecture). So what is left of a GPU that is shared by MPS is its user's.
pub(crate) fn room_of_shares<'a>(
    held: impl Iterator<Item = (&'a Slice, Option<&'a UserName>)>,
    by: Option<Sharing>,
) -> Option<PartRoom> {
    let by = by?;
    let (mut milli, mut user) = (WHOLE_MILLI, None);
    for (slice, of) in held {
        match slice {
            Slice::Share { milli: part, sharing } if *sharing == by => milli = milli.checked_sub(*part)?,
            Slice::Share { .. } | Slice::Whole | Slice::Mig { .. } => return None,
        }
        match by {
            Sharing::TimeSlice => {}
            Sharing::Mps if user.is_some_and(|user| Some(user) != of) => return None,
            Sharing::Mps => user = Some(of?),
        }
    }
    Some(PartRoom::Shared {
        milli,
        user: user.cloned(),
    })
}
