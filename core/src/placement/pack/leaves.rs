//! Blocks that lie over common leaf switches and are taken by segments: every set of so many leaf switches is tried.
//!
//! Once it is said which leaf switches are used, blocks depend on each other no more: of each the hosts on those
//! switches are what there is, and some whole number of segments of them is taken.

use std::collections::BTreeMap;

use super::{
    ALONE, BLOCK, Cell, LEAF, LEFT_IN_BLOCK, LEFT_ON_LEAF, NEVER, Offer, Price, Source, Subtree, Table,
};
use super::{either, hosts_of, sum};

/// Sets of leaf switches that are tried in all, some fifty milliseconds: where all of them share blocks, all pairs of 64,
/// or all sets of three of 25.
const MAX_SETS: usize = 2_048;

/// All sets of at most so many of these numbers, the smallest first; none: they are more than `enough`.
fn sets(of: usize, most: usize, enough: usize) -> Option<Vec<Vec<usize>>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..most.min(of) {
        let last = all.len();
        for at in from..last {
            let next = all[at].last().map_or(0, |last| last + 1);
            for leaf in next..of {
                if all.len() == enough {
                    return None;
                }
                all.push(all[at].iter().copied().chain([leaf]).collect());
            }
        }
        from = last;
    }
    Some(all)
}

impl Subtree<'_> {
    /// Exactly what can be had of leaf switches that share blocks, where their number is limited; none: it is not, or
    /// there are too many to try; of so many such units this is one.
    pub(super) fn by_leaves(&self, leaves: &[&[Cell]], units: usize) -> Option<Offer> {
        let sets = sets(leaves.len(), self.wish.switches?, MAX_SETS / units.max(1))?;
        let offers = sets.iter().map(|set| self.of_leaves(leaves, set));
        Some(either(offers.collect()))
    }

    /// What can be had where just these leaf switches are paid for.
    fn of_leaves(&self, leaves: &[&[Cell]], set: &[usize]) -> Offer {
        let columns = self.columns(hosts_of(leaves.iter().flat_map(|leaf| leaf.iter())));
        let mut blocks: BTreeMap<u32, Vec<&Cell>> = BTreeMap::new();
        let mut parts = Vec::new();
        let (mut hosts, mut left_out) = (0, false);
        for (at, leaf) in leaves.iter().enumerate() {
            if !set.contains(&at) {
                left_out |= leaf.iter().any(|cell| cell.forced > 0);
                continue;
            }
            for cell in *leaf {
                hosts += cell.hosts;
                if cell.block == ALONE {
                    parts.push(self.block(cell));
                } else {
                    blocks.entry(cell.block).or_default().push(cell);
                }
            }
        }
        parts.extend(blocks.iter().map(|(block, cells)| {
            let on_all = leaves.iter().flat_map(|leaf| leaf.iter());
            let all = hosts_of(on_all.filter(|cell| cell.block == *block));
            self.whole_segments(cells, all)
        }));
        let inner = sum(1, columns, parts.into_iter());
        let mut table = Table::start(self.rows(), columns);
        table.best[0] = NEVER;
        let price = set.len() as Price * LEAF;
        for (count, had) in inner
            .table
            .best
            .iter()
            .enumerate()
            .filter(|(_, had)| **had != NEVER)
        {
            if !left_out && (count > 0 || set.is_empty()) {
                let left = hosts.saturating_sub(count) as Price * LEFT_ON_LEAF;
                table.best[set.len() * columns + count] = had + price + left;
            }
        }
        Offer {
            table,
            source: Source::Inner(Box::new(inner)),
        }
    }

    /// Hosts of one block, of which there are so many in all, by whole segments.
    fn whole_segments(&self, cells: &[&Cell], all: usize) -> Offer {
        let here = hosts_of(cells.iter().copied());
        let hosts = cells.iter().map(|cell| self.hosts(cell, 0, -LEFT_IN_BLOCK, 1));
        let mut sum = sum(1, self.columns(here), hosts);
        for (count, best) in sum.table.best.iter_mut().enumerate() {
            if *best != NEVER && count > 0 {
                let whole = count.is_multiple_of(self.wish.segment);
                *best = if whole {
                    *best + BLOCK + all as Price * LEFT_IN_BLOCK
                } else {
                    NEVER
                };
            }
        }
        sum
    }
}
