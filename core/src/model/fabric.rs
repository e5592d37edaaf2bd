//! The fabric: switches and NVLink domains over the nodes, as an operator describes them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::gpu::Inventory;
use super::host_list::{self, BadHostList, MAX_HOSTS};
use super::ids::NodeName;

/// Switches, or blocks, of one fabric: with a dozen ports each, more than the largest cluster has.
const MAX_ENTRIES: usize = 10_000;
/// Switches above each other; real trees have three or four.
const MAX_DEPTH: u32 = 32;

/// The description, as it is written: `[[fabric.switch]]` and `[[fabric.block]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricText {
    /// Switches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switch: Vec<SwitchText>,
    /// Blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block: Vec<BlockText>,
}

/// One switch; as a line of Slurm's topology.conf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchText {
    /// Its name.
    pub name: String,
    /// Nodes that are plugged into it: a host list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nodes: String,
    /// Switches below it: a host list of their names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub switches: String,
}

/// A block: nodes whose GPUs are joined with each other, as in an NVL72 rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockText {
    /// Its name.
    pub name: String,
    /// Its nodes: a host list.
    pub nodes: String,
}

/// What is wrong with a description, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct BadFabric {
    /// What is wrong.
    pub what: Mistake,
    /// In which entry; none: in no single one.
    pub at: Option<Entry>,
}

/// An entry of a description, by its position among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A switch.
    Switch(usize),
    /// A block.
    Block(usize),
}

impl Entry {
    /// What is wrong is wrong here.
    fn bad(self, what: impl Into<Mistake>) -> BadFabric {
        BadFabric {
            what: what.into(),
            at: Some(self),
        }
    }
}

impl From<Mistake> for BadFabric {
    fn from(what: Mistake) -> Self {
        Self { what, at: None }
    }
}

/// What can be wrong with a description.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Mistake {
    /// A list or a name in it.
    #[error("fabric: {0}")]
    List(#[from] BadHostList),
    /// It describes nothing.
    #[error(
        "fabric: neither a switch nor a block is described; leave [fabric] out, or add [[fabric.switch]]"
    )]
    Empty,
    /// More than anybody has.
    #[error("fabric: over {MAX_ENTRIES} {0}")]
    TooMany(&'static str),
    /// Two of one name.
    #[error("fabric: {what} {name} is described twice")]
    Twice {
        /// "switch" or "block".
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Nothing hangs below it.
    #[error("fabric: {what} {name} has nothing below it: give it nodes")]
    Bare {
        /// "switch" or "block".
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A switch is named that is not described.
    #[error(
        "fabric: switch {above} has {name} below it, which is not described: add a [[fabric.switch]] of that name"
    )]
    UnknownSwitch {
        /// The switch that names it.
        above: String,
        /// What it names.
        name: String,
    },
    /// Something hangs in two places.
    #[error("fabric: {what} {name} is in {first} and in {second}; it can be in one only")]
    TwoPlaces {
        /// "node" or "switch".
        what: &'static str,
        /// Its name.
        name: String,
        /// One place.
        first: String,
        /// The other.
        second: String,
    },
    /// A list names something twice.
    #[error("fabric: {above} names {name} twice")]
    NamedTwice {
        /// The switch or block whose list it is.
        above: String,
        /// What it names.
        name: String,
    },
    /// A switch is below itself.
    #[error("fabric: switch {name} is below itself")]
    Cycle {
        /// Its name.
        name: String,
    },
    /// Too many switches above each other.
    #[error("fabric: over {MAX_DEPTH} switches above each other, at switch {name}")]
    TooDeep {
        /// The lowest.
        name: String,
    },
}

/// A switch of the tree, or the tree's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Its name; of the root, empty.
    pub name: String,
    /// The switch that it hangs on; of the root, itself.
    pub parent: u32,
    /// The last switch below it, or itself: switches are numbered so that those below one follow it.
    pub last: u32,
    /// Switches on the longest way down from it.
    pub level: u32,
}

