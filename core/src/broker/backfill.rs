//! Promised starts: when and where a job that waits starts at the latest, and what may start before it.
//!
//! A pass goes through pending jobs in order. The first that cannot start are each promised a time and a place:
//! where what runs there, and what is promised to those before it, has ended by then. Whoever comes behind may
//! start now if the GPUs, CPUs and memory that it takes are back by the time that they are promised for. So a
//! promise is kept as long as nobody in front comes, no node is lost, and no deadline is moved.
//!
//! This is conservative backfill (Mu'alem and Feitelson, IEEE TPDS 12(6), 2001) for the first so many jobs,
//! with placement's own answer in place of a count of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::future::Future;
use super::reserved::{Reserved, is_counted_in};
use super::state::State;
use super::usage::NodeUsage;
use crate::model::ids::{Generation, JobId, JobKey, NodeName, ReservationName};
use crate::model::job::Job;
use crate::model::resources::{Allocation, ResourceRequest};
use crate::model::time::Timestamp;
use crate::placement::{Assume, Hosts, Needs, able, find, fits};

/// Times at which a place is looked for; after these the one when everything has ended.
const MAX_TRIES: usize = 12;
/// So many of them follow each other.
const NEAR_TRIES: usize = 4;
/// Promises that are looked at again in one pass because they could be better.
const MAX_IMPROVED: usize = 4;
/// Of these, the first so many jobs' are looked at in every pass, and the others' in turn.
const ALWAYS_IMPROVED: usize = 2;

/// A start that is promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// To whom.
    pub job: JobId,
    /// When at the latest.
    pub start: Timestamp,
    /// Until when it may hold what it gets.
    pub end: Timestamp,
    /// On what.
    pub allocation: Allocation,
    /// Jobs that are ended for it.
    pub takes_over: Vec<JobId>,
    /// Jobs that hold a part of it already: it is a reservation's, and they are in it.
    pub stands_for: Vec<JobId>,
    /// How many were promised something before it.
    pub rank: usize,
}

impl Promise {
    fn key(&self) -> JobKey {
        JobKey {
            job: self.job,
            generation: Generation(0),
        }
    }

    pub(super) fn overlaps(&self, from: Timestamp, until: Timestamp) -> bool {
        self.start < until && self.end > from
    }

    /// What decides which of two is the first to start.
    fn place(&self) -> (Timestamp, JobId) {
        (self.start, self.job)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.allocation.nodes.iter().map(|part| &part.node)
    }

    fn on<'a>(
        &'a self,
        node: &'a NodeName,
    ) -> impl Iterator<Item = &'a crate::model::resources::NodeAllocation> {
        self.allocation
            .nodes
            .iter()
            .filter(move |part| part.node == *node)
    }
}

/// The promises of one pass, in the order in which they are made.
#[derive(Default)]
pub(super) struct Promises {
    now: Timestamp,
    made: Vec<Arc<Promise>>,
    /// The same, by the nodes that they are for.
    by_node: BTreeMap<NodeName, Vec<Arc<Promise>>>,
    /// The same, and what is closed, the first start first.
    by_start: Vec<Arc<Promise>>,
    /// Hosts without what the first so many promises, by their starts, are for.
    shadows: BTreeMap<usize, Shadow>,
    /// What comes free when, looked at when it is first asked for.
    future: Option<Future>,
    improved: usize,
    /// Whose turn it is to be looked at again, by rank.
    turn: usize,
    /// What is closed to whom this is promised.
    closed: Reserved,
    /// Hosts without the first so many places that are closed.
    open: BTreeMap<usize, Hosts>,
}

/// Hosts as they may be used.
struct Shadow {
    hosts: Hosts,
    /// Of these nodes something was given away since.
    stale: BTreeSet<NodeName>,
}

impl Promises {
    /// These, beside what is closed.
    pub fn of(now: Timestamp, made: Vec<Arc<Promise>>, closed: Reserved) -> Self {
        let mut promises = Self {
            now,
            ..Self::default()
        };
        for promise in made {
            promises.keep(promise);
        }
        promises.close(closed);
        promises
    }

    fn keep(&mut self, promise: Arc<Promise>) {
        for node in promise.nodes() {
            let on = self.by_node.entry(node.clone()).or_default();
            on.push(Arc::clone(&promise));
        }
        self.made.push(promise);
    }

    /// The turn to be looked at again is with whoever is the first of that rank.
    pub fn in_turn(self, turn: usize) -> Self {
        Self { turn, ..self }
    }

    /// Whose turn it is in the next pass.
    pub fn next_turn(&self) -> usize {
        if self.improved < MAX_IMPROVED {
            0
        } else {
            self.turn
        }
    }

