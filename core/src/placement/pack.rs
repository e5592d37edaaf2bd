//! Which of the hosts that fit a gang takes, by where they are in the fabric. Numbers only.
//!
//! The lowest subtree that holds the gang; in it the fewest blocks, then the fewest leaf switches, then the
//! least left over in the blocks that are touched, then on the switches, then in the subtree; then the hosts
//! that come first. This is the least sum of prices over blocks, switches and hosts, which a knapsack over them
//! finds: [`Table`] holds the least price of every number of hosts.
//!
//! Exact, as long as every block lies on one leaf switch or the blocks that do not, and share switches, are no
//! more than [`MAX_SPANNING`], and need no segments; or where the number of switches is limited, and there are not
//! too many sets of so many ([`leaves`]). Beyond that every place is found too, except that switches of two blocks
//! may be counted twice.

mod leaves;

use std::collections::BTreeMap;

use crate::model::fabric::Switch;

/// Blocks that lie over common leaf switches: every set of them is tried.
const MAX_SPANNING: usize = 6;

/// No block, or no leaf switch: a host that hangs on the root beside all others.
pub(super) const ALONE: u32 = u32::MAX;

/// A host that a gang can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// Number of its leaf switch, or [`ALONE`].
    pub leaf: u32,
    /// Number of its block, or [`ALONE`].
    pub block: u32,
    /// How many are better, by links and cost.
    pub rank: u32,
    /// It must be taken.
    pub forced: bool,
}

/// The hosts of one block on one leaf switch that a gang can take; one host where it hangs on the root alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// Its place among all cells.
    pub number: usize,
    /// Number of the leaf switch, or [`ALONE`].
    pub leaf: u32,
    /// Number of the block, or [`ALONE`]: each host is in none, or in one of its own.
    pub block: u32,
    /// How many hosts.
    pub hosts: usize,
    /// How many of them must be taken.
    pub forced: usize,
    /// How many kinds of hosts are better than each: of those that must be taken, then of the best, as many as a gang
    /// has nodes, or of all.
    pub ranks: Vec<u32>,
}

/// What is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub nodes: usize,
    /// At most so many leaf switches; none: any number.
    pub switches: Option<usize>,
    /// So many of each block at a time; 1: any number.
    pub segment: usize,
}

/// A price: a number of blocks, of leaf switches, what is left over in the blocks and on the switches, and the
/// sum of the ranks, one after the other in one number, so that prices are added and compared at once.
type Price = i128;
const RANKS: u32 = 48;
const FIELD: u32 = 20;
const LEFT_ON_LEAF: Price = 1 << RANKS;
const LEFT_IN_BLOCK: Price = 1 << (RANKS + FIELD);
const LEAF: Price = 1 << (RANKS + 2 * FIELD);
const BLOCK: Price = 1 << (RANKS + 3 * FIELD);
const NEVER: Price = Price::MAX;

/// How good a choice is; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Value {
    /// Of the lowest switch above all.
    pub level: u32,
    /// Blocks, leaf switches, what is left over.
    price: Price,
    /// Left over in the subtree.
    left: usize,
    /// Sum of ranks.
    ranks: Price,
}

impl Value {
    fn new(level: u32, price: Price, left: usize) -> Self {
        Self {
            level,
            price: price >> RANKS,
            left,
            ranks: price & (LEFT_ON_LEAF - 1),
        }
    }
}

/// Hosts that a gang can take, by the cells that they lie in.
pub(super) struct Cells<T> {
    /// Nodes of the gang.
    nodes: usize,
    /// Each with the first of its hosts, as [`Cell::ranks`] has them.
    all: Vec<(Cell, Vec<T>)>,
    /// Those on each leaf switch, with the number of their block.
    on: Vec<Vec<(u32, usize)>>,
    /// Blocks, numbered as they come: that is the same whatever the order in which nodes joined.
    blocks: BTreeMap<u32, u32>,
}

