//! What of the nodes is closed to a job because it is reserved: to whoever is not in a reservation what the
//! reservation holds, and to whoever is in it everything else.
//!
//! To a pass it is a promise like those to jobs: nobody may start who would still hold a part of it when it is due. A
//! reservation has jobs of its own: within it they hold a part of what it holds, and are counted with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::backfill::{Promise, Promises};
use super::state::State;
use crate::model::gpu::Inventory;
use crate::model::ids::{JobId, NodeName, ReservationName};
use crate::model::job::{Job, Placed};
use crate::model::reservation::{Reservation, Span, Times};
use crate::model::resources::{Allocation, NodeAllocation};
use crate::model::time::Timestamp;

/// Stands in place of a job for what no job is promised: jobs count up from 1.
const NOBODY: JobId = JobId(0);

/// A place that is closed.
#[derive(Debug)]
struct Closed {
    /// For which reservation; none: for whatever is outside of one.
    name: Option<ReservationName>,
    /// When; none: always.
    times: Option<Times>,
    /// From the next time on, to the end of the last.
    place: Arc<Promise>,
}

impl Closed {
    fn in_force(&self, span: Span) -> bool {
        self.times.is_none_or(|times| times.overlaps(span))
    }
}

/// Everything that is closed to some jobs.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    closed: Vec<Closed>,
}

impl Reserved {
    /// What is closed to jobs in a reservation, or in none.
    pub fn to(state: &State, inside: Option<&ReservationName>, now: Timestamp) -> Self {
        let own = inside.and_then(|name| state.reservations.get(name));
        let others = state
            .reservations
            .values()
            .filter(|one| Some(&one.name) != inside);
        let near = |one: &&Arc<Reservation>| own.is_none_or(|own| share_nodes(own, one));
        let mut closed: Vec<Closed> = others
            .filter(near)
            .filter_map(|one| Closed::of(state, one, now))
            .collect();
        closed.extend(own.and_then(|own| Closed::around(state, own)));
        Self { closed }
    }

    /// What other reservations hold while one is in force.
    pub fn beside(state: &State, one: &Reservation, now: Timestamp) -> Self {
        let grace = state.settings.grace;
        let times = one.closed(grace);
        let others = state.reservations.values();
        let others = others.filter(|other| other.name != one.name && other.closed(grace).meets(&times, now));
        Self {
            closed: others.filter_map(|other| Closed::of(state, other, now)).collect(),
        }
    }

    /// All of it, each from when it is next in force.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Promise>> {
        self.closed.iter().map(|closed| &closed.place)
    }

    /// Those that are in force before a time, the first one first.
    pub fn before(&self, until: Timestamp) -> Vec<&Promise> {
        let all = self.all().map(Arc::as_ref);
        let mut closed: Vec<&Promise> = all.filter(|closed| closed.start < until).collect();
        closed.sort_by_key(|closed| closed.start);
        closed
    }

    /// What is in force at some moment of a time.
    pub fn between(&self, from: Timestamp, until: Timestamp) -> impl Iterator<Item = &Promise> {
        let span = Span {
            start: from,
            end: until,
        };
        let closed = self.closed.iter().filter(move |closed| closed.in_force(span));
        closed.map(|closed| closed.place.as_ref())
    }

    /// The first reservation that is in force before a time.
    pub fn first_before(&self, until: Timestamp) -> Option<&ReservationName> {
        let named = self
            .closed
            .iter()
            .filter_map(|closed| Some((closed.place.start, closed.name.as_ref()?)));
        let first = named.min().filter(|(start, _)| *start < until);
        first.map(|(_, name)| name)
    }

    /// When something is open again, the next time after each of these.
    pub fn ends(&self, after: [Timestamp; 2]) -> impl Iterator<Item = Timestamp> + '_ {
        let times = self.closed.iter().filter_map(|closed| closed.times);
        let ends = times.flat_map(move |times| after.map(|after| times.next(after)));
        ends.flatten().map(|span| span.end)
    }
}

fn share_nodes(one: &Reservation, other: &Reservation) -> bool {
    let nodes = other.nodes.only.as_ref();
    nodes.is_some_and(|nodes| one.node_names().any(|node| nodes.contains(node)))
}