    /// Something else is closed from now on.
    pub fn close(&mut self, closed: Reserved) {
        self.by_start = self.made.iter().chain(closed.all()).cloned().collect();
        self.by_start.sort_by_key(|promise| promise.place());
        self.closed = closed;
        self.future = None;
        self.shadows.clear();
        self.open.clear();
    }

    /// All, in order.
    pub fn made(&self) -> &[Arc<Promise>] {
        &self.made
    }

    /// All, and what is closed at some moment of a time.
    pub fn beside(&self, (from, until): (Timestamp, Timestamp)) -> Vec<&Promise> {
        let made = self.made.iter().map(Arc::as_ref);
        made.chain(self.closed.between(from, until)).collect()
    }

    /// The reservation that keeps a job from starting now that would run until a time, whatever else is promised.
    pub fn reserved(&mut self, state: &State, until: Timestamp, needs: Needs<'_>) -> Option<ReservationName> {
        let name = self.closed.first_before(until)?.clone();
        let promised = self.before(until).is_some();
        let open = promised
            && self
                .open(state, until)
                .is_some_and(|hosts| fits(hosts, needs, Assume::Now));
        (!open).then_some(name)
    }

    /// The hosts without what is closed before a time; none: nothing is.
    fn open(&mut self, state: &State, until: Timestamp) -> Option<&Hosts> {
        let closed = self.closed.before(until);
        let count = closed.len();
        if count > 0 && !self.open.contains_key(&count) {
            let mut hosts = state.hosts.clone();
            for (node, closed) in by_node(closed) {
                shade(state, &mut hosts, node, self.now, &closed);
            }
            self.open.insert(count, hosts);
        }
        self.open.get(&count)
    }

    /// The first of those who were promised something before a time.
    pub fn before(&self, until: Timestamp) -> Option<&Promise> {
        self.made
            .iter()
            .map(Arc::as_ref)
            .find(|promise| promise.start < until)
    }

    /// The hosts with what of them may be held from now until a time; none: all that is free may.
    pub fn hosts_until(&mut self, state: &State, until: Timestamp) -> Option<&Hosts> {
        let count = self.by_start.partition_point(|promise| promise.start < until);
        if count == 0 {
            return None;
        }
        if !self.shadows.contains_key(&count) {
            let before = self.shadows.range(..count).next_back();
            let (known, mut stale) = before.map_or((0, BTreeSet::new()), |(known, shadow)| {
                (*known, shadow.stale.clone())
            });
            let hosts = before.map_or(&state.hosts, |(_, shadow)| &shadow.hosts).clone();
            let more = self.by_start[known..count].iter();
            stale.extend(more.flat_map(|promise| promise.nodes().cloned()));
            self.shadows.insert(count, Shadow { hosts, stale });
        }
        let shadow = self.shadows.get_mut(&count)?;
        let stale = std::mem::take(&mut shadow.stale);
        if !stale.is_empty() {
            let kept = by_node(self.by_start[..count].iter().map(Arc::as_ref));
            for node in &stale {
                let kept = kept.get(node).map_or(&[][..], Vec::as_slice);
                shade(state, &mut shadow.hosts, node, self.now, kept);
            }
        }
        Some(&shadow.hosts)
    }

    /// Something was given away of these nodes.
    pub fn given(&mut self, nodes: &[NodeName]) {
        for shadow in self.shadows.values_mut() {
            shadow.stale.extend(nodes.iter().cloned());
        }
        self.open.clear();
        if let Some(future) = &mut self.future {
            future.changed(nodes);
        }
    }

    /// Promises a job the earliest start that can be kept, no later than what it was promised before; `former` is what
    /// was promised to all that have not been looked at. None that was behind another has to
    /// give way so that the other's promise gets better; one that was overtaken since has.
    /// `ending` are jobs that end for it.
    pub fn promise(
        &mut self,
        state: &State,
        (job, asked): (&Job, &ResourceRequest),
        former: &OrdMap<JobId, Arc<Promise>>,
        ending: Vec<JobId>,
    ) -> Option<Arc<Promise>> {
        let kept = former.get(&job.id).filter(|former| self.holds(state, former));
        let promise = match kept {
            Some(kept) => {
                let done = |id: &JobId| self.made.iter().any(|made| made.job == *id);
                let beside = |id: &JobId| {
                    let other = state.jobs.get(id);
                    other.is_some_and(|other| other.terms.reservation == job.terms.reservation)
                };
                let behind = former
                    .values()
                    .filter(|other| other.job != job.id && !done(&other.job) && beside(&other.job));
                // Those that were behind it before do not give way; those that it has overtaken since do.
                let (others, overtaken): (Vec<_>, Vec<_>) =
                    behind.cloned().partition(|other| other.rank > kept.rank);
                let rank = self.made.len();
                let in_turn = rank < ALWAYS_IMPROVED || rank >= self.turn;
                let worth_it = (in_turn && self.improved < MAX_IMPROVED) || !overtaken.is_empty();
                // What others are ended for is what it gets.
                let better = (worth_it && kept.takes_over.is_empty())
                    .then(|| self.earliest(state, job, asked, Some(kept.start), &others))
                    .flatten();
                better.map_or_else(|| Arc::clone(kept), Arc::new)
            }
            None => Arc::new(Promise {
                takes_over: ending,
                ..self.earliest(state, job, asked, None, &[])?
            }),
        };
        self.make(&promise);
        Some(promise)
    }

