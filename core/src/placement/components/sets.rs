//! Sets of hosts that a component may be given, one after the other.

use std::collections::{BTreeMap, BTreeSet};

use super::super::hosts::Hosts;
use super::Component;
use crate::model::host_list::natural;
use crate::model::ids::NodeName;

/// Classes that are looked at while sets are put together: a few milliseconds.
const MAX_STEPS: u32 = 1 << 16;

/// Sets of hosts to try.
pub(super) enum Sets<'a> {
    /// These.
    Listed(Vec<BTreeSet<&'a NodeName>>),
    /// So many of each of these classes, whatever hosts of it.
    Alike(Vec<Vec<&'a NodeName>>),
}

/// What came of a set.
pub(super) enum Tried<T> {
    Found(T),
    InVain,
    /// No more are to be tried.
    Enough,
}

impl<'a> Sets<'a> {
    /// So many of the free hosts that follow each other in the order of all hosts' names.
    pub fn of_neighbours(hosts: &Hosts, free: &[&'a NodeName], nodes: usize) -> Self {
        let free: BTreeMap<&NodeName, &'a NodeName> = free.iter().map(|name| (*name, *name)).collect();
        let mut names: Vec<&NodeName> = hosts.names().collect();
        names.sort_by(|a, b| natural(a.as_str(), b.as_str()));
        let whole = |window: &[&NodeName]| window.iter().map(|name| free.get(name).copied()).collect();
        Self::Listed(names.windows(nodes).filter_map(whole).collect())
    }

    /// Of the free hosts that fit the same components and lie alike in the fabric, any; `apart`: each is looked at by
    /// itself, since their names matter to some component.
    pub fn of_alike(
        component: &Component<'a>,
        fits: &BTreeMap<&'a NodeName, u32>,
        free: &[&'a NodeName],
        apart: bool,
    ) -> Self {
        let free: BTreeSet<&NodeName> = free.iter().copied().collect();
        let named = &component.needs.request.constraints.nodelist;
        type Class<'n> = (u32, u32, u32, bool, Option<&'n NodeName>);
        let mut classes: BTreeMap<Class<'_>, Vec<&'a NodeName>> = BTreeMap::new();
        for candidate in &component.fitting {
            let members = candidate.alike.first(usize::MAX).into_iter();
            for member in members.filter(|member| free.contains(&member.node)) {
                let (fits, named) = (fits[&member.node], named.contains(&member.node));
                let own = apart.then_some(&member.node);
                let class = (member.leaf, member.block, fits, named, own);
                classes.entry(class).or_default().push(&member.node);
            }
        }
        Self::Alike(classes.into_values().collect())
    }

    /// Tries the sets of `nodes` hosts, those of few classes first.
    pub fn find_map<T>(
        &self,
        nodes: usize,
        mut attempt: impl FnMut(BTreeSet<&'a NodeName>) -> Tried<T>,
    ) -> Option<T> {
        let tried = match self {
            Self::Listed(sets) => first_of(sets.iter().cloned(), attempt),
            Self::Alike(classes) => {
                let mut mixing = Mixing {
                    steps: 0,
                    chosen: Vec::new(),
                    attempt: &mut attempt,
                };
                first_of(1..=nodes.min(classes.len()), |kinds| {
                    mixing.mix(classes, kinds, nodes)
                })
            }
        };
        match tried {
            Tried::Found(found) => Some(found),
            Tried::InVain | Tried::Enough => None,
        }
    }
}

/// What comes of the first that is not in vain.
fn first_of<I, T>(of: impl Iterator<Item = I>, mut attempt: impl FnMut(I) -> Tried<T>) -> Tried<T> {
    for one in of {
        match attempt(one) {
            Tried::InVain => {}
            tried @ (Tried::Found(_) | Tried::Enough) => return tried,
        }
    }
    Tried::InVain
}

/// Sets of hosts of several classes, as they are put together.
struct Mixing<'a, 'f, F> {
    steps: u32,
    chosen: Vec<&'a NodeName>,
    attempt: &'f mut F,
}

impl<'a, F> Mixing<'a, '_, F> {
    /// Adds `nodes` hosts of exactly `kinds` of the classes to those that are chosen, in every way.
    fn mix<T>(&mut self, classes: &[Vec<&'a NodeName>], kinds: usize, nodes: usize) -> Tried<T>
    where
        F: FnMut(BTreeSet<&'a NodeName>) -> Tried<T>,
    {
        if kinds == 0 {
            return (self.attempt)(self.chosen.iter().copied().collect());
        }
        for (at, class) in classes.iter().enumerate() {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Tried::Enough;
            }
            // Each of the other kinds has one at least; the last has all that is left.
            let fewest = if kinds == 1 { nodes } else { 1 };
            for count in fewest..=class.len().min((nodes + 1).saturating_sub(kinds)) {
                let before = self.chosen.len();
                self.chosen.extend(&class[..count]);
                let tried = self.mix(&classes[at + 1..], kinds - 1, nodes - count);
                self.chosen.truncate(before);
                if !matches!(tried, Tried::InVain) {
                    return tried;
                }
            }
        }
        Tried::InVain
    }
}
