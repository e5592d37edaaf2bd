//! What is left of a host, and what that is worth to requests to come.
//!
//! What is free of a host is worth what would come to be used of its GPUs if the last requests came again, and each
//! got its part of the host where it fits: several stretches of them are tried, and the mean taken. A place is the
//! better, the less worth is lost beyond what is used there: so CPUs stay where GPUs still need them, and what
//! remains of a GPU is of a size that is asked for. It is the fragmentation of Weng et al. (FGD, USENIX ATC 2023)
//! followed to the end instead of for one request, with no more known of the workload than what has come.
//!
//! Two things that no single host shows are added:
//! - *Several GPUs at once*: what the last requests for several could have of the host. Else nothing would keep hosts
//!   whole for the few that need them whole.
//! - *Demand*: GPUs that many of the last requests can have nowhere else are worth more than others.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::kind::{Class, Outfit};
use super::recent::{Ask, Outlook};
use crate::model::gpu_unit::WHOLE_MILLI;

/// Stretches of the last requests that are tried. With more of them the mean hardly differs.
const STRETCHES: usize = 16;
/// Requests of a stretch: a host that is not full after so many has no place for what is asked for.
const STRETCH: usize = 64;
/// Worth of a thousandth of a GPU: each stretch adds what is used in it.
const MILLI: u64 = STRETCHES as u64;
/// Worth of a whole GPU.
const WHOLE: u64 = WHOLE_MILLI as u64 * MILLI;
/// One part in so many of what several GPUs at once are worth is added: more would leave hosts half empty.
const SEVERAL_PART: u64 = 5;
/// A GPU that is in demand like the mean is worth so many GPUs besides.
const DEMAND_FACTOR: u64 = 2;
/// Shares of what is asked for are counted in so many parts of all of it.
const ALL: u64 = 1 << 20;
/// Outfits with prospects. Of more, what is lost on the others counts as nothing.
const MAX_PROSPECTS: usize = 128;
/// Worths of hosts of one outfit that are kept, some 60 bytes each; then all are forgotten.
const MAX_KNOWN: usize = 4096;
/// Shared GPUs of a host that are looked at, those with the most room.
const MAX_SHARED: usize = 16;
/// Losses that differ by less than a thirty-second part of a GPU are equal: they are estimates.
const GRAIN: i64 = WHOLE as i64 / 32;

/// Free GPUs of a host, no matter which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FreeGpus {
    whole: u16,
    /// Thousandths of those that are shared, the most first.
    shared: [u16; MAX_SHARED],
}

impl FreeGpus {
    /// So many whole ones, and these thousandths of others.
    pub fn new(whole: u32, shared: impl Iterator<Item = u16>) -> Self {
        let mut free = Self {
            whole: whole as u16,
            shared: [0; MAX_SHARED],
        };
        for milli in shared {
            let at = free.shared.partition_point(|more| *more >= milli);
            if at < MAX_SHARED {
                free.shared[at..].rotate_right(1);
                free.shared[at] = milli;
            }
        }
        free
    }

    fn milli(&self) -> u64 {
        let shared: u64 = self.shared.iter().map(|milli| u64::from(*milli)).sum();
        u64::from(self.whole) * u64::from(WHOLE_MILLI) + shared
    }

    /// Takes shares or whole GPUs as placement does: the tightest that are enough. Whether there are as many.
    fn take(&mut self, wanted: &Wanted) -> bool {
        if wanted.milli == WHOLE_MILLI {
            let enough = u32::from(self.whole) >= wanted.gpus;
            self.whole -= if enough { wanted.gpus as u16 } else { 0 };
            return enough;
        }
        let begun = self.shared.partition_point(|milli| *milli >= wanted.milli);
        let from_begun = begun.min(wanted.gpus as usize);
        let opened = wanted.gpus as usize - from_begun;
        if usize::from(self.whole) < opened {
            return false;
        }
        self.whole -= opened as u16;
        let rests = self.shared[begun - from_begun..begun]
            .iter()
            .map(|milli| milli - wanted.milli);
        let new = std::iter::repeat_n(WHOLE_MILLI - wanted.milli, opened);
        let others = self.shared[..begun - from_begun]
            .iter()
            .chain(&self.shared[begun..]);
        *self = Self::new(self.whole.into(), others.copied().chain(rests).chain(new));
        true
    }
}