    /// Promises a job what others are ended for.
    pub fn take_over(&mut self, promise: Promise) {
        // When those give back what they hold is another time now.
        self.future = None;
        self.make(&Arc::new(promise));
    }

    fn make(&mut self, promise: &Arc<Promise>) {
        let rank = self.made.len();
        let mut promise = Arc::clone(promise);
        if promise.rank != rank {
            promise = Arc::new(Promise {
                rank,
                ..(*promise).clone()
            });
        }
        let at = self
            .by_start
            .partition_point(|other| other.place() < promise.place());
        // Whoever must keep off those behind it must keep off it, too.
        let behind = self.shadows.split_off(&(at + 1));
        self.shadows.extend(behind.into_iter().map(|(count, mut shadow)| {
            shadow.stale.extend(promise.nodes().cloned());
            (count + 1, shadow)
        }));
        self.by_start.insert(at, Arc::clone(&promise));
        self.keep(promise);
    }

    /// Whether what was promised before can still be kept, beside what was promised since to those in front.
    fn holds(&self, state: &State, former: &Promise) -> bool {
        let closed: Vec<&Promise> = self.closed.between(former.start, former.end).collect();
        former.start >= self.now
            && former.allocation.nodes.iter().all(|part| {
                let Some(node) = state.nodes.get(&part.node) else {
                    return false;
                };
                let span = (former.start, former.end);
                let made = self
                    .by_node
                    .get(&part.node)
                    .into_iter()
                    .flatten()
                    .map(Arc::as_ref);
                let promises: Vec<&Promise> = made.chain(closed.iter().copied()).collect();
                let used = usage_between(state, &part.node, self.now, span, &promises, &BTreeSet::new());
                let has = |unit: &crate::model::gpu_unit::GpuUnit| {
                    let mut gpus = node.inventory.gpus.iter();
                    gpus.any(|gpu| gpu.uuid == unit.gpu && gpu.drained.is_none())
                };
                state.unavailable(node).is_none()
                    && part
                        .gpus
                        .iter()
                        .all(|unit| has(unit) && used.in_the_way(unit).is_none())
                    && used.cpus + u64::from(part.cpus) <= u64::from(node.inventory.cpus)
                    && used.memory.saturating_add(part.memory_bytes) <= node.inventory.memory_bytes
            })
    }

    /// The earliest start that is found, if it is before a time.
    fn earliest(
        &mut self,
        state: &State,
        job: &Job,
        asked: &ResourceRequest,
        before: Option<Timestamp>,
        others: &[Arc<Promise>],
    ) -> Option<Promise> {
        let future = self.future.get_or_insert_with(|| Future::of(state, self.now));
        let first = future.first(state, asked)?;
        let is_better = |at: Timestamp| before.is_none_or(|before| at < before);
        if !is_better(first) {
            return None;
        }
        if before.is_some() {
            self.improved += 1;
            self.turn = self.made.len() + 1;
        }
        let ends = self.made.iter().chain(others).map(|promise| promise.end);
        let mut times: Vec<Timestamp> = future.ends().chain(ends).filter(|at| *at >= first).collect();
        times.push(first);
        let last = times.iter().copied().max().unwrap_or(first);
        times.extend(self.closed.ends([first, last]).filter(|at| *at >= first));
        times.sort_unstable();
        times.dedup();
        let last = times.last().copied().unwrap_or(last);
        let able = able(&state.hosts, state.needs(job, asked));
        let mut tries = Tries::default();
        for at in times.into_iter().take_while(|at| is_better(*at)) {
            // What comes free elsewhere is of no use to it.
            let is_of_use = || at == first || !future.is_only_elsewhere(at, |node| able.contains(node));
            if at < last && !(is_of_use() && tries.is_next()) {
                continue;
            }
            let time = state.time_from(job, at);
            if time.is_zero() {
                continue;
            }
            let end = at.after(time).after(state.settings.grace);
            let made = self.made.iter().chain(others).map(Arc::as_ref);
            let promises = made.chain(self.closed.between(at, end));
            let mut hosts = future.hosts_at(state, at).clone();
            for (node, promises) in by_node(promises.filter(|promise| promise.overlaps(at, end))) {
                // What is promised of hosts that are no use without it, too, makes no difference.
                if hosts.room(node).is_some_and(|room| !room.could_hold(asked)) {
                    continue;
                }
                let usage = usage_between(state, node, self.now, (at, end), &promises, &BTreeSet::new());
                if let Some(room) = state.room_beside(node, Some(&usage)) {
                    hosts.set_room(node, room);
                }
            }
            let Some(parts) = find(&hosts, state.needs(job, asked), Assume::Now) else {
                continue;
            };
            return Some(Promise {
                job: job.id,
                start: at,
                end,
                allocation: state.allocation(&parts, asked),
                takes_over: Vec::new(),
                stands_for: Vec::new(),
                rank: 0,
            });
        }
        None
    }
}

