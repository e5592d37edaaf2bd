//! What of a host decides which of its GPUs go together, and how good a set of them is in itself.

use std::cmp::Reverse;

use super::gpu_set::positions;
use super::kind::HostKind;
use super::table::MAX_TABLE_GPUS;
use crate::model::topology::Link;

/// What about a host decides which of its GPUs go together. Positions are those of
/// [`Inventory::gpus`](crate::model::gpu::Inventory::gpus).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// The first GPU of the model of each.
    models: Vec<u8>,
    /// The first GPU on the NUMA node of each.
    numa: Vec<u8>,
    /// NICs nearest to each GPU, a bit each; of more than 64 the first.
    nics: Vec<u64>,
    /// Link and its bandwidth in MB/s, of each pair: (0,1), (0,2) … (1,2) ….
    pairs: Vec<(Link, u32)>,
}

impl Shape {
    /// Of a kind of host; none when it has no GPUs, or too many for a table.
    pub fn of(host: &HostKind) -> Option<Self> {
        let gpus = host.gpus();
        if gpus == 0 || gpus > MAX_TABLE_GPUS {
            return None;
        }
        let mut pairs = Vec::with_capacity(gpus * (gpus - 1) / 2);
        for a in 0..gpus {
            for b in a + 1..gpus {
                pairs.push((host.links.link(a, b), host.bandwidth(a, b)));
            }
        }
        Some(Self {
            models: firsts(&host.models),
            numa: firsts(&host.numa),
            nics: (0..gpus).map(|gpu| nearest_nics(host, gpu)).collect(),
            pairs,
        })
    }

    /// Number of GPUs.
    pub fn gpus(&self) -> usize {
        self.models.len()
    }

    /// Its hosts' GPUs are of one model.
    pub fn is_of_one_model(&self) -> bool {
        self.models.iter().all(|model| *model == 0)
    }

    fn pair(&self, a: usize, b: usize) -> (Link, u32) {
        let (a, b, n) = (a.min(b), a.max(b), self.gpus());
        self.pairs[a * n - a * (a + 1) / 2 + (b - a - 1)]
    }

    /// Of the set, which is not empty.
    pub(super) fn quality(&self, set: u32) -> Quality {
        let mut sketch = Sketch::default();
        for gpu in positions(set.into()) {
            let others = positions(u64::from(set) & ((1 << gpu) - 1));
            let links = others.fold(Links::default(), |links, other| links.and(self.pair(gpu, other)));
            sketch = self.with(sketch, gpu, links);
        }
        sketch.quality()
    }

    /// Of every set, by its number; of the empty one, too.
    pub(super) fn qualities(&self) -> Vec<Quality> {
        let mut sketches = vec![Sketch::default()];
        let mut links: Vec<Links> = Vec::new();
        for gpu in 0..self.gpus() {
            // From the new GPU to each set of those before it: one link more than to the set without its lowest.
            links.clear();
            links.push(Links::default());
            for set in 1..sketches.len() {
                let without = links[set & (set - 1)];
                links.push(without.and(self.pair(gpu, set.trailing_zeros() as usize)));
            }
            let with = |(sketch, links): (&Sketch, &Links)| self.with(*sketch, gpu, *links);
            let more: Vec<Sketch> = sketches.iter().zip(&links).map(with).collect();
            sketches.extend(more);
        }
        sketches.into_iter().map(Sketch::quality).collect()
    }

    /// A set of lower positions, and a GPU that has these links to it.
    fn with(&self, set: Sketch, gpu: usize, links: Links) -> Sketch {
        Sketch {
            models: set.models | 1 << self.models[gpu],
            links: set.links.and_all(links),
            numa: set.numa | 1 << self.numa[gpu],
            nics: set.nics | self.nics[gpu],
        }
    }
}

/// The first position at which each value occurs.
fn firsts<T: PartialEq>(values: &[T]) -> Vec<u8> {
    let first = |value: &T| values.iter().position(|other| other == value);
    values
        .iter()
        .map(|value| first(value).unwrap_or(0) as u8)
        .collect()
}

/// The slowest of some links, and the sum of their bandwidths.
#[derive(Clone, Copy, Default)]
struct Links {
    worst: Option<Link>,
    /// MB/s.
    sum: u32,
}

impl Links {
    fn and(self, (link, bandwidth): (Link, u32)) -> Self {
        self.and_all(Self {
            worst: Some(link),
            sum: bandwidth,
        })
    }

    fn and_all(self, other: Self) -> Self {
        let worst = match (self.worst, other.worst) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (some, None) | (None, some) => some,
        };
        Self {
            worst,
            sum: self.sum + other.sum,
        }
    }
}

/// What of a set its quality is found from: a bit for each model, NUMA node and NIC.
#[derive(Clone, Copy, Default)]
struct Sketch {
    models: u16,
    links: Links,
    numa: u16,
    nics: u64,
}

