//! Protects: on small trees the choice is as good as trying all finds, and every wish is kept.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Level, blocks, leaf switches, left in blocks, left on leaf switches.
type Worth = (usize, usize, usize, usize, usize);

/// A tree as a list of parents, for an oracle that shares no code with the solver. Vertex 0 is the root.
#[derive(Clone, Debug)]
struct Raw {
    parents: Vec<usize>,
    /// Leaf, block (0: none), rank, forced.
    hosts: Vec<(usize, u32, u32, bool)>,
    nodes: usize,
    switches: Option<usize>,
    segment: usize,
}

impl Raw {
    fn ancestors(&self, mut at: usize) -> Vec<usize> {
        let mut all = vec![at];
        while at != 0 {
            at = self.parents[at];
            all.push(at);
        }
        all
    }

    fn height(&self, of: usize) -> usize {
        let below = (1..self.parents.len()).filter(|at| self.parents[*at] == of);
        below.map(|at| self.height(at) + 1).max().unwrap_or(0)
    }

    /// Level, blocks, leaves, left in blocks, left on leaves; none: not allowed. Hosts on the root are each on a
    /// switch of their own where there is a tree.
    fn value(&self, set: &[usize]) -> Option<Worth> {
        if (0..self.hosts.len()).any(|host| self.hosts[host].3 && !set.contains(&host)) {
            return None;
        }
        let under = |vertex: usize, host: usize| self.ancestors(self.hosts[host].0).contains(&vertex);
        let common = (0..self.parents.len()).filter(|vertex| set.iter().all(|host| under(*vertex, *host)));
        let vertex = common
            .min_by_key(|vertex| self.height(*vertex))
            .expect("the root");
        let leaf = |host: usize| match self.hosts[host].0 {
            0 if self.parents.len() > 1 => 1000 + host,
            leaf => leaf,
        };
        let block = |host: usize| match self.hosts[host].1 {
            0 => 1000 + host,
            block => block as usize,
        };
        let mut in_block: BTreeMap<usize, usize> = BTreeMap::new();
        for host in set {
            *in_block.entry(block(*host)).or_default() += 1;
        }
        if in_block.values().any(|count| count % self.segment != 0) {
            return None;
        }
        let leaves: BTreeSet<usize> = set.iter().map(|host| leaf(*host)).collect();
        if self.switches.is_some_and(|most| leaves.len() > most) {
            return None;
        }
        let all: Vec<usize> = (0..self.hosts.len())
            .filter(|host| under(vertex, *host))
            .collect();
        let left_in_blocks = all
            .iter()
            .filter(|host| in_block.contains_key(&block(**host)))
            .count()
            - set.len();
        let left_on_leaves = all.iter().filter(|host| leaves.contains(&leaf(**host))).count() - set.len();
        Some((
            self.height(vertex),
            in_block.len(),
            leaves.len(),
            left_in_blocks,
            left_on_leaves,
        ))
    }

    /// The same with what is left in the subtree and the ranks, of the best set.
    fn best(&self) -> Option<(Worth, usize, u32)> {
        let sets = (0u32..1 << self.hosts.len()).filter(|set| set.count_ones() as usize == self.nodes);
        let sets = sets.map(|set| {
            (0..self.hosts.len())
                .filter(|host| set >> host & 1 == 1)
                .collect()
        });
        sets.filter_map(|set: Vec<usize>| Some((self.value(&set)?, self.left(&set), self.ranks(&set))))
            .min()
    }

    fn left(&self, set: &[usize]) -> usize {
        let under = |vertex: usize, host: usize| self.ancestors(self.hosts[host].0).contains(&vertex);
        let common = (0..self.parents.len()).filter(|vertex| set.iter().all(|host| under(*vertex, *host)));
        let vertex = common
            .min_by_key(|vertex| self.height(*vertex))
            .expect("the root");
        (0..self.hosts.len()).filter(|host| under(vertex, *host)).count() - set.len()
    }

    fn ranks(&self, set: &[usize]) -> u32 {
        set.iter().map(|host| self.hosts[*host].2).sum()
    }

    /// The tree as the solver has it: preorder.
    fn solved(&self) -> (Vec<Switch>, Vec<Spot>, Wish) {
        let mut order = vec![];
        let mut stack = vec![0];
        while let Some(at) = stack.pop() {
            order.push(at);
            stack.extend(
                (1..self.parents.len())
                    .rev()
                    .filter(|child| self.parents[*child] == at),
            );
        }
        let number = |vertex: usize| order.iter().position(|one| *one == vertex).expect("a vertex") as u32;
        let switch = |vertex: &usize| Switch {
            name: String::new(),
            parent: number(self.parents[*vertex]),
            last: (0..self.parents.len())
                .filter(|other| self.ancestors(*other).contains(vertex))
                .map(number)
                .max()
                .expect("itself"),
            level: self.height(*vertex) as u32,
        };
        let spot = |(leaf, block, rank, forced): &(usize, u32, u32, bool)| Spot {
            leaf: if *leaf == 0 && self.parents.len() > 1 {
                ALONE
            } else {
                number(*leaf)
            },
            block: if *block == 0 { ALONE } else { *block },
            rank: *rank,
            forced: *forced,
        };
        let wish = Wish {
            nodes: self.nodes,
            switches: self.switches,
            segment: self.segment,
        };
        (
            order.iter().map(switch).collect(),
            self.hosts.iter().map(spot).collect(),
            wish,
        )
    }
}