impl Closed {
    /// What a reservation holds, with whatever its own jobs hold.
    fn of(state: &State, one: &Reservation, now: Timestamp) -> Option<Self> {
        let times = one.closed(state.settings.grace);
        let next = times.next(now)?;
        let mut parts = state.parts_of(one);
        let mut stands_for = Vec::new();
        if next.start <= now {
            let own = |job: &Job| job.terms.reservation.as_ref() == Some(&one.name);
            for job in state.on_nodes_of(one).filter(|job| own(job)) {
                stands_for.push(job.id);
            }
            grow(&mut parts, state, &stands_for);
        }
        let end = if times.every.is_some() {
            Timestamp::MAX
        } else {
            next.end
        };
        Some(Self {
            name: Some(one.name.clone()),
            times: Some(times),
            place: place(parts, (next.start, end), stands_for),
        })
    }

    /// What of its nodes a reservation does not hold, with whatever others hold there; none: it holds all.
    fn around(state: &State, one: &Reservation) -> Option<Self> {
        one.parts.as_ref()?;
        let held = state.parts_of(one);
        let mut rest = Vec::new();
        for part in &held {
            let inventory = &state.nodes.get(&part.node)?.inventory;
            let mut around = whole(&part.node, inventory);
            around
                .gpus
                .retain(|unit| part.gpus.iter().all(|own| own.gpu != unit.gpu));
            around.cpus -= part.cpus.min(around.cpus);
            around.memory_bytes -= part.memory_bytes.min(around.memory_bytes);
            rest.push(around);
        }
        let mut stands_for = Vec::new();
        for job in state.on_nodes_of(one) {
            let own = job.terms.reservation.as_ref() == Some(&one.name);
            let within = |unit: &crate::model::gpu_unit::GpuUnit| {
                let mut own = held.iter().flat_map(|part| &part.gpus);
                own.any(|own| own.gpu == unit.gpu)
            };
            let mut units = job.placed().into_iter().flat_map(Placed::unreleased);
            // Who holds a part of it still, from before, is counted by itself.
            if !own && !units.any(|part| part.gpus.iter().any(within)) {
                stands_for.push(job.id);
            }
        }
        grow(&mut rest, state, &stands_for);
        Some(Self {
            name: None,
            times: None,
            place: place(rest, (Timestamp(0), Timestamp::MAX), stands_for),
        })
    }
}

fn place(
    nodes: Vec<NodeAllocation>,
    (start, end): (Timestamp, Timestamp),
    stands_for: Vec<JobId>,
) -> Arc<Promise> {
    Arc::new(Promise {
        job: NOBODY,
        start,
        end,
        allocation: Allocation { nodes },
        takes_over: Vec::new(),
        stands_for,
        rank: 0,
    })
}

/// A node, all of it.
fn whole(node: &NodeName, inventory: &Inventory) -> NodeAllocation {
    NodeAllocation {
        node: node.clone(),
        gpus: inventory.gpus.iter().map(|gpu| gpu.uuid.clone().into()).collect(),
        cpus: inventory.cpus,
        memory_bytes: inventory.memory_bytes,
    }
}

/// Parts are no less than what these jobs hold of the nodes together.
fn grow(parts: &mut Vec<NodeAllocation>, state: &State, jobs: &[JobId]) {
    let own = std::mem::take(parts).into_iter();
    let mut grown: BTreeMap<NodeName, NodeAllocation> = own.map(|part| (part.node.clone(), part)).collect();
    let mut sums: BTreeMap<&NodeName, (u32, u64)> = BTreeMap::new();
    let jobs = jobs.iter().filter_map(|id| state.jobs.get(id)?.placed());
    for held in jobs.flat_map(Placed::unreleased) {
        let (cpus, memory) = sums.entry(&held.node).or_default();
        *cpus = cpus.saturating_add(held.cpus);
        *memory = memory.saturating_add(held.memory_bytes);
        let part = grown.entry(held.node.clone()).or_insert_with(|| NodeAllocation {
            gpus: Vec::new(),
            ..held.clone()
        });
        part.cpus = part.cpus.max(*cpus);
        part.memory_bytes = part.memory_bytes.max(*memory);
        for unit in &held.gpus {
            if part.gpus.iter().all(|known| known.gpu != unit.gpu) {
                part.gpus.push(unit.clone());
            }
        }
    }
    parts.extend(grown.into_values());
}