impl<T> Cells<T> {
    /// None yet, for a gang of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes,
            all: Vec::new(),
            on: Vec::new(),
            blocks: BTreeMap::new(),
        }
    }

    /// One more host; they come by rank.
    pub fn add(&mut self, spot: Spot, host: T) {
        let leaf = spot.leaf as usize;
        let known = self.on.get(leaf).and_then(|cells| {
            let known = cells.iter().find(|(block, _)| *block == spot.block);
            known.map(|(_, at)| *at)
        });
        let at = known.unwrap_or_else(|| self.open(spot));
        let (cell, first) = &mut self.all[at];
        cell.hosts += 1;
        // Those that must be taken stand first.
        let place = if spot.forced { cell.forced } else { first.len() };
        cell.forced += usize::from(spot.forced);
        if place < self.nodes {
            first.truncate(self.nodes - 1);
            cell.ranks.truncate(self.nodes - 1);
            first.insert(place, host);
            cell.ranks.insert(place, spot.rank);
        }
    }

    /// A cell of its own; each host that hangs on the root alone has one.
    fn open(&mut self, spot: Spot) -> usize {
        let at = self.all.len();
        if spot.leaf != ALONE {
            let leaf = spot.leaf as usize;
            if leaf >= self.on.len() {
                self.on.resize_with(leaf + 1, Vec::new);
            }
            self.on[leaf].push((spot.block, at));
        }
        let next = self.blocks.len() as u32;
        let block = match spot.block {
            ALONE => ALONE,
            block => *self.blocks.entry(block).or_insert(next),
        };
        let cell = Cell {
            number: at,
            leaf: spot.leaf,
            block,
            hosts: 0,
            forced: 0,
            ranks: Vec::new(),
        };
        self.all.push((cell, Vec::new()));
        at
    }

    /// The cells by leaf switch, then by block, and of each the first hosts.
    pub fn sorted(mut self) -> (Vec<Cell>, Vec<Vec<T>>) {
        let place = |cell: &Cell| {
            (
                cell.leaf,
                cell.block,
                cell.forced == 0,
                cell.ranks.first().copied(),
            )
        };
        self.all.sort_by_key(|(cell, _)| place(cell));
        for (number, (cell, _)) in self.all.iter_mut().enumerate() {
            cell.number = number;
        }
        self.all.into_iter().unzip()
    }
}

/// The best choice of hosts, as how many of which cells, the first of each; none: there is none. The cells come by leaf
/// switch, then by block.
pub(super) fn pack(switches: &[Switch], cells: &[Cell], wish: Wish) -> Option<(Value, Vec<(usize, usize)>)> {
    let forced: usize = cells.iter().map(|cell| cell.forced).sum();
    let mut subtrees: Vec<(&Switch, &[Cell])> = Vec::new();
    for (number, switch) in switches.iter().enumerate() {
        let below = if number == 0 {
            cells
        } else {
            let from = cells.partition_point(|cell| cell.leaf < number as u32);
            &cells[from..cells.partition_point(|cell| cell.leaf <= switch.last)]
        };
        if hosts_of(below) >= wish.nodes && below.iter().map(|cell| cell.forced).sum::<usize>() == forced {
            subtrees.push((switch, below));
        }
    }
    subtrees.sort_by_key(|(switch, _)| switch.level);
    for level in subtrees.chunk_by(|a, b| a.0.level == b.0.level) {
        let found = level.iter().filter_map(|(switch, cells)| {
            let (price, taken) = Subtree { cells, wish }.best()?;
            let left = hosts_of(*cells) - wish.nodes;
            Some((Value::new(switch.level, price, left), taken))
        });
        // The first of equals.
        if let Some(best) = found.min_by_key(|(value, _)| *value) {
            return Some(best);
        }
    }
    None
}

fn hosts_of<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> usize {
    cells.into_iter().map(|cell| cell.hosts).sum()
}

/// How good a choice is that was made otherwise; none: it breaks the wish.
pub(super) fn value_of(switches: &[Switch], spots: &[Spot], taken: &[usize], wish: Wish) -> Option<Value> {
    let leaves = taken.iter().map(|at| spots[*at].leaf);
    let within = |switch: &Switch, number: u32, leaf: u32| {
        number == 0 || leaf != ALONE && (number..=switch.last).contains(&leaf)
    };
    let above = (0u32..).zip(switches).filter(|(number, switch)| {
        let mut leaves = leaves.clone();
        leaves.all(|leaf| within(switch, *number, leaf))
    });
    let (number, switch) = above.min_by_key(|(_, switch)| switch.level)?;
    let inside = |spot: &&Spot| within(switch, number, spot.leaf);
    let mut count = BTreeMap::new();
    let alone = |at: usize, number: u32| if number == ALONE { Err(at) } else { Ok(number) };
    for at in taken {
        count
            .entry((true, alone(*at, spots[*at].block)))
            .or_insert((0, 0))
            .0 += 1;
        count
            .entry((false, alone(*at, spots[*at].leaf)))
            .or_insert((0, 0))
            .0 += 1;
    }
    let mut price: Price = taken.iter().map(|at| Price::from(spots[*at].rank)).sum();
    let mut left = 0;
    for (at, spot) in spots.iter().enumerate().filter(|(_, spot)| inside(spot)) {
        left += 1;
        for key in [(true, alone(at, spot.block)), (false, alone(at, spot.leaf))] {
            if let Some((_, all)) = count.get_mut(&key) {
                *all += 1;
            }
        }
    }
    let mut used = 0;
    for ((is_block, _), (got, all)) in &count {
        if *is_block && got % wish.segment != 0 {
            return None;
        }
        used += usize::from(!is_block);
        let (one, rest) = if *is_block {
            (BLOCK, LEFT_IN_BLOCK)
        } else {
            (LEAF, LEFT_ON_LEAF)
        };
        price += one + (*all as Price - *got as Price) * rest;
    }
    (wish.switches.is_none_or(|most| used <= most))
        .then(|| Value::new(switch.level, price, left - taken.len()))
}

