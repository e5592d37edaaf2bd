//! All hosts, arranged for placement: those of one kind with the same of it free are looked at as one.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use imbl::OrdMap;

use super::demand::Demand;
use super::filter::Filter;
use super::fit::Lack;
use super::groups::{GroupKey, Groups, Member, Members, Place, SameGpus};
use super::kind::{HostKind, Outfit};
use super::numbers::Numbers;
use super::pack::ALONE;
use super::prospect::Prospects;
use super::recent::Outlook;
use super::reserve::Reserve;
use super::shape::Shape;
use super::table::{LazyTable, MAX_TABLE_GPUS, Table};
use super::units::Parts;
use super::vacant::Vacant;
use crate::model::fabric::Fabric;
use crate::model::gpu::Inventory;
use crate::model::ids::NodeName;
use crate::model::resources::ResourceRequest;

/// Sets of GPUs that tables of hosts' shapes may list, all together: eight shapes of sixteen GPUs, or two thousand of
/// eight, in some 25 MiB. Hosts of further shapes have none, and are searched. So no node that reports ever other
/// links takes the broker's time and memory.
const MAX_TABLE_SETS: usize = 8 << MAX_TABLE_GPUS;

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

impl Room {
    /// Whether a node of a request may be here, as far as counting tells.
    pub fn could_hold(&self, request: &ResourceRequest) -> bool {
        let could = |one: &ResourceRequest| {
            (self.gpus.count_ones() >= one.gpus_per_node || !self.parts.is_empty())
                && self.cpus >= one.cpus_per_node
                && self.memory_bytes >= one.memory_bytes_per_node
        };
        self.unavailable.is_none() && request.components().any(could)
    }
}

/// A kind of host that there is, with what is worked out once for all its hosts.
#[derive(Debug)]
pub(super) struct Kind {
    /// Tells it from the other kinds there are.
    pub number: u32,
    pub host: HostKind,
    /// None: too many GPUs for one, or none, or too many other tables.
    table: Option<Arc<LazyTable>>,
    /// What requests to come see of it.
    pub outfit: Outfit,
    /// What may be given away of its GPUs in MIG mode where nothing is held.
    pub parts: Parts,
}

impl Kind {
    /// The best sets of its GPUs.
    pub fn table(&self) -> Option<&Table> {
        self.table.as_deref().map(LazyTable::get)
    }
}

#[derive(Clone, Debug)]
struct Host {
    /// Number of its kind.
    kind: u32,
    member: Member,
    room: Room,
}

impl Host {
    /// It is on a switch or in a block that others may be on or in.
    fn lies(&self) -> bool {
        let Member { leaf, block, .. } = self.member;
        leaf > 0 && leaf != ALONE || block != ALONE
    }

    /// Nothing of it is held, and it is in service.
    fn is_vacant(&self, kind: &Kind) -> bool {
        let (room, host) = (&self.room, &kind.host);
        let whole = (room.cpus, room.memory_bytes) == (host.cpus, host.memory_bytes);
        whole && room.unavailable.is_none() && room.gpus & host.placeable == host.placeable
    }

    /// Where it stands among the groups; of this outfit is its kind.
    fn place(&self, outfit: &Outfit) -> Place {
        let (cpus, memory_bytes) = (self.room.cpus, self.room.memory_bytes);
        let group = GroupKey {
            kind: self.kind,
            available: self.room.unavailable.is_none(),
            gpus: self.room.gpus,
            parts: Arc::clone(&self.room.parts),
        };
        (group, (outfit.class(cpus, memory_bytes), cpus, memory_bytes))
    }
}

