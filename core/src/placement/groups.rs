//! Groups of hosts: those that give a request the same GPUs, and of these those with as many CPUs and as much memory.
//! A request looks at groups, and not at hosts.

use std::collections::BTreeMap;
use std::rc::Rc;

use imbl::{OrdMap, OrdSet};

use super::filter::Filter;
use super::fit::Lack;
use super::hosts::Kind;
use super::kind::Class;
use super::units::{PartRoom, Parts};
use crate::model::ids::NodeName;

/// A host as groups hold it: its name, and what constraints look at, which no group is split by. Those of a leaf switch
/// follow each other, by name: so single hosts are taken of few switches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    /// Number of its leaf switch, or [`ALONE`].
    pub leaf: u32,
    pub node: NodeName,
    /// Number of its set of features.
    pub features: u32,
    /// Number of its block, or [`ALONE`].
    pub block: u32,
}

/// What decides which GPU units a request gets. Groups of a kind follow each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey {
    /// Number of their kind.
    pub kind: u32,
    /// Whether anything is placed on them.
    pub available: bool,
    /// GPUs of which nobody holds anything.
    pub gpus: u64,
    /// What may be given away of others.
    pub parts: Parts,
}

/// Class, free CPUs, free memory in bytes.
type Free = (Class, u32, u64);

/// Where a host stands.
pub(super) type Place = (GroupKey, Free);

/// Hosts that give a request the same GPUs.
pub(super) type Group = OrdMap<Free, Members>;

/// Hosts with as much free; there is one at least. Most have the same as no other.
#[derive(Clone, Debug)]
pub(super) enum Members {
    One(Member),
    Several(OrdSet<Member>),
}

impl Members {
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        let (one, several) = match self {
            Self::One(member) => (Some(member), None),
            Self::Several(members) => (None, Some(members)),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Several(members) => members.len(),
        }
    }

    fn contains(&self, member: &Member) -> bool {
        match self {
            Self::One(one) => one == member,
            Self::Several(members) => members.contains(member),
        }
    }

    fn count(&self, filter: Option<&Filter<'_>>) -> usize {
        match filter {
            None => self.len(),
            Some(_) => self.iter().filter(|member| passes(filter, member)).count(),
        }
    }

    fn insert(&mut self, member: &Member) {
        match self {
            Self::One(other) => *self = Self::Several([other.clone(), member.clone()].into_iter().collect()),
            Self::Several(members) => {
                members.insert(member.clone());
            }
        }
    }

    /// Whether any is left.
    fn remove(&mut self, member: &Member) -> bool {
        let Self::Several(members) = self else {
            return false;
        };
        members.remove(member);
        if let Some(last) = members.get_min().filter(|_| members.len() == 1) {
            *self = Self::One(last.clone());
        }
        true
    }
}

/// All groups. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups(OrdMap<GroupKey, Group>);

impl Groups {
    pub fn iter(&self) -> impl Iterator<Item = (&GroupKey, &Group)> {
        self.0.iter()
    }

    /// Puts a host where it belongs.
    pub fn insert(&mut self, (key, free): Place, member: &Member) {
        let Some(group) = self.0.get_mut(&key) else {
            let group = OrdMap::unit(free, Members::One(member.clone()));
            self.0.insert(key, group);
            return;
        };
        match group.get_mut(&free) {
            Some(members) => members.insert(member),
            None => {
                group.insert(free, Members::One(member.clone()));
            }
        }
    }

    /// Takes out a host that is there.
    pub fn remove(&mut self, (key, free): &Place, member: &Member) {
        let Some(group) = self.0.get_mut(key) else {
            return;
        };
        if group.get_mut(free).is_some_and(|members| !members.remove(member)) {
            group.remove(free);
        }
        if group.is_empty() {
            self.0.remove(key);
        }
    }
}

/// Hosts that give a request the same GPUs; what is taken as free.
pub(super) struct SameGpus<'a> {
    pub kind: &'a Kind,
    pub gpus: u64,
    pub parts: &'a [(u8, PartRoom)],
    first: &'a Group,
    /// Further groups, where all of them are taken as free.
    others: Vec<&'a Group>,
    filter: Option<Rc<Filter<'a>>>,
    /// CPUs and memory of each, where not what is free now is taken as free.
    whole: Option<(u32, u64)>,
}

impl<'a> SameGpus<'a> {
    pub fn new(
        kind: &'a Kind,
        gpus: u64,
        parts: &'a [(u8, PartRoom)],
        group: &'a Group,
        filter: Option<Rc<Filter<'a>>>,
    ) -> Self {
        Self {
            kind,
            gpus,
            parts,
            first: group,
            others: Vec::new(),
            filter,
            whole: None,
        }
    }