/// The least price of every number of hosts on every number of leaf switches.
#[derive(Clone)]
struct Table {
    /// Hosts.
    columns: usize,
    best: Vec<Price>,
}

impl Table {
    /// Nothing is taken.
    fn start(rows: usize, columns: usize) -> Self {
        let mut best = vec![NEVER; rows * columns];
        best[0] = 0;
        Self { columns, best }
    }

    fn rows(&self) -> usize {
        self.best.len() / self.columns
    }

    /// Adds what another table offers; for each place of the result, which place of the other one it took.
    fn add(&mut self, other: &Self) -> Vec<u32> {
        let mut sum = vec![NEVER; self.best.len()];
        let mut took = vec![0; self.best.len()];
        let offers = other
            .best
            .iter()
            .enumerate()
            .filter(|(_, price)| **price != NEVER);
        for (offer, price) in offers {
            let (rows, hosts) = (offer / other.columns, offer % other.columns);
            for row in 0..self.rows().saturating_sub(rows) {
                let from = row * self.columns;
                let to = (row + rows) * self.columns + hosts;
                for column in 0..self.columns.saturating_sub(hosts) {
                    let had = self.best[from + column];
                    if had != NEVER && had + price < sum[to + column] {
                        sum[to + column] = had + price;
                        took[to + column] = offer as u32;
                    }
                }
            }
        }
        self.best = sum;
        took
    }
}

/// Where the hosts of an offer come from.
enum Source {
    /// The first hosts of a cell.
    Hosts(usize),
    /// So many hosts of another offer.
    Inner(Box<Offer>),
    /// Each of several, with the place of it that each place of the sum took.
    Sum(Vec<(Offer, Vec<u32>)>),
    /// One of several for each place.
    Either(Vec<Offer>, Vec<usize>),
}

/// Something to take hosts of, and what each number of them costs.
struct Offer {
    table: Table,
    source: Source,
}

impl Offer {
    /// Adds the hosts that a place of the table stands for: how many of which cell.
    fn collect(&self, place: usize, into: &mut Vec<(usize, usize)>) {
        let columns = self.table.columns;
        match &self.source {
            Source::Hosts(cell) => into.push((*cell, place % columns)),
            Source::Inner(offer) => offer.collect(place % columns, into),
            Source::Sum(parts) => {
                // Back from the last that was added.
                let (mut row, mut column) = (place / columns, place % columns);
                for (part, took) in parts.iter().rev() {
                    let inner = took[row * columns + column] as usize;
                    part.collect(inner, into);
                    row -= inner / part.table.columns;
                    column -= inner % part.table.columns;
                }
            }
            Source::Either(offers, which) => offers[which[place]].collect(place, into),
        }
    }
}

/// A subtree of which a whole gang is to be taken.
struct Subtree<'a> {
    /// By leaf switch.
    cells: &'a [Cell],
    wish: Wish,
}

impl<'a> Subtree<'a> {
    fn best(&self) -> Option<(Price, Vec<(usize, usize)>)> {
        let leaves = self.leaves();
        let spanning = spanning(&leaves);
        let units = units(&leaves, &spanning);
        let offers = units.iter().map(|unit| self.unit(unit, &spanning, units.len()));
        let all = sum(self.rows(), self.wish.nodes + 1, offers);
        // Of equal prices the fewest switches: they are in the price.
        let places = (0..self.rows()).map(|row| row * all.table.columns + self.wish.nodes);
        let place = places.min_by_key(|place| all.table.best[*place])?;
        let price = all.table.best[place];
        if price == NEVER {
            return None;
        }
        let mut taken = Vec::new();
        all.collect(place, &mut taken);
        taken.retain(|(_, count)| *count > 0);
        Some((price, taken))
    }

