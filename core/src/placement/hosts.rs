//! All hosts, arranged for placement: those of one kind with the same of it free are looked at as one.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use super::filter::Filter;
use super::fit::Lack;
use super::kind::HostKind;
use super::numbers::Numbers;
use super::pack::ALONE;
use super::reserve::Reserve;
use super::table::{Demand, Shape, Table};
use super::units::{PartRoom, Parts};
use crate::model::fabric::Fabric;
use crate::model::gpu::Inventory;
use crate::model::ids::NodeName;

/// What of a host may be given away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// GPUs of which nobody holds anything: bit n is position n in [`Inventory::gpus`].
    pub gpus: u64,
    /// GPUs that jobs share, and GPUs in MIG mode.
    pub parts: Parts,
    /// Hardware threads that nobody holds.
    pub cpus: u32,
    /// Memory that nobody holds, bytes.
    pub memory_bytes: u64,
    /// Why nothing is placed on it, after "node is": "down"; none: it is.
    pub unavailable: Option<String>,
}

/// A kind of host that there is, with what is worked out once for all its hosts.
#[derive(Debug)]
pub(super) struct Kind {
    /// Tells it from the other kinds there are.
    pub number: u32,
    pub host: HostKind,
    /// None: too many GPUs for one, or none.
    pub table: Option<Arc<Table>>,
    /// What may be given away of its GPUs in MIG mode where nothing is held.
    pub parts: Parts,
}

#[derive(Clone, Debug)]
struct Host {
    kind: Arc<Kind>,
    member: Member,
    room: Room,
}

/// A host as groups hold it: its name, and what constraints look at, which no group is split by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    pub node: NodeName,
    /// Number of its set of features.
    pub features: u32,
    /// Number of its leaf switch, or [`ALONE`].
    pub leaf: u32,
    /// Number of its block, or [`ALONE`].
    pub block: u32,
}

/// Kind, whether anything is placed on them, which GPUs are free, and what of others: what decides which GPU
/// units a request gets.
type GroupKey = (u32, bool, u64, Parts);

/// Hosts that give a request the same GPUs.
#[derive(Clone, Debug)]
struct Group {
    kind: Arc<Kind>,
    /// By free CPUs and memory.
    hosts: OrdMap<(u32, u64), OrdSet<Member>>,
}

/// All hosts. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    hosts: OrdMap<NodeName, Host>,
    kinds: OrdMap<HostKind, Arc<Kind>>,
    /// Hosts of each kind.
    counts: OrdMap<u32, usize>,
    groups: OrdMap<GroupKey, Group>,
    /// Number of the next kind.
    next: u32,
    /// What each keeps for its free GPUs.
    pub(super) reserve: Reserve,
    /// Sets of features that hosts have.
    features: Numbers<BTreeSet<String>>,
    fabric: Arc<Fabric>,
    /// Blocks that hosts are in, by name.
    blocks: Numbers<String>,
}

/// Hosts that give a request the same GPUs; what is taken as free.
pub(super) struct SameGpus<'a> {
    pub kind: &'a Kind,
    pub gpus: u64,
    pub parts: &'a [(u8, PartRoom)],
    hosts: Vec<&'a OrdMap<(u32, u64), OrdSet<Member>>>,
    filter: Option<Rc<Filter<'a>>>,
    /// CPUs and memory of each, where not what is free now is taken as free.
    whole: Option<(u32, u64)>,
}

/// Hosts that are equal to a request, and what of each may be given away.
pub(super) struct Alike<'a> {
    pub kind: &'a Kind,
    pub gpus: u64,
    pub cpus: u32,
    pub memory_bytes: u64,
    members: Vec<&'a OrdSet<Member>>,
    filter: Option<Rc<Filter<'a>>>,
}

impl<'a> SameGpus<'a> {
    pub fn count(&self) -> usize {
        let sets = self.hosts.iter().flat_map(|hosts| hosts.values());
        sets.map(|members| count(members, self.filter.as_deref())).sum()
    }

    /// How many are left out, and for what.
    pub fn left_out(&self) -> BTreeMap<Lack, usize> {
        let mut lacks = BTreeMap::new();
        let members = self.hosts.iter().flat_map(|hosts| hosts.values()).flatten();
        for lack in members.filter_map(|member| self.filter.as_deref()?.lack(member)) {
            *lacks.entry(lack).or_default() += 1;
        }
        lacks
    }