/// A tree of switches, and blocks, over nodes. The default is flat: nothing is told of the nodes.
///
/// Number 0 is the root, which no entry describes: what hangs on no switch hangs on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "FabricText", into = "FabricText")]
pub struct Fabric {
    text: FabricText,
    switches: Vec<Switch>,
    leaf_of: BTreeMap<NodeName, u32>,
    block_of: BTreeMap<NodeName, u32>,
}

impl Default for Fabric {
    fn default() -> Self {
        Self {
            text: FabricText::default(),
            switches: vec![Switch {
                name: String::new(),
                parent: 0,
                last: 0,
                level: 0,
            }],
            leaf_of: BTreeMap::new(),
            block_of: BTreeMap::new(),
        }
    }
}

impl From<Fabric> for FabricText {
    fn from(fabric: Fabric) -> Self {
        fabric.text
    }
}

impl TryFrom<FabricText> for Fabric {
    type Error = BadFabric;

    fn try_from(text: FabricText) -> Result<Self, BadFabric> {
        if text.switch.is_empty() && text.block.is_empty() {
            return Err(Mistake::Empty.into());
        }
        let block_of = blocks(&text.block)?;
        let tree = Tree::of(&text.switch)?;
        let mut fabric = Self {
            block_of,
            ..Self::default()
        };
        let mut numbers = vec![0; text.switch.len()];
        for (at, parent) in tree.parents.iter().enumerate() {
            if parent.is_none() {
                fabric.grow(&text.switch, &tree, at, 0, &mut numbers)?;
            }
        }
        // Whoever was not reached from a root goes round in a circle.
        if let Some(at) = numbers.iter().position(|number| *number == 0) {
            let name = text.switch[at].name.clone();
            return Err(Entry::Switch(at).bad(Mistake::Cycle { name }));
        }
        let leaves = tree.leaf_of.into_iter();
        fabric.leaf_of = leaves.map(|(node, at)| (node, numbers[at])).collect();
        fabric.switches[0].level = fabric.levels_below(0);
        fabric.switches[0].last = fabric.switches.len() as u32 - 1;
        fabric.text = text;
        Ok(fabric)
    }
}

impl Fabric {
    /// Adds a switch and what is below it. The depth of the calls is bounded by [`MAX_DEPTH`].
    fn grow(
        &mut self,
        entries: &[SwitchText],
        tree: &Tree,
        at: usize,
        parent: u32,
        numbers: &mut [u32],
    ) -> Result<(), BadFabric> {
        let number = self.switches.len() as u32;
        numbers[at] = number;
        let name = entries[at].name.clone();
        self.switches.push(Switch {
            name,
            parent,
            last: number,
            level: 0,
        });
        if self.ancestors(number).count() > MAX_DEPTH as usize {
            let name = entries[at].name.clone();
            return Err(Entry::Switch(at).bad(Mistake::TooDeep { name }));
        }
        for below in &tree.below[at] {
            self.grow(entries, tree, *below, number, numbers)?;
        }
        self.switches[number as usize].last = self.switches.len() as u32 - 1;
        self.switches[number as usize].level = self.levels_below(number);
        Ok(())
    }

    fn levels_below(&self, number: u32) -> u32 {
        let below = self.switches.iter().skip(number as usize + 1);
        let children = below.filter(|switch| switch.parent == number);
        children.map(|switch| switch.level + 1).max().unwrap_or(0)
    }

    /// The switches, the root first.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// The switches above all of some nodes, the lowest first, without the root; none: there are no such nodes.
    pub fn switches_above(&self, nodes: &BTreeSet<NodeName>) -> Vec<u32> {
        let mut above = Vec::new();
        let mut at = nodes.first().and_then(|first| self.leaf_of(first)).unwrap_or(0);
        while let Some(switch) = self.switches.get(at as usize).filter(|_| at > 0) {
            if nodes.iter().all(|node| self.is_below(node, at)) {
                above.push(at);
            }
            at = switch.parent;
        }
        above
    }