    /// Rows of tables that count leaf switches.
    fn rows(&self) -> usize {
        self.wish.switches.map_or(1, |most| most + 1)
    }

    fn columns(&self, hosts: usize) -> usize {
        hosts.min(self.wish.nodes) + 1
    }

    /// The cells of each leaf switch. Each host that hangs on the root alone is on a switch of its own.
    fn leaves(&self) -> Vec<&'a [Cell]> {
        let same = |a: &Cell, b: &Cell| a.leaf == b.leaf && a.leaf != ALONE;
        self.cells.chunk_by(same).collect()
    }

    /// The hosts of one cell, at a price for the first and for each.
    fn hosts(&self, cell: &Cell, first: Price, each: Price, segment: usize) -> Offer {
        let columns = self.columns(cell.hosts);
        let mut best = vec![NEVER; columns];
        let mut price = 0;
        for (count, place) in best.iter_mut().enumerate() {
            if count > 0 {
                price += each + Price::from(cell.ranks[count - 1]);
            }
            if count >= cell.forced && count % segment == 0 {
                *place = if count > 0 { first + price } else { 0 };
            }
        }
        Offer {
            table: Table { columns, best },
            source: Source::Hosts(cell.number),
        }
    }

    /// A cell whose block is paid for with its first host.
    fn block(&self, cell: &Cell) -> Offer {
        match (cell.block, self.wish.segment) {
            // Each is a block of its own, which holds no segment of several.
            (ALONE, 1) => self.hosts(cell, 0, BLOCK, 1),
            (ALONE, _) => self.hosts(cell, 0, BLOCK, usize::MAX),
            (_, segment) => {
                let all = cell.hosts as Price;
                self.hosts(cell, BLOCK + all * LEFT_IN_BLOCK, -LEFT_IN_BLOCK, segment)
            }
        }
    }

    /// Cells of one leaf switch, at the price of the switch besides.
    fn leaf(&self, hosts: usize, cells: impl Iterator<Item = Offer>) -> Offer {
        let columns = self.columns(hosts);
        let inner = sum(1, columns, cells);
        let rows = self.rows();
        let mut table = Table::start(rows, columns);
        table.best[0] = inner.table.best[0];
        // The last row of one, the second of several.
        let row = usize::from(rows > 1) * columns;
        for count in 1..columns {
            let price = inner.table.best[count];
            let place = row + count;
            if price != NEVER && place < table.best.len() {
                table.best[place] = price + LEAF + (hosts - count) as Price * LEFT_ON_LEAF;
            }
        }
        Offer {
            table,
            source: Source::Inner(Box::new(inner)),
        }
    }

    /// Leaf switches that share blocks with each other and with no others; one of so many such units.
    fn unit(&self, leaves: &[&[Cell]], spanning: &BTreeMap<u32, usize>, units: usize) -> Offer {
        let cells = || leaves.iter().flat_map(|leaf| leaf.iter());
        let mut shared: Vec<u32> = cells()
            .map(|cell| cell.block)
            .filter(|block| spanning.contains_key(block))
            .collect();
        shared.sort_unstable();
        shared.dedup();
        if shared.is_empty() {
            // One leaf switch.
            return self.leaf(hosts_of(cells()), cells().map(|cell| self.block(cell)));
        }
        let one_block = cells().all(|cell| cell.block == shared[0]);
        if shared.len() > MAX_SPANNING || self.wish.segment > 1 && !one_block {
            let exact = self.by_leaves(leaves, units);
            return exact.unwrap_or_else(|| self.one_by_one(leaves, &shared));
        }
        let columns = self.columns(hosts_of(cells()));
        let sets = (0u32..1 << shared.len()).map(|set| {
            // Blocks of the set are paid for, whether or not they are used; others are not there.
            let paid = |block: u32| {
                shared
                    .iter()
                    .position(|one| *one == block)
                    .map(|at| set >> at & 1 == 1)
            };
            let offer = |cell: &Cell| match paid(cell.block) {
                None => self.block(cell),
                Some(true) => self.hosts(cell, 0, -LEFT_IN_BLOCK, 1),
                Some(false) => self.hosts(cell, 0, 0, usize::MAX),
            };
            let leaves = leaves
                .iter()
                .map(|leaf| self.leaf(hosts_of(*leaf), leaf.iter().map(offer)));
            let mut all = sum(self.rows(), columns, leaves);
            let paid = cells().filter(|cell| paid(cell.block) == Some(true));
            let price = paid
                .map(|cell| cell.hosts as Price * LEFT_IN_BLOCK)
                .sum::<Price>()
                + Price::from(set.count_ones()) * BLOCK;
            for (place, best) in all
                .table
                .best
                .iter_mut()
                .enumerate()
                .filter(|(_, best)| **best != NEVER)
            {
                let whole = (place % columns).is_multiple_of(self.wish.segment);
                *best = if whole { *best + price } else { NEVER };
            }
            all
        });
        either(sets.collect())
    }

    /// The same, each block by itself: what several have in common is paid for by each.
    fn one_by_one(&self, leaves: &[&[Cell]], shared: &[u32]) -> Offer {
        let (rows, segment) = (self.rows(), self.wish.segment);
        let cells = || leaves.iter().flat_map(|leaf| leaf.iter());
        let own = cells().filter(|cell| !shared.contains(&cell.block));
        let own = own.map(|cell| self.leaf(cell.hosts, std::iter::once(self.block(cell))));
        let blocks = shared.iter().map(|block| {
            let mut own: Vec<&Cell> = cells().filter(|cell| cell.block == *block).collect();
            // The fewest switches: the largest first.
            own.sort_by_key(|cell| (cell.forced == 0, std::cmp::Reverse(cell.hosts)));
            let all = hosts_of(own.iter().copied());
            let on_leaf = |cell: &&Cell| {
                let hosts = self.hosts(cell, 0, -LEFT_IN_BLOCK, 1);
                self.leaf(cell.hosts, std::iter::once(hosts))
            };
            let mut sum = sum(rows, self.columns(all), own.iter().map(on_leaf));
            let columns = sum.table.columns;
            for (place, best) in sum
                .table
                .best
                .iter_mut()
                .enumerate()
                .filter(|(_, best)| **best != NEVER)
            {
                let count = place % columns;
                if !count.is_multiple_of(segment) {
                    *best = NEVER;
                } else if count > 0 {
                    *best += BLOCK + all as Price * LEFT_IN_BLOCK;
                }
            }
            sum
        });
        sum(rows, self.columns(hosts_of(cells())), own.chain(blocks))
    }
}