/// All hosts. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    hosts: OrdMap<NodeName, Host>,
    /// Numbers of the kinds that there are.
    numbers: OrdMap<HostKind, u32>,
    kinds: OrdMap<u32, Arc<Kind>>,
    /// Hosts of each kind.
    counts: OrdMap<u32, usize>,
    groups: Groups,
    /// Those of which nothing is held, where it matters how they lie to each other.
    vacant: Vacant,
    /// Number of the next kind.
    next: u32,
    /// What each keeps for its free GPUs.
    pub(super) reserve: Reserve,
    /// Sets of features that hosts have.
    features: Numbers<BTreeSet<String>>,
    fabric: Arc<Fabric>,
    /// Blocks that hosts are in, by name.
    blocks: Numbers<String>,
    /// What is expected of requests to come.
    outlook: Arc<Outlook>,
    /// What follows from it for these hosts, worked out when it is first asked for.
    prospects: OnceLock<Arc<Prospects>>,
    /// Changes of what there is, free or not.
    epoch: u64,
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

    /// Another number each time that what there is has changed, whoever holds it: hosts, what they have, and whether they
    /// are in service.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What somebody may have of them has changed.
    pub fn note_change(&mut self) {
        self.epoch += 1;
    }

    /// All lie alike to each other: nothing is known of switches and blocks.
    pub(super) fn is_flat(&self) -> bool {
        !self.fabric.has_switches() && self.blocks.is_empty()
    }

    /// Those of which nothing is held; of those that lie on no switch and in no block, nothing is known.
    pub(super) fn vacant(&self) -> &Vacant {
        &self.vacant
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
        let number = self.numbers.get(&host).copied();
        if known.is_some_and(|known| Some(known.kind) == number && same(&known.member)) {
            return;
        }
        let room = known.map(|known| known.room.clone()).unwrap_or_default();
        self.note_change();
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
        // Asked for again: the last host of its kind may just have gone.
        let known = self.numbers.get(&host).copied();
        let kind = known.unwrap_or_else(|| self.add_kind(host));
        *self.counts.entry(kind).or_default() += 1;
        self.insert(node, Host { kind, member, room });
        self.prospects = OnceLock::new();
    }

    fn add_kind(&mut self, host: HostKind) -> u32 {
        let number = self.next;
        self.next += 1;
        let kind = Kind {
            number,
            parts: host.parts().collect(),
            outfit: host.outfit(),
            table: self.table(&host, &self.outlook.sizes),
            host: host.clone(),
        };
        self.kinds.insert(number, Arc::new(kind));
        self.numbers.insert(host, number);
        number
    }

    /// One for such hosts. Kinds share it that differ in nothing that it depends on.
    fn table(&self, host: &HostKind, demand: &Demand) -> Option<Arc<LazyTable>> {
        let shape = Shape::of(host)?;
        let tables = || self.kinds.values().filter_map(|kind| kind.table.as_ref());
        if let Some(table) = tables().find(|table| table.is_of(&shape, demand)) {
            return Some(Arc::clone(table));
        }
        let mut others: Vec<&Arc<LazyTable>> = tables().collect();
        others.sort_by_key(|table| Arc::as_ptr(table));
        others.dedup_by_key(|table| Arc::as_ptr(table));
        let sets: usize = others.iter().map(|table| table.sets()).sum();
        (sets + (1 << shape.gpus()) <= MAX_TABLE_SETS)
            .then(|| Arc::new(LazyTable::new(shape, demand.clone())))
    }

    /// Takes note of what is expected of requests to come.
    pub fn expect(&mut self, outlook: Outlook) {
        let other = outlook.sizes != self.outlook.sizes;
        self.outlook = Arc::new(outlook);
        self.prospects = OnceLock::new();
        if !other {
            return;
        }
        let former = std::mem::take(&mut self.kinds);
        for kind in former.values() {
            let kind = Kind {
                number: kind.number,
                host: kind.host.clone(),
                table: self.table(&kind.host, &self.outlook.sizes),
                outfit: kind.outfit.clone(),
                parts: Arc::clone(&kind.parts),
            };
            self.kinds.insert(kind.number, Arc::new(kind));
        }
    }

    /// What is expected of requests, for these hosts.
    pub(super) fn prospects(&self) -> &Prospects {
        self.prospects.get_or_init(|| {
            let mut outfits: BTreeMap<&Outfit, usize> = BTreeMap::new();
            for (number, count) in &self.counts {
                *outfits.entry(&self.kinds[number].outfit).or_default() += count;
            }
            Arc::new(Prospects::new(&self.outlook, &outfits))
        })
    }

    /// Takes note of what of a host is free; of a host that is not there, none.
    pub fn set_room(&mut self, node: &NodeName, room: Room) {
        if self.room(node).is_none_or(|known| *known == room) {
            return;
        }
        let Some(host) = self.hosts.get_mut(node) else {
            return;
        };
        self.epoch += u64::from(host.room.unavailable.is_none() != room.unavailable.is_none());
        let kind = &self.kinds[&host.kind];
        self.groups.remove(&host.place(&kind.outfit), &host.member);
        let was_vacant = host.is_vacant(kind);
        host.room = room;
        self.groups.insert(host.place(&kind.outfit), &host.member);
        if host.is_vacant(kind) != was_vacant && host.lies() {
            self.vacant.note(&host.member, !was_vacant);
        }
    }

    /// Takes a host out.
    pub fn remove(&mut self, node: &NodeName) {
        let Some(host) = self.hosts.remove(node) else {
            return;
        };
        self.note_change();
        self.groups
            .remove(&host.place(&self.kinds[&host.kind].outfit), &host.member);
        self.vacant.note(&host.member, false);
        self.features.give_back(host.member.features);
        self.blocks.give_back(host.member.block);
        self.prospects = OnceLock::new();
        let left = self.counts.get(&host.kind).map_or(0, |count| count - 1);
        if left > 0 {
            self.counts.insert(host.kind, left);
            return;
        }
        self.counts.remove(&host.kind);
        if let Some(kind) = self.kinds.remove(&host.kind) {
            self.numbers.remove(&kind.host);
        }
    }

    /// The same hosts, of these names alone.
    #[must_use]
    pub fn only<'a>(&self, nodes: impl IntoIterator<Item = &'a NodeName>) -> Self {
        // Each is worth what it is among all.
        self.prospects();
        let mut some = Self {
            hosts: OrdMap::new(),
            counts: OrdMap::new(),
            groups: Groups::default(),
            vacant: Vacant::default(),
            ..self.clone()
        };
        for node in nodes {
            if let Some(host) = self.hosts.get(node) {
                some.insert(node, host.clone());
            }
        }
        some
    }

    /// GPUs of all of them.
    pub fn gpus(&self) -> u64 {
        let counts = self.counts.iter();
        let of_kind = counts.map(|(kind, count)| self.kinds[kind].host.gpus() as u64 * *count as u64);
        of_kind.sum()
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
        let kind = &self.kinds[&host.kind];
        self.groups.insert(host.place(&kind.outfit), &host.member);
        if host.lies() {
            self.vacant.note(&host.member, host.is_vacant(kind));
        }
        self.hosts.insert(node.clone(), host);
    }

    /// The hosts that a request may get, kind by kind.
    pub(super) fn same_gpus<'a>(
        &'a self,
        assume: Assume,
        filter: Option<&Rc<Filter<'a>>>,
    ) -> impl Iterator<Item = SameGpus<'a>> + use<'a> {
        let filter = filter.cloned();
        let in_service = move |key: &GroupKey| key.available || assume == Assume::Whole;
        let mut groups = self
            .groups
            .iter()
            .filter(move |(key, _)| in_service(key))
            .peekable();
        let mut last: Option<&Kind> = None;
        std::iter::from_fn(move || {
            let (key, group) = groups.next()?;
            // Groups of a kind follow each other.
            let kind = last.filter(|kind| kind.number == key.kind);
            let kind = kind.unwrap_or_else(|| &self.kinds[&key.kind]);
            last = Some(kind);
            let host = &kind.host;
            let free = assume == Assume::Now;
            let (gpus, parts) = if free {
                (key.gpus & host.placeable, &key.parts)
            } else {
                (host.placeable, &kind.parts)
            };
            let mut same = SameGpus::new(kind, gpus, parts, group, filter.clone());
            if !free {
                same.take_whole();
                while let Some((_, group)) = groups.next_if(|(other, _)| other.kind == key.kind) {
                    same.add(group);
                }
            }
            Some(same)
        })
    }

    /// A host is there, and the number of its kind and how it lies will do.
    pub(super) fn is_one(&self, node: &NodeName, will_do: impl Fn(u32, &Member) -> bool) -> bool {
        let host = self.hosts.get(node);
        host.is_some_and(|host| will_do(host.kind, &host.member))
    }

    /// The kinds of hosts that there are.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &HostKind> {
        self.kinds.values().map(|kind| &kind.host)
    }

    /// A kind of host there is.
    pub(super) fn kind(&self, number: u32) -> Option<&HostKind> {
        self.kinds.get(&number).map(|kind| &kind.host)
    }

    /// Sets of features, with their numbers.
    pub(super) fn feature_sets(&self) -> impl Iterator<Item = (u32, &BTreeSet<String>)> {
        self.features.iter()
    }

    /// Why hosts that are not in service get nothing, and how many of them each: in words, or because the request
    /// leaves them out in any case.
    pub(super) fn unavailable(&self, filter: Option<&Filter<'_>>) -> BTreeMap<Result<&str, Lack>, u32> {
        let mut reasons = BTreeMap::new();
        let out_of_service = self.groups.iter().filter(|(key, _)| !key.available);
        let members = out_of_service.flat_map(|(_, group)| group.values().flat_map(Members::iter));
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