    /// Whether a node hangs on a switch, or on one below it.
    pub fn is_below(&self, node: &NodeName, switch: u32) -> bool {
        let last = self.switches.get(switch as usize).map(|switch| switch.last);
        let leaf = self.leaf_of(node);
        switch == 0
            || leaf
                .zip(last)
                .is_some_and(|(leaf, last)| (switch..=last).contains(&leaf))
    }

    /// A tree is described: what hangs on the root alone is not on one switch.
    pub fn has_switches(&self) -> bool {
        self.switches.len() > 1
    }

    /// The switch that a node is plugged into; none: it is not named.
    pub fn leaf_of(&self, node: &NodeName) -> Option<u32> {
        self.leaf_of.get(node).copied()
    }

    /// The block that a node is in: as it is described, or else the NVLink domain that its driver tells of.
    pub fn block_of<'a>(&'a self, node: &NodeName, inventory: &'a Inventory) -> Option<&'a str> {
        let described = self
            .block_of
            .get(node)
            .and_then(|block| self.text.block.get(*block as usize));
        let told = Some(inventory.nvlink_domain.as_str()).filter(|domain| !domain.is_empty());
        described.map(|block| block.name.as_str()).or(told)
    }

    /// A switch and those above it, the root left out.
    pub fn ancestors(&self, switch: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(switch), |at| Some(self.switches.get(*at as usize)?.parent))
            .take_while(|at| *at != 0)
    }

    /// "leaf1 < spine"; empty: the node is not named.
    pub fn path(&self, node: &NodeName) -> String {
        let names = self
            .leaf_of(node)
            .into_iter()
            .flat_map(|leaf| self.ancestors(leaf));
        let names: Vec<&str> = names.map(|at| self.switches[at as usize].name.as_str()).collect();
        names.join(" < ")
    }

    /// All nodes that are named.
    pub fn nodes(&self) -> BTreeSet<&NodeName> {
        self.leaf_of.keys().chain(self.block_of.keys()).collect()
    }
}

/// Who hangs on whom, by position among the entries.
struct Tree {
    parents: Vec<Option<usize>>,
    below: Vec<Vec<usize>>,
    leaf_of: BTreeMap<NodeName, usize>,
}

impl Tree {
    fn of(entries: &[SwitchText]) -> Result<Self, BadFabric> {
        let names = by_name(
            "switch",
            Entry::Switch,
            entries.iter().map(|entry| entry.name.as_str()),
        )?;
        let mut tree = Self {
            parents: vec![None; entries.len()],
            below: vec![Vec::new(); entries.len()],
            leaf_of: BTreeMap::new(),
        };
        let two_places = |what, name: String, first: usize, second: usize| {
            Entry::Switch(second).bad(Mistake::TwoPlaces {
                what,
                name,
                first: entries[first].name.clone(),
                second: entries[second].name.clone(),
            })
        };
        for (at, entry) in entries.iter().enumerate() {
            let here = Entry::Switch(at);
            let mut below = list(here, &entry.name, &entry.switches)?
                .into_iter()
                .collect::<Vec<_>>();
            below.sort_by(|a, b| host_list::natural(a.as_str(), b.as_str()));
            let nodes = list(here, &entry.name, &entry.nodes)?;
            if below.is_empty() && nodes.is_empty() {
                let name = entry.name.clone();
                return Err(here.bad(Mistake::Bare { what: "switch", name }));
            }
            for name in below {
                let Some(child) = names.get(name.as_str()).copied() else {
                    let (above, name) = (entry.name.clone(), name.into());
                    return Err(here.bad(Mistake::UnknownSwitch { above, name }));
                };
                if let Some(other) = tree.parents[child].replace(at) {
                    return Err(two_places("switch", name.into(), other, at));
                }
                tree.below[at].push(child);
            }
            for node in nodes {
                if let Some(other) = tree.leaf_of.insert(node.clone(), at) {
                    return Err(two_places("node", node.into(), other, at));
                }
            }
            if tree.leaf_of.len() > MAX_HOSTS {
                return Err(Mistake::TooMany("nodes").into());
            }
        }
        Ok(tree)
    }
}

