//! The fabric between simulated hosts: any tree of switches, and blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrel_core::model::fabric::{BlockText, Fabric, FabricText, SwitchText};

use super::rng::Rng;

/// Most switches, and most blocks, of a fabric.
const MOST: u64 = 5;

/// A fabric, as the world knows it and as the broker is told of it.
#[derive(Clone, Debug, Default)]
pub struct Wires {
    /// What the broker is told.
    pub fabric: Arc<Fabric>,
    /// There are switches.
    pub tree: bool,
    /// Number of the switch that a node is plugged into.
    pub leaf: BTreeMap<String, usize>,
    /// Number of the described block that a node is in.
    pub block: BTreeMap<String, usize>,
}

impl Wires {
    /// One by chance over hosts of these names, of which some may hang on nothing; names of unknown nodes are
    /// in it as well.
    pub fn random<'a>(rng: &mut Rng, names: impl Iterator<Item = &'a str>) -> Self {
        let some = |rng: &mut Rng| {
            if rng.one_in(3) {
                0
            } else {
                1 + rng.below(MOST) as usize
            }
        };
        let (switches, blocks) = (some(rng), some(rng).min(3));
        let mut wires = Self {
            tree: switches > 0,
            ..Self::default()
        };
        for name in names {
            if switches > 0 && !rng.one_in(6) {
                wires
                    .leaf
                    .insert(name.to_owned(), rng.below(switches as u64) as usize);
            }
            if blocks > 0 && !rng.one_in(4) {
                wires
                    .block
                    .insert(name.to_owned(), rng.below(blocks as u64) as usize);
            }
        }
        // Each switch hangs on one before it, or on none.
        let above: Vec<Option<usize>> = (0..switches)
            .map(|at| (at > 0 && !rng.one_in(4)).then(|| rng.below(at.max(1) as u64) as usize))
            .collect();
        let switch = |at: usize| {
            let below = (0..switches).filter(|other| above[*other] == Some(at));
            let below: Vec<String> = below.map(|other| format!("s{other}")).collect();
            SwitchText {
                name: format!("s{at}"),
                nodes: members(&wires.leaf, at, "unplugged", below.is_empty()),
                switches: below.join(","),
            }
        };
        let block = |at: usize| BlockText {
            name: format!("b{at}"),
            nodes: members(&wires.block, at, "unracked", true),
        };
        let text = FabricText {
            switch: (0..switches).map(switch).collect(),
            block: (0..blocks).map(block).collect(),
        };
        if switches + blocks > 0 {
            wires.fabric = Arc::new(Fabric::try_from(text).expect("a fabric"));
        }
        wires
    }
}

/// The nodes of a switch or block. Where it needs one and has none, and here and there besides, one that nobody knows.
fn members(of: &BTreeMap<String, usize>, at: usize, unknown: &str, needed: bool) -> String {
    let own = of.iter().filter(|(_, other)| **other == at);
    let mut own: Vec<String> = own.map(|(name, _)| name.clone()).collect();
    if at.is_multiple_of(2) || needed && own.is_empty() {
        own.push(format!("{unknown}{at}"));
    }
    own.join(",")
}
