//! MIG slices of one host: which GPU instance goes where.
//!
//! A GPU in MIG mode is a row of memory slices, and a GPU instance takes some that follow each other, at one of
//! the starts that its profile allows. What is there and idle is given before anything is cut: it is ready at once,
//! and lies where slices were packed before. Then, placing one costs what it takes from requests to come: for each profile,
//! the memory slices that could still be given in it. So slices are packed where others have left little room, and
//! into corners that large profiles cannot use. What is placed on one GPU is the best of all ways that there are.

use super::kind::HostKind;
use crate::model::gpu::{GpuInfo, MigProfile};
use crate::model::gpu_unit::span;

/// Ways to place several slices of one profile on one GPU that are looked at: GPUs of today have at most 35.
const MAX_WAYS: u32 = 4096;
/// What an empty GPU is worth: costs are in millionths of it.
const WHOLE: u64 = 1_000_000;

/// A GPU instance by its number among a layout's profiles, and its first memory slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut {
    /// Position in [`MigLayout::profiles`].
    pub profile: u8,
    /// First memory slice.
    pub start: u8,
}

/// What a GPU in MIG mode can be cut into.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MigLayout {
    /// As the driver lists them.
    pub profiles: Vec<MigProfile>,
    /// The instances that there are, where they are all that there may be; none: it may be cut anew.
    pub fixed: Option<Vec<Cut>>,
}

/// What of a GPU in MIG mode is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MigRoom {
    /// Instances that somebody holds, in order.
    pub held: Vec<Cut>,
    /// Instances that are there and that nobody holds, in order.
    pub idle: Vec<Cut>,
}

impl MigLayout {
    /// Of a GPU; none when it is not in MIG mode.
    pub fn of(gpu: &GpuInfo) -> Option<Self> {
        let mig = gpu.mig.as_ref()?;
        let mut layout = Self {
            profiles: mig.profiles.clone(),
            fixed: None,
        };
        if !mig.recut {
            let cuts = mig.instances.iter();
            let mut cuts: Vec<Cut> = cuts
                .filter_map(|instance| layout.cut(&instance.profile, instance.start))
                .collect();
            cuts.sort_unstable();
            layout.fixed = Some(cuts);
        }
        Some(layout)
    }

    /// An instance; none where the profile is not one of these, or may not start there.
    pub fn cut(&self, profile: &str, start: u8) -> Option<Cut> {
        let profile = self.number(profile)?;
        let starts = &self.profiles[usize::from(profile)].starts;
        starts.contains(&start).then_some(Cut { profile, start })
    }

    fn number(&self, profile: &str) -> Option<u8> {
        let at = self.profiles.iter().position(|known| known.name == profile)?;
        u8::try_from(at).ok()
    }

    fn memory(&self, cut: Cut) -> u32 {
        span(cut.start, self.profiles[usize::from(cut.profile)].width)
    }

    /// Compute slices of the GPU: the largest profile has them all.
    fn compute(&self) -> u32 {
        let all = self.profiles.iter().map(|profile| u32::from(profile.compute));
        all.max().unwrap_or(0)
    }

    fn taken(&self, held: &[Cut]) -> Taken {
        let mut taken = Taken::default();
        for cut in held {
            self.take(&mut taken, *cut);
        }
        taken
    }

    fn take(&self, taken: &mut Taken, cut: Cut) {
        taken.memory |= self.memory(cut);
        taken.compute += u32::from(self.profiles[usize::from(cut.profile)].compute);
        taken.cuts.push(cut);
    }

    /// The instances of a profile that could be made, or are there, beside what is taken; each for itself.
    fn open(&self, taken: &Taken, number: u8) -> impl Iterator<Item = Cut> {
        let profile = &self.profiles[usize::from(number)];
        let same = taken.cuts.iter().filter(|cut| cut.profile == number).count();
        let room =
            taken.compute + u32::from(profile.compute) <= self.compute() && same < usize::from(profile.most);
        let starts = profile.starts.iter().filter(move |_| room);
        let cuts = starts.map(move |start| Cut {
            profile: number,
            start: *start,
        });
        cuts.filter(|cut| {
            let there = self.fixed.as_ref().is_none_or(|fixed| fixed.contains(cut));
            there && self.memory(*cut) & taken.memory == 0
        })
    }

    /// What could still be given: for each profile, the memory slices that as many instances of it as fit would take.
    fn worth(&self, taken: &Taken) -> u64 {
        let numbers = 0..self.profiles.len() as u8;
        let each = numbers.map(|number| {
            let mut taken = taken.clone();
            let before = taken.cuts.len();
            // Instances of one profile have one width: whichever ends first leaves the most room.
            while let Some(first) = self.open(&taken, number).min_by_key(|cut| cut.start) {
                self.take(&mut taken, first);
            }
            let width = u64::from(self.profiles[usize::from(number)].width);
            (taken.cuts.len() - before) as u64 * width
        });
        each.sum()
    }