fn blocks(entries: &[BlockText]) -> Result<BTreeMap<NodeName, u32>, BadFabric> {
    by_name(
        "block",
        Entry::Block,
        entries.iter().map(|entry| entry.name.as_str()),
    )?;
    let mut block_of = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let here = Entry::Block(at);
        let nodes = list(here, &entry.name, &entry.nodes)?;
        if nodes.is_empty() {
            let name = entry.name.clone();
            return Err(here.bad(Mistake::Bare { what: "block", name }));
        }
        for node in nodes {
            if let Some(other) = block_of.insert(node.clone(), at as u32) {
                return Err(here.bad(Mistake::TwoPlaces {
                    what: "node",
                    name: node.into(),
                    first: entries[other as usize].name.clone(),
                    second: entry.name.clone(),
                }));
            }
        }
        if block_of.len() > MAX_HOSTS {
            return Err(Mistake::TooMany("nodes").into());
        }
    }
    Ok(block_of)
}

/// What an entry's list names, each once.
fn list(entry: Entry, above: &str, text: &str) -> Result<BTreeSet<NodeName>, BadFabric> {
    let names = host_list::parse(text).map_err(|bad| entry.bad(bad))?;
    let written = host_list::expanded(text).map_err(|bad| entry.bad(bad))?;
    if written.len() > names.len() {
        let mut seen = BTreeSet::new();
        if let Some(name) = written.into_iter().find(|name| !seen.insert(name.clone())) {
            let above = above.to_owned();
            return Err(entry.bad(Mistake::NamedTwice { above, name }));
        }
    }
    Ok(names)
}