/// What an [`Ask`] comes to on hosts of an outfit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    gpus: u32,
    milli: u16,
    cpus: u32,
    memory_bytes: u64,
}

impl Wanted {
    /// None where such a host could not even have it when it is empty.
    fn of(ask: &Ask, outfit: &Outfit) -> Option<Self> {
        let right = outfit.gpus.iter().filter(|gpu| ask.may_have(gpu)).count();
        let all = outfit.milli().max(1);
        let part = |whole: u64| (u128::from(whole) * u128::from(ask.volume()) / u128::from(all)) as u64;
        let alike = (part(outfit.cpus.into()) as u32, part(outfit.memory_bytes));
        let (cpus, memory_bytes) = ask.with.unwrap_or(alike);
        let fits = right >= ask.gpus as usize && cpus <= outfit.cpus && memory_bytes <= outfit.memory_bytes;
        fits.then_some(Self {
            gpus: ask.gpus,
            milli: ask.milli,
            cpus,
            memory_bytes,
        })
    }
}

/// What is expected of requests for hosts of one outfit.
#[derive(Debug)]
pub(super) struct Prospect {
    outfit: Outfit,
    /// What each of the last requests comes to.
    asks: Vec<Option<Wanted>>,
    /// What those for several GPUs come to, and how much of [`ALL`] that is asked for they are.
    several: Vec<(Wanted, u64)>,
    /// How much its GPUs are in demand: [`ALL`] where it is like the mean.
    demand: u64,
    known: Mutex<Known>,
}

/// Worths of what is free, as they were found.
#[derive(Debug, Default)]
struct Known {
    /// Where no GPU is shared, as in most lookups: by number of GPUs and class.
    whole: BTreeMap<(u16, Class), u64>,
    others: BTreeMap<(Class, FreeGpus), u64>,
}

impl Known {
    fn len(&self) -> usize {
        self.whole.len() + self.others.len()
    }

    fn get(&self, free: &FreeGpus, class: Class) -> Option<u64> {
        let known = match free.shared[0] {
            0 => self.whole.get(&(free.whole, class)),
            _ => self.others.get(&(class, *free)),
        };
        known.copied()
    }

    fn insert(&mut self, free: FreeGpus, class: Class, worth: u64) {
        if self.len() >= MAX_KNOWN {
            *self = Self::default();
        }
        match free.shared[0] {
            0 => self.whole.insert((free.whole, class), worth),
            _ => self.others.insert((class, free), worth),
        };
    }
}

impl Prospect {
    /// What is lost in worth, beyond what is used, when a host of a class with these GPUs is left with those, by a
    /// request for so many CPUs and so much memory; in [`GRAIN`]s.
    pub fn lost(&self, class: Class, before: FreeGpus, after: FreeGpus, cpus: u32, memory_bytes: u64) -> i64 {
        let left = self.outfit.left(class, cpus, memory_bytes);
        let (had, has) = (self.worth(before, class), self.worth(after, left));
        (had as i64 - has as i64 + GRAIN / 2).div_euclid(GRAIN)
    }

    fn worth(&self, free: FreeGpus, class: Class) -> u64 {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worth) = known().get(&free, class) {
            return worth;
        }
        let worth = self.used(free, class) + self.at_once(free, class) + self.demanded(free);
        known().insert(free, class, worth);
        worth
    }

    /// What comes to be used.
    fn used(&self, free: FreeGpus, class: Class) -> u64 {
        let (cpus, memory_bytes) = self.outfit.least(class);
        let all = free.milli();
        let stretch = |number: usize| {
            let (mut free, mut cpus, mut memory_bytes, mut left) = (free, cpus, memory_bytes, all);
            let first = number * self.asks.len() / STRETCHES;
            for wanted in self.asks.iter().cycle().skip(first).take(STRETCH).flatten() {
                let volume = u64::from(wanted.gpus) * u64::from(wanted.milli);
                let fits = volume <= left && wanted.cpus <= cpus && wanted.memory_bytes <= memory_bytes;
                if fits && free.take(wanted) {
                    (cpus, memory_bytes) = (cpus - wanted.cpus, memory_bytes - wanted.memory_bytes);
                    left -= volume;
                }
                if left == 0 {
                    break;
                }
            }
            all - left
        };
        (0..STRETCHES).map(stretch).sum()
    }

    /// What several GPUs at once are worth.
    fn at_once(&self, free: FreeGpus, class: Class) -> u64 {
        let (cpus, memory_bytes) = self.outfit.least(class);
        let each = self.several.iter().map(|(wanted, part)| {
            let often = u64::from(u32::from(free.whole) / wanted.gpus)
                .min(u64::from(cpus / wanted.cpus.max(1)))
                .min(memory_bytes / wanted.memory_bytes.max(1));
            part * often * u64::from(wanted.gpus)
        });
        each.sum::<u64>() * WHOLE / ALL / SEVERAL_PART
    }

    fn demanded(&self, free: FreeGpus) -> u64 {
        let demand = u128::from(free.milli() * MILLI) * u128::from(self.demand * DEMAND_FACTOR);
        (demand / u128::from(ALL)) as u64
    }
}