    /// The best ways to place 1, 2, … instances of a profile beside what is held, as many as fit.
    fn ways(&self, room: &MigRoom, profile: &str) -> Vec<Way> {
        let Some(number) = self.number(profile) else {
            return Vec::new();
        };
        let taken = self.taken(&room.held);
        let before = self.worth(&taken);
        let whole = self.worth(&Taken::default()).max(1);
        let mut ways: Vec<Way> = Vec::new();
        let mut left = MAX_WAYS;
        let mut pending = vec![taken];
        while let Some(taken) = pending.pop() {
            let own = &taken.cuts[room.held.len()..];
            let last = own.last().copied();
            // In ascending order, each set of them once.
            let more = self
                .open(&taken, number)
                .filter(|cut| last.is_none_or(|last| *cut > last));
            for cut in more {
                if left == 0 {
                    break;
                }
                left -= 1;
                let mut next = taken.clone();
                self.take(&mut next, cut);
                pending.push(next);
            }
            if own.is_empty() {
                continue;
            }
            let way = Way {
                recuts: own.iter().filter(|cut| !room.idle.contains(cut)).count() as u32,
                cost: (before - self.worth(&taken)) * WHOLE / whole,
                cuts: own.to_vec(),
            };
            match ways.get_mut(own.len() - 1) {
                Some(best) => *best = way.min(best.clone()),
                None => {
                    // Depth first: one of each size comes before one of the next.
                    ways.push(way);
                }
            }
        }
        ways
    }
}

/// What of one GPU is taken.
#[derive(Clone, Debug, Default)]
struct Taken {
    /// Memory slices, a bit each.
    memory: u32,
    /// Compute slices.
    compute: u32,
    cuts: Vec<Cut>,
}

/// Instances of one profile on one GPU; the smallest is the best.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    /// Instances that have to be made.
    recuts: u32,
    cost: u64,
    cuts: Vec<Cut>,
}

/// Slices that a request gets; the smallest is the best.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slices {
    /// Instances that have to be made.
    recuts: u32,
    /// What is lost to requests to come, in millionths of a GPU.
    cost: u64,
    /// GPUs that they are on.
    gpus: u32,
    /// Position of the GPU, and the instance.
    pub cuts: Vec<(u8, Cut)>,
}

impl Slices {
    /// What decides between hosts: an instance that has to be made counts as much as a GPU that is lost.
    pub fn price(&self) -> u64 {
        u64::from(self.recuts) * WHOLE + self.cost
    }
}

/// The best `count` instances of a profile on those of a host's GPUs that are in `right`; none when fewer fit.
pub(super) fn best_slices(
    host: &HostKind,
    rooms: &[(u8, MigRoom)],
    right: u64,
    profile: &str,
    count: usize,
) -> Option<Slices> {
    // Of the GPUs so far, the best for each number of instances.
    let mut best: Vec<Option<Slices>> = vec![None; count + 1];
    best[0] = Some(Slices::default());
    for (gpu, room) in rooms.iter().filter(|(gpu, _)| right >> gpu & 1 == 1) {
        let Some(Some(layout)) = host.mig.get(usize::from(*gpu)) else {
            continue;
        };
        let ways = layout.ways(room, profile);
        for all in (1..=count).rev() {
            for (here, way) in (1..=all).zip(&ways) {
                let Some(others) = &best[all - here] else { continue };
                let mut both = others.clone();
                both.cost += way.cost;
                both.gpus += 1;
                both.recuts += way.recuts;
                both.cuts.extend(way.cuts.iter().map(|cut| (*gpu, *cut)));
                if best[all].as_ref().is_none_or(|best| both < *best) {
                    best[all] = Some(both);
                }
            }
        }
    }
    best.pop().flatten()
}

/// Profiles of a host's GPUs in `right` with so much memory at least, those with the least first. Variants with media
/// engines and the like are for those who ask for them by name.
pub(super) fn profiles_of(host: &HostKind, right: u64, least_bytes: u64) -> Vec<(u64, &str)> {
    let gpus = host.mig.iter().enumerate();
    let layouts = gpus.filter_map(|(gpu, layout)| layout.as_ref().filter(|_| right >> gpu & 1 == 1));
    let all = layouts.flat_map(|layout| &layout.profiles);
    let plain =
        all.filter(|profile| profile.memory_bytes >= least_bytes && !profile.name.contains(['+', '-']));
    let mut found: Vec<(u64, &str)> = plain
        .map(|profile| (profile.memory_bytes, profile.name.as_str()))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests;