/// Two parts of one node that cannot be held by two at once.
pub(super) fn in_each_others_way(
    one: &NodeAllocation,
    other: &NodeAllocation,
    inventory: &Inventory,
) -> bool {
    let same = |unit: &crate::model::gpu_unit::GpuUnit| other.gpus.iter().any(|own| own.gpu == unit.gpu);
    one.gpus.iter().any(same)
        || u64::from(one.cpus) + u64::from(other.cpus) > u64::from(inventory.cpus)
        || one.memory_bytes.saturating_add(other.memory_bytes) > inventory.memory_bytes
}

impl State {
    /// What a reservation holds, node by node, of nodes that there are.
    pub fn parts_of(&self, one: &Reservation) -> Vec<NodeAllocation> {
        if let Some(parts) = &one.parts {
            let there = parts.nodes.iter();
            there
                .filter(|part| self.nodes.contains_key(&part.node))
                .cloned()
                .collect()
        } else {
            let nodes = one
                .node_names()
                .filter_map(|name| Some((name, self.nodes.get(name)?)));
            nodes.map(|(name, node)| whole(name, &node.inventory)).collect()
        }
    }

    /// Jobs that hold something of a reservation's nodes, each once.
    pub(super) fn on_nodes_of(&self, one: &Reservation) -> impl Iterator<Item = &Arc<Job>> {
        let on = one.node_names().filter_map(|node| self.placed_on.get(node));
        let mut jobs: Vec<JobId> = on.flatten().copied().collect();
        jobs.sort_unstable();
        jobs.dedup();
        jobs.into_iter().filter_map(|id| self.jobs.get(&id))
    }
}

/// What a pass promises: to jobs outside of reservations, and to those in each, on what each of them may have.
pub(super) struct Books {
    now: Timestamp,
    /// Whose promise is looked at again.
    turn: usize,
    books: BTreeMap<Option<ReservationName>, Promises>,
}

impl Books {
    /// Nothing is promised yet. It is the turn of the promise of that rank to be looked at again.
    pub fn at(now: Timestamp, turn: usize) -> Self {
        Self {
            now,
            turn,
            books: BTreeMap::new(),
        }
    }

    /// These are, to jobs that may have what this one may.
    pub fn with(state: &State, now: Timestamp, job: &Job, made: Vec<Arc<Promise>>) -> Self {
        let inside = job.terms.reservation.clone();
        let closed = Reserved::to(state, inside.as_ref(), now);
        Self {
            now,
            turn: 0,
            books: BTreeMap::from([(inside, Promises::of(now, made, closed))]),
        }
    }

    /// To whoever may have what a job may.
    pub fn of(&mut self, state: &State, job: &Job) -> &mut Promises {
        let (now, turn) = (self.now, self.turn);
        let inside = &job.terms.reservation;
        self.books.entry(inside.clone()).or_insert_with(|| {
            let closed = Reserved::to(state, inside.as_ref(), now);
            Promises::of(now, Vec::new(), closed).in_turn(turn)
        })
    }

    /// The same, where somebody has been looked at who may.
    pub fn known(&self, inside: Option<&ReservationName>) -> Option<&Promises> {
        self.books.get(&inside.cloned())
    }

    /// Whose turn it is in the next pass.
    pub fn next_turn(&self) -> usize {
        self.known(None).map_or(0, Promises::next_turn)
    }

    /// All that is promised.
    pub fn made(&self) -> impl Iterator<Item = &Arc<Promise>> {
        self.books.values().flat_map(Promises::made)
    }

    /// A job was given something of these nodes.
    pub fn given(&mut self, state: &State, job: &Job, nodes: &[NodeName]) {
        for (inside, promises) in &mut self.books {
            if *inside == job.terms.reservation {
                promises.given(nodes);
            } else {
                promises.close(Reserved::to(state, inside.as_ref(), self.now));
            }
        }
    }
}

/// What a job holds is a part of what is closed in a time, and counted there.
pub(super) fn is_counted_in(
    promises: &[&Promise],
    job: JobId,
    (from, until): (Timestamp, Timestamp),
) -> bool {
    let mut in_force = promises.iter().filter(|promise| promise.overlaps(from, until));
    // They are in order.
    in_force.any(|promise| promise.stands_for.binary_search(&job).is_ok())
}