fn raw(laminar: bool) -> impl Strategy<Value = Raw> {
    let parents = proptest::collection::vec(any::<proptest::sample::Index>(), 0..6);
    let hosts = proptest::collection::vec(
        (any::<proptest::sample::Index>(), 0u32..4, 0u32..4, 0u32..12),
        1..=9,
    );
    let wish = (1usize..=6, proptest::option::of(1usize..4), 0usize..5);
    (parents, hosts, wish).prop_map(move |(parents, hosts, (nodes, switches, segment))| {
        let parents: Vec<usize> = std::iter::once(0)
            .chain(
                parents
                    .iter()
                    .enumerate()
                    .map(|(at, parent)| parent.index(at + 1)),
            )
            .collect();
        let host = |(leaf, block, rank, forced): (proptest::sample::Index, u32, u32, u32)| {
            let leaf = leaf.index(parents.len());
            // Blocks within a leaf switch, or anywhere.
            let block = if laminar && block > 0 {
                block + 10 * leaf as u32
            } else {
                block
            };
            (leaf, block, rank, forced == 0)
        };
        let mut hosts: Vec<_> = hosts.into_iter().map(host).collect();
        if laminar {
            // A host on the root alone is on a switch of its own: so is its block.
            let alone = parents.len() > 1;
            for host in hosts.iter_mut().filter(|host| alone && host.0 == 0) {
                host.1 = 0;
            }
        }
        let segment = if nodes % segment.max(1) == 0 {
            segment.max(1)
        } else {
            1
        };
        Raw {
            parents,
            hosts,
            nodes,
            switches,
            segment,
        }
    })
}

/// The best choice, as places in `spots`.
fn packed(switches: &[Switch], spots: &[Spot], wish: Wish) -> Option<(Value, Vec<usize>)> {
    let mut by_rank: Vec<usize> = (0..spots.len()).collect();
    by_rank.sort_by_key(|at| spots[*at].rank);
    let mut cells = Cells::new(wish.nodes);
    for at in &by_rank {
        cells.add(spots[*at], *at);
    }
    let (cells, first) = cells.sorted();
    let (value, taken) = pack(switches, &cells, wish)?;
    let hosts = taken.iter().flat_map(|(cell, count)| &first[*cell][..*count]);
    Some((value, hosts.copied().collect()))
}

fn found(raw: &Raw) -> Option<(Worth, usize, u32)> {
    let (switches, spots, wish) = raw.solved();
    let (_, mut set) = packed(&switches, &spots, wish)?;
    set.sort_unstable();
    set.dedup();
    assert_eq!(set.len(), raw.nodes, "distinct hosts");
    let told = raw.value(&set).expect("every wish is kept");
    assert_eq!(
        value_of(&switches, &spots, &set, wish).map(|value| value.level),
        Some(told.0 as u32)
    );
    Some((told, raw.left(&set), raw.ranks(&set)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn blocks_on_leaf_switches_are_packed_as_well_as_trying_all_does(raw in raw(true)) {
        prop_assert_eq!(found(&raw), raw.best());
    }

    #[test]
    fn blocks_over_leaf_switches_too(raw in raw(false)) {
        let raw = Raw { segment: 1, ..raw };
        prop_assert_eq!(found(&raw), raw.best());
    }

    /// With segments over such blocks a place is found, where the number of switches is not limited.
    #[test]
    fn segments_over_such_blocks_are_found(raw in raw(false)) {
        let raw = Raw { switches: None, ..raw };
        let best = raw.best();
        let found = found(&raw);
        prop_assert_eq!(found.map(|found| (found.0.0, found.0.1)), best.map(|best| (best.0.0, best.0.1)));
    }

    /// With segments over such blocks, on few switches: as well as trying all does.
    #[test]
    fn segments_over_such_blocks_are_packed_on_few_switches(raw in raw(false)) {
        let raw = Raw { switches: raw.switches.or(Some(2)), ..raw };
        prop_assert_eq!(found(&raw), raw.best());
    }

    /// What a choice is worth is counted in one way, however it was made.
    #[test]
    fn a_choice_has_one_value(raw in raw(true)) {
        let (switches, spots, wish) = raw.solved();
        if let Some((value, set)) = packed(&switches, &spots, wish) {
            prop_assert_eq!(value_of(&switches, &spots, &set, wish), Some(value));
        }
    }
}
