//! How a [`Table`](super::Table) is made: all sets of a size in order, and what sets of free GPUs are worth.

use super::super::demand::Demand;
use super::super::shape::{Quality, Shape};

/// All sets of one size, from the worst to the best.
///
/// Of equally good ones those with the lower positions are later, so that the later one of two is always better. A
/// place on it fits in 15 bits: of 16 GPUs, 12,870 sets have eight.
pub(super) struct Ladder {
    /// GPUs of each set.
    size: usize,
    rungs: Vec<Rung>,
}

struct Rung {
    set: u16,
    /// Equal for equally good sets.
    rank: u16,
    /// What a request gets of it, as [`Quality::worth`] says.
    worth: u32,
}

/// Nothing on a ladder.
const NONE: i16 = -1;

impl Ladder {
    /// One for each size from 1 on.
    pub fn all(shape: &Shape) -> Vec<Self> {
        let qualities = shape.qualities();
        let gpus = shape.gpus();
        let mut sorted: Vec<Vec<(u64, u16)>> = vec![Vec::new(); gpus];
        // Of two sets of a size, the one with the lower positions has the greater mirror image.
        for mirrored in 1..1_u32 << gpus {
            let set = mirrored.reverse_bits() >> (u32::BITS as usize - gpus);
            sorted[set.count_ones() as usize - 1].push((qualities[set as usize].key(), set as u16));
        }
        let ladder = |(size, mut sets): (usize, Vec<(u64, u16)>)| {
            // Stable: equally good ones stay in the order of their mirror images.
            sets.sort_by_key(|(key, _)| *key);
            Self::new(size, &sets, &qualities)
        };
        (1..).zip(sorted).map(ladder).collect()
    }

    fn new(size: usize, sorted: &[(u64, u16)], qualities: &[Quality]) -> Self {
        let mut ladder = Self {
            size,
            rungs: Vec::with_capacity(sorted.len()),
        };
        let Some((_, best)) = sorted.last() else {
            return ladder;
        };
        let best = &qualities[usize::from(*best)];
        for (rank, equals) in (0..).zip(sorted.chunk_by(|a, b| a.0 == b.0)) {
            let worth = qualities[usize::from(equals[0].1)].worth(size as u32, best);
            let rungs = equals.iter().map(|(_, set)| Rung {
                set: *set,
                rank,
                worth,
            });
            ladder.rungs.extend(rungs);
        }
        ladder
    }

    /// Notes the rank of each of its sets.
    pub fn note_ranks(&self, ranks: &mut [u16]) {
        for rung in &self.rungs {
            ranks[usize::from(rung.set)] = rung.rank;
        }
    }

    /// For each set of GPUs the place of its best part.
    fn best_parts(&self, gpus: usize, best: &mut [i16]) {
        best.fill(NONE);
        for (place, rung) in (0..).zip(&self.rungs) {
            best[usize::from(rung.set)] = place;
        }
        for gpu in 0..gpus {
            // Known lengths: so short loops are unrolled.
            match gpu {
                0 => spread::<1>(best),
                1 => spread::<2>(best),
                2 => spread::<4>(best),
                _ => best.chunks_exact_mut(2 << gpu).for_each(spread_in),
            }
        }
    }
}

/// Each set that has a GPU may do with what the same set without it has: in blocks of twice `HALF` sets, the second
/// half has it.
fn spread<const HALF: usize>(best: &mut [i16]) {
    best.chunks_exact_mut(2 * HALF).for_each(spread_in);
}

#[inline]
fn spread_in(block: &mut [i16]) {
    let (without, with) = block.split_at_mut(block.len() / 2);
    for (with, without) in with.iter_mut().zip(without) {
        *with = (*with).max(*without);
    }
}

/// Of each set, were it free: what it holds for each size of request, by how often that size is wanted.
/// What it holds is the worth of the best part of that size, of the best part of the rest, and so on.
pub(super) fn worths(gpus: usize, ladders: &[Ladder], demand: &Demand) -> Vec<u64> {
    let sets = 1 << gpus;
    let (mut worths, mut best) = (vec![0; sets], vec![NONE; sets]);
    let wanted = ladders.iter().map(|ladder| (ladder, demand.weight(ladder.size)));
    for (ladder, weight) in wanted.filter(|(_, weight)| *weight > 0) {
        ladder.best_parts(gpus, &mut best);
        let mut held = vec![0_u32; sets];
        for set in 0..sets {
            if let Some(rung) = usize::try_from(best[set])
                .ok()
                .and_then(|at| ladder.rungs.get(at))
            {
                // What is left is a set of a lower number.
                held[set] = rung.worth + held[set & !usize::from(rung.set)];
                worths[set] += weight * u64::from(held[set]);
            }
        }
    }
    worths
}