/// What is expected of requests, outfit by outfit.
#[derive(Debug, Default)]
pub(super) struct Prospects(BTreeMap<Outfit, Prospect>);

impl Prospects {
    /// Of hosts of these outfits, of which there are so many.
    pub fn new(outlook: &Outlook, outfits: &BTreeMap<&Outfit, usize>) -> Self {
        let outfits: Vec<(&Outfit, u64)> = outfits
            .iter()
            .filter(|(outfit, _)| !outfit.gpus.is_empty())
            .take(MAX_PROSPECTS)
            .map(|(outfit, hosts)| (*outfit, *hosts as u64 * outfit.milli()))
            .collect();
        let asked = Asked::of(outlook);
        let wanted = |ask: &Ask| -> Vec<Option<Wanted>> {
            outfits
                .iter()
                .map(|(outfit, _)| Wanted::of(ask, outfit))
                .collect()
        };
        let wanted: BTreeMap<&Ask, Vec<Option<Wanted>>> =
            asked.0.keys().map(|ask| (*ask, wanted(ask))).collect();
        let mut demand = vec![0; outfits.len()];
        let supply: u64 = outfits.iter().map(|(_, supply)| supply).sum();
        for (ask, part) in &asked.0 {
            let can = || {
                wanted[ask]
                    .iter()
                    .enumerate()
                    .filter(|(_, wanted)| wanted.is_some())
            };
            let own: u64 = can().map(|(at, _)| outfits[at].1).sum();
            for (at, _) in can() {
                demand[at] += u128::from(*part) * u128::from(supply) / u128::from(own.max(1));
            }
        }
        let prospects = outfits.iter().enumerate().map(|(at, (outfit, _))| {
            let several = asked.0.iter().filter(|(ask, _)| ask.gpus > 1);
            let several = several.filter_map(|(ask, part)| Some((wanted[ask][at]?, *part)));
            let prospect = Prospect {
                outfit: (*outfit).clone(),
                asks: outlook.asks.iter().map(|ask| wanted[ask][at]).collect(),
                several: several.collect(),
                demand: demand[at] as u64,
                known: Mutex::default(),
            };
            ((*outfit).clone(), prospect)
        });
        Self(prospects.collect())
    }

    /// None: it has no GPUs, or there are too many outfits.
    pub fn of(&self, outfit: &Outfit) -> Option<&Prospect> {
        self.0.get(outfit)
    }
}

/// All that are remembered, those that are alike as one, and how much of [`ALL`] that is asked for they ask for.
struct Asked<'a>(BTreeMap<&'a Ask, u64>);

impl<'a> Asked<'a> {
    fn of(outlook: &'a Outlook) -> Self {
        let single: Vec<&Ask> = outlook.asks.iter().filter(|ask| ask.gpus == 1).collect();
        let several: Vec<&Ask> = outlook.several.iter().collect();
        let all: u64 = outlook.volumes.iter().sum::<u64>().max(1);
        // Of requests for several more may be among the last ones than are remembered apart.
        let mut asked: BTreeMap<&Ask, u64> = outlook.asks.iter().map(|ask| (ask, 0)).collect();
        for (asks, volume) in [single, several].into_iter().zip(outlook.volumes) {
            // There are more of those for one GPU; each of both kinds stands for its part of the volume.
            let sample: u64 = asks.iter().map(|ask| ask.volume()).sum::<u64>().max(1);
            for ask in asks {
                let part = u128::from(ALL) * u128::from(volume) * u128::from(ask.volume());
                *asked.entry(ask).or_default() += (part / u128::from(all) / u128::from(sample)) as u64;
            }
        }
        Self(asked)
    }
}

#[cfg(test)]
mod tests;