/// Several offers as one.
fn sum(rows: usize, columns: usize, parts: impl Iterator<Item = Offer>) -> Offer {
    let mut table = Table::start(rows, columns);
    let parts = parts.map(|part| {
        let took = table.add(&part.table);
        (part, took)
    });
    let parts = parts.collect();
    Offer {
        table,
        source: Source::Sum(parts),
    }
}

/// For each place the offer with the least price; the first of equals.
fn either(offers: Vec<Offer>) -> Offer {
    let mut table = offers[0].table.clone();
    let mut which = vec![0; table.best.len()];
    for (number, offer) in offers.iter().enumerate().skip(1) {
        for (place, price) in offer.table.best.iter().enumerate() {
            if *price < table.best[place] {
                table.best[place] = *price;
                which[place] = number;
            }
        }
    }
    Offer {
        table,
        source: Source::Either(offers, which),
    }
}

/// Blocks that lie on several of the leaf switches, and the first of these.
fn spanning(leaves: &[&[Cell]]) -> BTreeMap<u32, usize> {
    let mut first = BTreeMap::new();
    let mut spanning = BTreeMap::new();
    for (at, leaf) in leaves.iter().enumerate() {
        for cell in leaf.iter().filter(|cell| cell.block != ALONE) {
            let first = *first.entry(cell.block).or_insert(at);
            if first != at {
                spanning.insert(cell.block, first);
            }
        }
    }
    spanning
}

/// Leaf switches, those together that share blocks.
fn units<'a>(leaves: &[&'a [Cell]], spanning: &BTreeMap<u32, usize>) -> Vec<Vec<&'a [Cell]>> {
    // The first switch of each unit, so far as it is known: union by the smaller.
    let mut unit: Vec<usize> = (0..leaves.len()).collect();
    fn root(unit: &[usize], mut at: usize) -> usize {
        while unit[at] != at {
            at = unit[at];
        }
        at
    }
    for (at, leaf) in leaves.iter().enumerate() {
        for first in leaf.iter().filter_map(|cell| spanning.get(&cell.block)) {
            let (a, b) = (root(&unit, *first), root(&unit, at));
            unit[a.max(b)] = a.min(b);
        }
    }
    let mut units: BTreeMap<usize, Vec<&[Cell]>> = BTreeMap::new();
    for (at, leaf) in leaves.iter().enumerate() {
        units.entry(root(&unit, at)).or_default().push(leaf);
    }
    units.into_values().collect()
}

#[cfg(test)]
mod tests;