/// Entries by name; the names are as nodes'.
fn by_name<'a>(
    what: &'static str,
    entry: fn(usize) -> Entry,
    names: impl ExactSizeIterator<Item = &'a str>,
) -> Result<BTreeMap<&'a str, usize>, BadFabric> {
    if names.len() > MAX_ENTRIES {
        let what = if what == "switch" { "switches" } else { "blocks" };
        return Err(Mistake::TooMany(what).into());
    }
    let mut all = BTreeMap::new();
    for (at, name) in names.enumerate() {
        if let Err(bad) = name.parse::<NodeName>() {
            let why = format!(
                "a {what}'s name is to be as a host's, which {:?} is not",
                bad.text
            );
            return Err(entry(at).bad(BadHostList { text: bad.text, why }));
        }
        if all.insert(name, at).is_some() {
            let name = name.to_owned();
            return Err(entry(at).bad(Mistake::Twice { what, name }));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(name: &str, nodes: &str, switches: &str) -> SwitchText {
        SwitchText {
            name: name.into(),
            nodes: nodes.into(),
            switches: switches.into(),
        }
    }

    fn block(name: &str, nodes: &str) -> BlockText {
        BlockText {
            name: name.into(),
            nodes: nodes.into(),
        }
    }

    fn fabric(switch: Vec<SwitchText>, block: Vec<BlockText>) -> Result<Fabric, BadFabric> {
        FabricText { switch, block }.try_into()
    }

    fn node(name: &str) -> NodeName {
        name.parse().expect("a name")
    }

    #[test]
    fn a_tree_of_two_levels_with_blocks() {
        let fabric = fabric(
            vec![
                switch("spine", "login", "leaf[1-2]"),
                switch("leaf1", "n[1-2]", ""),
                switch("leaf2", "n[3-4]", ""),
            ],
            vec![block("nvl1", "n[2-3]")],
        )
        .expect("a fabric");
        assert_eq!(fabric.path(&node("n1")), "leaf1 < spine");
        assert_eq!(fabric.path(&node("login")), "spine");
        assert_eq!(fabric.path(&node("n9")), "");
        let (alone, domain) = (Inventory::default(), "cluster.7".to_owned());
        let told = Inventory {
            nvlink_domain: domain.clone(),
            ..Inventory::default()
        };
        assert_eq!(fabric.block_of(&node("n3"), &told), Some("nvl1"));
        assert_eq!(fabric.block_of(&node("n1"), &told), Some(domain.as_str()));
        assert_eq!(fabric.block_of(&node("n1"), &alone), None);
        let levels: Vec<u32> = fabric.switches().iter().map(|switch| switch.level).collect();
        assert_eq!(levels, [2, 1, 0, 0]);
        assert_eq!((fabric.switches()[0].last, fabric.switches()[1].last), (3, 3));
        assert_eq!(Fabric::try_from(FabricText::from(fabric.clone())), Ok(fabric));
    }

    #[test]
    fn mistakes_are_named() {
        for (switches, blocks, why) in [
            (vec![], vec![], "neither a switch nor a block"),
            (vec![switch("s", "", "")], vec![], "switch s has nothing below it"),
            (
                vec![switch("s", "", "leaf")],
                vec![],
                "leaf below it, which is not described",
            ),
            (
                vec![switch("a", "n[1-2]", ""), switch("b", "n[2-3]", "")],
                vec![],
                "node n2 is in a and in b",
            ),
            (
                vec![switch("a", "n1", ""), switch("b", "", "a"), switch("c", "", "a")],
                vec![],
                "switch a is in b and in c",
            ),
            (
                vec![switch("a", "n1", "b"), switch("b", "", "a")],
                vec![],
                "below itself",
            ),
            (vec![switch("a", "n1", "a")], vec![], "below itself"),
            (
                vec![switch("a", "n1", ""), switch("a", "n2", "")],
                vec![],
                "switch a is described twice",
            ),
            (vec![], vec![block("b", "")], "block b has nothing"),
            (vec![], vec![block("b", "n[1-")], "no ']'"),
            (vec![], vec![block("", "n1")], "name"),
            (
                vec![],
                vec![block("b", "n1"), block("c", "n1")],
                "n1 is in b and in c",
            ),
            (vec![], vec![block("b", "n[1-1000000000]")], "65536"),
            (vec![switch("a", "n1,n1", "")], vec![], "a names n1 twice"),
            (vec![], vec![block("b", "n[1-3],n2")], "b names n2 twice"),
        ] {
            let error = fabric(switches, blocks).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
        let chain = (0..100).map(|n| switch(&format!("s{n}"), &format!("n{n}"), &format!("s{}", n + 1)));
        let mut chain: Vec<SwitchText> = chain.collect();
        chain.push(switch("s100", "n100", ""));
        let error = fabric(chain, vec![]).expect_err("too deep").to_string();
        assert!(error.contains("above each other"), "{error}");
        let many = (0..=MAX_ENTRIES).map(|n| switch(&format!("s{n}"), &format!("n{n}"), ""));
        assert!(matches!(
            fabric(many.collect(), vec![]),
            Err(BadFabric {
                what: Mistake::TooMany("switches"),
                at: None
            })
        ));
    }

    /// Whoever reads the description can show where it is wrong.
    #[test]
    fn mistakes_have_a_place() {
        let good = || switch("good", "n9", "");
        for (switches, blocks, at) in [
            (vec![good(), switch("s", "", "")], vec![], Entry::Switch(1)),
            (vec![good(), good()], vec![], Entry::Switch(1)),
            (
                vec![good(), switch("a", "", "good"), switch("b", "", "good")],
                vec![],
                Entry::Switch(2),
            ),
            (vec![good(), switch("a", "n1", "a")], vec![], Entry::Switch(1)),
            (
                vec![good()],
                vec![block("b", "n1"), block("c", "n1")],
                Entry::Block(1),
            ),
        ] {
            let bad = fabric(switches, blocks).expect_err("a mistake");
            assert_eq!(bad.at, Some(at), "{bad}");
        }
    }
}