    /// Those with as many CPUs, the fewest first, those that are equal together.
    pub fn with_cpus(&self, cpus: u32) -> impl Iterator<Item = Alike<'a>> + use<'a> {
        let (kind, gpus, filter) = (self.kind, self.gpus, self.filter.clone());
        let alike = move |cpus, memory_bytes, members| Alike {
            kind,
            gpus,
            cpus,
            memory_bytes,
            members,
            filter: filter.clone(),
        };
        let all = self.whole.map(|(cpus, memory_bytes)| {
            let members = self.hosts.iter().flat_map(|hosts| hosts.values());
            alike(cpus, memory_bytes, members.collect())
        });
        let now = self.hosts.first().copied().filter(|_| self.whole.is_none());
        let each = now.into_iter().flat_map(move |hosts| hosts.range((cpus, 0)..));
        let each =
            each.map(move |((cpus, memory_bytes), members)| alike(*cpus, *memory_bytes, vec![members]));
        all.into_iter().filter(move |all| all.cpus >= cpus).chain(each)
    }
}

impl<'a> Alike<'a> {
    pub fn count(&self) -> usize {
        let filter = self.filter.as_deref();
        self.members.iter().map(|members| count(members, filter)).sum()
    }

    /// The first of them by name, in order.
    pub fn first(&self, count: usize) -> Vec<&'a Member> {
        let filter = self.filter.as_deref();
        let of = |members: &&'a OrdSet<Member>| {
            let wanted = members.iter().filter(|member| passes(filter, member));
            wanted.take(count)
        };
        let mut first: Vec<&Member> = self.members.iter().flat_map(of).collect();
        if self.members.len() > 1 {
            first.sort_unstable();
        }
        first.truncate(count);
        first
    }
}

fn passes(filter: Option<&Filter<'_>>, member: &Member) -> bool {
    filter.is_none_or(|filter| filter.lack(member).is_none())
}

fn count(members: &OrdSet<Member>, filter: Option<&Filter<'_>>) -> usize {
    match filter {
        None => members.len(),
        Some(_) => members.iter().filter(|member| passes(filter, member)).count(),
    }
}

/// What is taken as free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assume {
    /// What is.
    Now,
    /// Everything healthy on hosts that are in service.
    Emptied,
    /// Everything healthy, on hosts that are not in service too: they may come back.
    Whole,
}

impl Hosts {
    /// None yet, over a fabric.
    pub fn over(fabric: Arc<Fabric>) -> Self {
        Self {
            fabric,
            ..Self::default()
        }
    }

    /// The fabric that they are on.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// All lie alike to each other: nothing is known of switches and blocks.
    pub(super) fn is_flat(&self) -> bool {
        !self.fabric.has_switches() && self.blocks.is_empty()
    }

