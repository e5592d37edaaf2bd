//! Which GPUs of one host, looked up: for hosts of up to [`MAX_TABLE_GPUS`] GPUs.
//!
//! Hosts that are alike in what placement looks at are one [`Shape`], and share one [`Table`]. It
//! orders all sets of GPUs by what they are in themselves, knows of all sets what they are worth to
//! the requests to come, and keeps for each set of free GPUs the best part of every size. What is
//! looked up is filled in when it is first asked for; then it is one access.
//!
//! Cost at n GPUs: 2^n sets are scored and sorted once, and the best part of each is found for n sizes at once
//! ([`ladder`]): n = 8: 256 sets, n = 16: 65,536, in some milliseconds, whatever the links are. The parts of a free
//! set are gone through once each, when it first occurs: 2^k for k free ones, 3^n for all (n = 8: 6,561). Memory: 34
//! bytes a set, and 2 bytes for each GPU of each free set that has occurred: 9 to 11 KiB for n = 8, 2.2 to
//! 3.2 MiB for n = 16.

mod ladder;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use self::ladder::{Ladder, worths};
use super::demand::Demand;
use super::shape::{Quality, Shape};

/// Largest hosts that get a table: beyond, sets are too many to list.
pub const MAX_TABLE_GPUS: usize = 16;

/// A set that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Best {
    /// One bit a position in [`Inventory::gpus`](crate::model::gpu::Inventory::gpus).
    pub set: u32,
    /// How good it is.
    pub quality: Quality,
    /// What the free GPUs lose in worth to requests to come.
    pub cost: u64,
}

/// A [`Table`] that is made when it is first looked at.
#[derive(Debug)]
pub(super) struct LazyTable {
    shape: Shape,
    demand: Demand,
    table: OnceLock<Table>,
}

impl LazyTable {
    pub fn new(shape: Shape, demand: Demand) -> Self {
        Self {
            shape,
            demand,
            table: OnceLock::new(),
        }
    }

    pub fn get(&self) -> &Table {
        self.table
            .get_or_init(|| Table::new(self.shape.clone(), &self.demand))
    }

    /// Made for such hosts, with such requests expected.
    pub fn is_of(&self, shape: &Shape, demand: &Demand) -> bool {
        self.shape == *shape && self.demand == *demand
    }

    /// Sets of GPUs that it lists.
    pub fn sets(&self) -> usize {
        1 << self.shape.gpus()
    }
}

/// The best sets of all hosts of one shape.
#[derive(Debug)]
pub struct Table {
    shape: Shape,
    /// Of each set: its place among those of its size, the better the higher; equal for equally good ones.
    ranks: Vec<u16>,
    /// Of each set, were it free: what requests to come would get of it.
    worths: Vec<u64>,
    /// Of each set, were it free: the best part of it of each size from 1 on.
    best: Vec<OnceLock<Box<[u16]>>>,
}

impl Table {
    /// For hosts of a shape, with these requests expected.
    pub fn new(shape: Shape, demand: &Demand) -> Self {
        let ladders = Ladder::all(&shape);
        let sets = 1 << shape.gpus();
        let mut ranks = vec![0; sets];
        for ladder in &ladders {
            ladder.note_ranks(&mut ranks);
        }
        Self {
            worths: worths(shape.gpus(), &ladders, demand),
            shape,
            ranks,
            best: std::iter::repeat_with(OnceLock::new).take(sets).collect(),
        }
    }

    /// Its hosts' GPUs are of one model.
    pub fn is_of_one_model(&self) -> bool {
        self.shape.is_of_one_model()
    }

    /// What it was made for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The best `size` of the GPUs in `candidates`, where those in `free`, a superset, are free; none when
    /// there are fewer, or when none are wanted.
    ///
    /// Best is, in this order: one model, the fastest worst link, the highest sum of bandwidths, the fewest
    /// NUMA nodes, the fewest NICs, the highest worth of what remains free, the lowest positions.
    pub fn best(&self, free: u32, candidates: u32, size: usize) -> Option<Best> {
        let all = self.best.len() as u32 - 1;
        let (free, candidates) = (free & all, candidates & free & all);
        if size == 0 || (candidates.count_ones() as usize) < size {
            return None;
        }
        let set = if free == candidates {
            let row = self.best[free as usize].get_or_init(|| self.row(free));
            u32::from(row[size - 1])
        } else {
            // Some of the free GPUs are not wanted: hosts of several models, which are few.
            let parts = parts_of(candidates).filter(|set| set.count_ones() as usize == size);
            parts.max_by_key(|set| self.key(free, *set))?
        };
        Some(Best {
            set,
            quality: self.shape.quality(set),
            cost: self.worths[free as usize].saturating_sub(self.worths[(free & !set) as usize]),
        })
    }

    /// What decides between parts of equal size of a free set.
    fn key(&self, free: u32, set: u32) -> (u16, u64, u32) {
        // Of two sets of a size, the one with the lower positions has the greater mirror image.
        let mirrored = set.reverse_bits();
        (
            self.ranks[set as usize],
            self.worths[(free & !set) as usize],
            mirrored,
        )
    }

    fn row(&self, free: u32) -> Box<[u16]> {
        let mut best = vec![((0, 0, 0), 0_u16); free.count_ones() as usize];
        for set in parts_of(free) {
            let place = &mut best[set.count_ones() as usize - 1];
            let key = self.key(free, set);
            if place.1 == 0 || key > place.0 {
                *place = (key, set as u16);
            }
        }
        best.into_iter().map(|(_, set)| set).collect()
    }
}

/// The parts of a set, without the empty one.
fn parts_of(set: u32) -> impl Iterator<Item = u32> {
    let mut next = set;
    std::iter::from_fn(move || {
        let part = next;
        next = part.wrapping_sub(1) & set;
        (part != 0).then_some(part)
    })
}