/// Promises by the nodes that they are for.
pub(super) fn by_node<'a>(
    promises: impl IntoIterator<Item = &'a Promise>,
) -> BTreeMap<&'a NodeName, Vec<&'a Promise>> {
    let mut on: BTreeMap<&NodeName, Vec<&Promise>> = BTreeMap::new();
    for promise in promises {
        for node in promise.nodes() {
            on.entry(node).or_default().push(promise);
        }
    }
    on
}

/// Which of many times are tried: the first ones, then ever farther ones.
#[derive(Default)]
struct Tries {
    seen: usize,
    tried: usize,
}

impl Tries {
    /// Whether the next one is.
    fn is_next(&mut self) -> bool {
        let at = if self.tried < NEAR_TRIES {
            self.tried
        } else {
            NEAR_TRIES - 2 + (1 << (self.tried + 1 - NEAR_TRIES))
        };
        let is_next = self.seen == at && self.tried < MAX_TRIES;
        self.seen += 1;
        self.tried += usize::from(is_next);
        is_next
    }
}

/// Takes from a host what must not be held from now on because it is promised.
fn shade(state: &State, hosts: &mut Hosts, node: &NodeName, now: Timestamp, promises: &[&Promise]) {
    let until = Timestamp::MAX;
    let usage = usage_between(state, node, now, (now, until), promises, &BTreeSet::new());
    if let Some(room) = state.room_beside(node, Some(&usage)) {
        hosts.set_room(node, room);
    }
}

/// What is held of a node in a time to come, by what runs now and by promises: each GPU that anybody holds in it,
/// and the most CPUs and memory that are held at once. Some are `gone` by then. Promises are those that may be for this
/// node; others change nothing.
pub(super) fn usage_between(
    state: &State,
    node: &NodeName,
    now: Timestamp,
    (from, until): (Timestamp, Timestamp),
    promises: &[&Promise],
    gone: &BTreeSet<JobId>,
) -> NodeUsage {
    let mut usage = state
        .usage
        .get(node)
        .map(|usage| (**usage).clone())
        .unwrap_or_default();
    // Until when each job holds how many CPUs and how much memory.
    let mut held: Vec<(Timestamp, u64, u64)> = Vec::new();
    for id in state.placed_on.get(node).into_iter().flatten() {
        let Some(job) = state.jobs.get(id) else { continue };
        let (Some(placed), Some(key)) = (job.placed(), job.key()) else {
            continue;
        };
        let end = state.end_of(placed, now).unwrap_or(Timestamp::MAX);
        for part in placed.unreleased().filter(|part| part.node == *node) {
            if end <= from || gone.contains(id) || is_counted_in(promises, *id, (from, until)) {
                usage.let_go(key, part);
            } else {
                held.push((end, part.cpus.into(), part.memory_bytes));
            }
        }
    }
    let (mut most_cpus, mut most_memory) = (usage.cpus, usage.memory);
    let overlapping = || promises.iter().filter(|promise| promise.overlaps(from, until));
    for promise in overlapping() {
        promise
            .on(node)
            .for_each(|part| usage.hold_gpus(promise.key(), part));
    }
    for at in overlapping().map(|promise| promise.start.max(from)) {
        let (mut cpus, mut memory) = (usage.cpus, usage.memory);
        for (_, less_cpus, less_memory) in held.iter().filter(|(end, ..)| *end <= at) {
            cpus = cpus.saturating_sub(*less_cpus);
            memory = memory.saturating_sub(*less_memory);
        }
        for part in overlapping()
            .filter(|promise| promise.start <= at && promise.end > at)
            .flat_map(|promise| promise.on(node))
        {
            cpus += u64::from(part.cpus);
            memory = memory.saturating_add(part.memory_bytes);
        }
        (most_cpus, most_memory) = (most_cpus.max(cpus), most_memory.max(memory));
    }
    (usage.cpus, usage.memory) = (most_cpus, most_memory);
    usage
}