    /// All CPUs and all memory are taken as free.
    pub fn take_whole(&mut self) {
        self.whole = Some((self.kind.host.cpus, self.kind.host.memory_bytes));
    }

    /// Hosts of another group are of these.
    pub fn add(&mut self, group: &'a Group) {
        self.others.push(group);
    }

    fn sets(&self) -> impl Iterator<Item = &'a Members> {
        let groups = std::iter::once(self.first).chain(self.others.iter().copied());
        groups.flat_map(|group| group.values())
    }

    pub fn count(&self) -> usize {
        let filter = self.filter.as_deref();
        self.sets().map(|members| members.count(filter)).sum()
    }

    /// How many are left out, and for what.
    pub fn left_out(&self) -> BTreeMap<Lack, usize> {
        let mut lacks = BTreeMap::new();
        let Some(filter) = self.filter.as_deref() else {
            return lacks;
        };
        let members = self.sets().flat_map(Members::iter);
        for lack in members.filter_map(|member| filter.lack(member)) {
            *lacks.entry(lack).or_default() += 1;
        }
        lacks
    }

    /// Those with as many CPUs, class by class, and in each the fewest first; those that are equal together.
    pub fn alike(&self, least: u32) -> impl Iterator<Item = Alike<'a>> + use<'a> {
        let (kind, gpus, filter) = (self.kind, self.gpus, self.filter.clone());
        let whole = self.whole.map(|(cpus, memory_bytes)| {
            let mut sets = self.sets();
            let first = sets.next();
            let free = (kind.outfit.class(cpus, memory_bytes), cpus, memory_bytes);
            (free, first, sets.collect())
        });
        let free = self.whole.is_none().then_some(self.first);
        let from = (kind.outfit.class(least, 0), 0, 0);
        let free = free.into_iter().flat_map(move |group| group.range(from..));
        let free = free.map(|(free, members)| (*free, Some(members), Vec::new()));
        let all = whole.into_iter().chain(free);
        let enough = all.filter(move |((_, cpus, _), ..)| *cpus >= least);
        enough.filter_map(move |((class, cpus, memory_bytes), members, others)| {
            Some(Alike {
                kind,
                class,
                gpus,
                cpus,
                memory_bytes,
                members: members?,
                others,
                filter: filter.clone(),
            })
        })
    }
}

/// Hosts that are equal to a request, and what of each may be given away.
pub(super) struct Alike<'a> {
    pub kind: &'a Kind,
    pub class: Class,
    pub gpus: u64,
    pub cpus: u32,
    pub memory_bytes: u64,
    members: &'a Members,
    others: Vec<&'a Members>,
    filter: Option<Rc<Filter<'a>>>,
}

impl<'a> Alike<'a> {
    fn sets(&self) -> impl Iterator<Item = &'a Members> + Clone {
        std::iter::once(self.members).chain(self.others.iter().copied())
    }

    pub fn count(&self) -> usize {
        let filter = self.filter.as_deref();
        self.sets().map(|members| members.count(filter)).sum()
    }

    /// Nothing of them is held.
    pub fn are_vacant(&self) -> bool {
        let host = &self.kind.host;
        self.gpus == host.placeable && self.cpus == host.cpus && self.memory_bytes == host.memory_bytes
    }

    /// A host is one of them.
    pub fn contains(&self, member: &Member) -> bool {
        passes(self.filter.as_deref(), member) && self.sets().any(|members| members.contains(member))
    }

    /// All of them, in order if they are sorted.
    pub fn members(&self) -> impl Iterator<Item = &'a Member> {
        let filter = self.filter.as_deref();
        let members = self.sets().flat_map(Members::iter);
        members.filter(move |member| passes(filter, member))
    }

    /// Whether all of them are in order.
    pub fn are_sorted(&self) -> bool {
        self.others.is_empty()
    }

    /// The first of them, in order.
    pub fn first(&self, count: usize) -> Vec<&'a Member> {
        let filter = self.filter.as_deref();
        let of = |members: &'a Members| {
            let wanted = members.iter().filter(|member| passes(filter, member));
            wanted.take(count)
        };
        let most = self.sets().map(|members| members.len().min(count)).sum();
        let mut first = Vec::with_capacity(most);
        first.extend(self.sets().flat_map(of));
        if !self.are_sorted() {
            first.sort_unstable();
        }
        first.truncate(count);
        first
    }
}

fn passes(filter: Option<&Filter<'_>>, member: &Member) -> bool {
    filter.is_none_or(|filter| filter.lack(member).is_none())
}
