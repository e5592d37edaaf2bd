//! Hosts of which nothing is held, by where they are in the fabric. A job on one host takes one of them where the fewest
//! are left beside it, in its block and then on its leaf switch: so other blocks and switches stay whole for gangs.

use imbl::{OrdMap, OrdSet};

use super::groups::Member;
use super::pack::ALONE;

/// Number of a leaf switch, and of a block.
type Cell = (u32, u32);

/// All such hosts. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub(super) struct Vacant {
    cells: OrdMap<Cell, OrdSet<Member>>,
    /// The cells by their blocks: block, leaf switch.
    of_blocks: OrdSet<(u32, u32)>,
    /// Hosts in each block.
    blocks: OrdMap<u32, usize>,
    /// Hosts on each leaf switch.
    leaves: OrdMap<u32, usize>,
    /// The cells, those first that have the fewest hosts in their block, then on their leaf switch.
    order: OrdSet<(usize, usize, Cell)>,
}

impl Vacant {
    /// The first, in this order, of those that will do.
    pub fn tightest(&self, will_do: impl Fn(&Member) -> bool) -> Option<&Member> {
        // Blocks are numbered as their nodes came: names decide between equals.
        let mut best: Option<((usize, usize, u32), &Member)> = None;
        for (block, leaf, cell) in &self.order {
            let place = (*block, *leaf, cell.0);
            if best.is_some_and(|(of, _)| of < place) {
                break;
            }
            let first = self.cells.get(cell)?.iter().find(|member| will_do(member));
            if let Some(first) = first.filter(|first| best.is_none_or(|(_, other)| *first < other)) {
                best = Some((place, first));
            }
        }
        best.map(|(_, member)| member)
    }

    /// Hosts that lie beside those of a cell. Whoever is in no block, or on no leaf switch, is beside none.
    fn place(&self, cell: Cell) -> (usize, usize, Cell) {
        let (leaf, block) = cell;
        let count = |counts: &OrdMap<u32, usize>, number| match number {
            ALONE => 0,
            number => counts.get(&number).copied().unwrap_or_default(),
        };
        (count(&self.blocks, block), count(&self.leaves, leaf), cell)
    }

    /// Takes note of whether something of a host is held, or it is gone.
    pub fn note(&mut self, member: &Member, is_vacant: bool) {
        let own = (member.leaf, member.block);
        let known = self.cells.get(&own);
        if known.is_some_and(|members| members.contains(member)) == is_vacant {
            return;
        }
        // Cells whose place changes with it.
        let (leaf, block) = own;
        let mut cells = vec![own];
        if leaf != ALONE {
            cells.extend(self.cells.range((leaf, 0)..=(leaf, ALONE)).map(|(cell, _)| *cell));
        }
        if block != ALONE {
            let of_block = self.of_blocks.range((block, 0)..=(block, ALONE));
            cells.extend(of_block.map(|(block, leaf)| (*leaf, *block)));
        }
        for cell in &cells {
            let place = self.place(*cell);
            self.order.remove(&place);
        }
        let members = self.cells.entry(own).or_default();
        let (leaf, block) = (
            self.leaves.entry(leaf).or_default(),
            self.blocks.entry(block).or_default(),
        );
        if is_vacant {
            members.insert(member.clone());
            (*leaf, *block) = (*leaf + 1, *block + 1);
            self.of_blocks.insert((own.1, own.0));
        } else {
            members.remove(member);
            (*leaf, *block) = (*leaf - 1, *block - 1);
            if members.is_empty() {
                self.cells.remove(&own);
                self.of_blocks.remove(&(own.1, own.0));
            }
        }
        cells.retain(|cell| self.cells.contains_key(cell));
        for cell in cells {
            let place = self.place(cell);
            self.order.insert(place);
        }
    }
}