impl Sketch {
    fn quality(self) -> Quality {
        Quality {
            one_model: self.models.count_ones() <= 1,
            worst: self.links.worst,
            sum: self.links.sum,
            numa_nodes: Reverse(self.numa.count_ones()),
            nics: Reverse(self.nics.count_ones()),
        }
    }
}

/// The NICs with the best link to a GPU.
fn nearest_nics(host: &HostKind, gpu: usize) -> u64 {
    let best = host.nics.iter().map(|nic| nic[gpu]).max();
    let nearest = host
        .nics
        .iter()
        .take(64)
        .enumerate()
        .filter(|(_, nic)| Some(nic[gpu]) == best);
    nearest.fold(0, |mask, (nic, _)| mask | 1 << nic)
}

/// How good a set is in itself; greater is better. The order of the fields is the objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quality {
    /// All of its GPUs are of one model.
    pub one_model: bool,
    /// Slowest link in the set; none for one GPU.
    pub worst: Option<Link>,
    /// Sum of the bandwidths of its links, MB/s.
    pub sum: u32,
    /// NUMA nodes that it touches.
    pub numa_nodes: Reverse<u32>,
    /// NICs that are the nearest to one of its GPUs.
    pub nics: Reverse<u32>,
}

impl Quality {
    /// A number of the same order, which sorts faster.
    pub(super) fn key(&self) -> u64 {
        let worst = self.worst.map_or(0, |worst| match worst {
            Link::Sys => 1,
            Link::Node => 2,
            Link::Phb => 3,
            Link::Pxb => 4,
            Link::Pix => 5,
            Link::NvLink(count) => 6 + u64::from(count),
        });
        // At most 261, a u32, 16 and 64.
        let Self { one_model, sum, .. } = *self;
        let (numa, nics) = (u64::from(self.numa_nodes.0), u64::from(self.nics.0));
        u64::from(one_model) << 53 | worst << 44 | u64::from(sum) << 12 | (31 - numa) << 7 | (127 - nics)
    }

    /// What a request of `size` GPUs gets of this set, for weighing sizes and hosts against each other: a
    /// thousand for each GPU where this is the best set of the size that such a host has (`whole`), less as the
    /// mean bandwidth is lower, and a hundredth less for each NUMA node and NIC that it touches besides.
    pub(super) fn worth(&self, size: u32, whole: &Self) -> u32 {
        let share = match whole.sum {
            0 => 1000,
            best => u64::from(self.sum) * 1000 / u64::from(best),
        };
        let beyond = |own: Reverse<u32>, best: Reverse<u32>| own.0.saturating_sub(best.0);
        let spread = beyond(self.numa_nodes, whole.numa_nodes) + beyond(self.nics, whole.nics);
        size * share as u32 / 100 * 100_u32.saturating_sub(spread)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn qualities() -> impl Strategy<Value = Quality> {
        let links = prop_oneof![
            Just(None),
            Just(Some(Link::Sys)),
            Just(Some(Link::Node)),
            Just(Some(Link::Phb)),
            Just(Some(Link::Pxb)),
            Just(Some(Link::Pix)),
            (0..=255_u8).prop_map(|count| Some(Link::NvLink(count))),
        ];
        let sums = prop_oneof![0..3_u32, any::<u32>()];
        let parts = (any::<bool>(), links, sums, 0..=16_u32, 0..=64_u32);
        parts.prop_map(|(one_model, worst, sum, numa_nodes, nics)| Quality {
            one_model,
            worst,
            sum,
            numa_nodes: Reverse(numa_nodes),
            nics: Reverse(nics),
        })
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        (1..=7_usize).prop_flat_map(|gpus| {
            let link = prop_oneof![Just(Link::Sys), Just(Link::Pix), (1..4_u8).prop_map(Link::NvLink)];
            let places = || proptest::collection::vec(0..2_u8, gpus);
            let nics = proptest::collection::vec(any::<u64>(), gpus);
            let pairs =
                proptest::collection::vec((link, any::<u16>().prop_map(u32::from)), gpus * (gpus - 1) / 2);
            (places(), places(), nics, pairs).prop_map(|(models, numa, nics, pairs)| Shape {
                models: firsts(&models),
                numa: firsts(&numa),
                nics,
                pairs,
            })
        })
    }

    proptest! {
        #[test]
        fn all_sets_at_once_are_as_each_by_itself(shape in shapes()) {
            let all = shape.qualities();
            prop_assert_eq!(all.len(), 1 << shape.gpus());
            for (set, quality) in (0..).zip(all) {
                prop_assert_eq!(quality, shape.quality(set), "{:#b}", set);
            }
        }

        #[test]
        fn keys_are_in_the_order_of_qualities(a in qualities(), b in qualities()) {
            prop_assert_eq!(a.key().cmp(&b.key()), a.cmp(&b));
        }
    }
}