    /// All names.
    pub(super) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.hosts.keys()
    }

    /// Adds a host, or takes note of what it has now. Nothing of a new one is free.
    pub fn set_inventory(&mut self, node: &NodeName, inventory: &Inventory) {
        let host = HostKind::of(inventory);
        let known = self.hosts.get(node);
        let block = self.fabric.block_of(node, inventory).map(str::to_owned);
        let same = |member: &Member| {
            let block = block
                .as_ref()
                .map_or(Some(ALONE), |block| self.blocks.number(block));
            self.features.number(&inventory.features) == Some(member.features) && block == Some(member.block)
        };
        if known.is_some_and(|known| known.kind.host == host && same(&known.member)) {
            return;
        }
        let room = known.map(|known| known.room.clone()).unwrap_or_default();
        self.remove(node);
        let member = Member {
            node: node.clone(),
            features: self.features.take(&inventory.features),
            // Without a tree all are beside each other on the root.
            leaf: self
                .fabric
                .leaf_of(node)
                .unwrap_or(if self.fabric.has_switches() { ALONE } else { 0 }),
            block: block.map_or(ALONE, |block| self.blocks.take(&block)),
        };
        let kind = match self.kinds.get(&host) {
            Some(kind) => Arc::clone(kind),
            None => self.add_kind(host),
        };
        *self.counts.entry(kind.number).or_default() += 1;
        self.insert(node, Host { kind, member, room });
    }

    fn add_kind(&mut self, host: HostKind) -> Arc<Kind> {
        let table = Shape::of(&host).map(|shape| {
            // Kinds may differ in what tables do not depend on.
            let mut tables = self.kinds.values().filter_map(|kind| kind.table.as_ref());
            let shared = tables.find(|table| *table.shape() == shape);
            shared.map_or_else(|| Arc::new(Table::new(shape, &Demand::default())), Arc::clone)
        });
        let kind = Arc::new(Kind {
            number: self.next,
            parts: host.parts().collect(),
            host: host.clone(),
            table,
        });
        self.next += 1;
        self.kinds.insert(host, Arc::clone(&kind));
        kind
    }

    /// Takes note of what of a host is free; of a host that is not there, none.
    pub fn set_room(&mut self, node: &NodeName, room: Room) {
        let Some(host) = self.hosts.get(node).filter(|host| host.room != room).cloned() else {
            return;
        };
        self.take_out(&host);
        self.insert(node, Host { room, ..host });
    }

    /// Takes a host out.
    pub fn remove(&mut self, node: &NodeName) {
        let Some(host) = self.hosts.remove(node) else {
            return;
        };
        self.take_out(&host);
        self.features.give_back(host.member.features);
        self.blocks.give_back(host.member.block);
        let left = self.counts.get(&host.kind.number).map_or(0, |count| count - 1);
        if left == 0 {
            self.counts.remove(&host.kind.number);
            self.kinds.remove(&host.kind.host);
        } else {
            self.counts.insert(host.kind.number, left);
        }
    }

    /// The same hosts, of these names alone.
    #[must_use]
    pub fn only<'a>(&self, nodes: impl IntoIterator<Item = &'a NodeName>) -> Self {
        let mut some = Self {
            kinds: self.kinds.clone(),
            reserve: self.reserve,
            features: self.features.clone(),
            fabric: Arc::clone(&self.fabric),
            blocks: self.blocks.clone(),
            ..Self::default()
        };
        for node in nodes {
            if let Some(host) = self.hosts.get(node) {
                some.insert(node, host.clone());
            }
        }
        some
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// What of a host is free; none: it is not there.
    pub fn room(&self, node: &NodeName) -> Option<&Room> {
        self.hosts.get(node).map(|host| &host.room)
    }

    fn insert(&mut self, node: &NodeName, host: Host) {
        let group = self.groups.entry(group_of(&host)).or_insert_with(|| Group {
            kind: Arc::clone(&host.kind),
            hosts: OrdMap::new(),
        });
        let names = group.hosts.entry((host.room.cpus, host.room.memory_bytes));
        names.or_default().insert(host.member.clone());
        self.hosts.insert(node.clone(), host);
    }

    fn take_out(&mut self, host: &Host) {
        let (key, room) = (group_of(host), (host.room.cpus, host.room.memory_bytes));
        let Some(group) = self.groups.get_mut(&key) else {
            return;
        };
        if let Some(members) = group.hosts.get_mut(&room) {
            members.remove(&host.member);
            if members.is_empty() {
                group.hosts.remove(&room);
            }
        }
        if group.hosts.is_empty() {
            self.groups.remove(&key);
        }
    }

    /// The hosts that a request may get, kind by kind.
    pub(super) fn same_gpus<'a>(
        &'a self,
        assume: Assume,
        filter: Option<&Rc<Filter<'a>>>,
    ) -> impl Iterator<Item = SameGpus<'a>> + use<'a> {
        let mut all: Vec<SameGpus<'a>> = Vec::new();
        for ((_, available, gpus, parts), group) in &self.groups {
            if !available && assume != Assume::Whole {
                continue;
            }
            let host = &group.kind.host;
            match (assume, all.last_mut()) {
                // Groups of a kind follow each other.
                (Assume::Emptied | Assume::Whole, Some(last)) if last.kind.number == group.kind.number => {
                    last.hosts.push(&group.hosts);
                }
                (Assume::Emptied | Assume::Whole, _) => all.push(SameGpus {
                    kind: &group.kind,
                    gpus: host.placeable,
                    parts: &group.kind.parts,
                    hosts: vec![&group.hosts],
                    filter: filter.cloned(),
                    whole: Some((host.cpus, host.memory_bytes)),
                }),
                (Assume::Now, _) => all.push(SameGpus {
                    kind: &group.kind,
                    gpus: gpus & host.placeable,
                    parts,
                    hosts: vec![&group.hosts],
                    filter: filter.cloned(),
                    whole: None,
                }),
            }
        }
        all.into_iter()
    }

    /// A kind of host there is.
    pub(super) fn kind(&self, number: u32) -> Option<&HostKind> {
        let kinds = self.kinds.values();
        kinds
            .map(|kind| &**kind)
            .find(|kind| kind.number == number)
            .map(|kind| &kind.host)
    }

    /// Sets of features, with their numbers.
    pub(super) fn feature_sets(&self) -> impl Iterator<Item = (u32, &BTreeSet<String>)> {
        self.features.iter()
    }

    /// Why hosts that are not in service get nothing, and how many of them each: in words, or because the request
    /// leaves them out in any case.
    pub(super) fn unavailable(&self, filter: Option<&Filter<'_>>) -> BTreeMap<Result<&str, Lack>, u32> {
        let mut reasons = BTreeMap::new();
        let out_of_service = self.groups.iter().filter(|((_, available, ..), _)| !available);
        let members = out_of_service.flat_map(|(_, group)| group.hosts.values().flatten());
        for member in members {
            let host = self.hosts.get(&member.node);
            let reason = match filter.and_then(|filter| filter.lack(member)) {
                Some(lack) => Some(Err(lack)),
                None => host.and_then(|host| host.room.unavailable.as_deref()).map(Ok),
            };
            if let Some(reason) = reason {
                *reasons.entry(reason).or_default() += 1;
            }
        }
        reasons
    }
}

fn group_of(host: &Host) -> GroupKey {
    let Room { gpus, parts, .. } = &host.room;
    (
        host.kind.number,
        host.room.unavailable.is_none(),
        *gpus,
        Arc::clone(parts),
    )
}
