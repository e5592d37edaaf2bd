//! One scheduling pass: gives free resources to pending jobs.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;

use super::audit::{job_subject, units};
use super::backfill::Promise;
use super::gang;
use super::headroom::Headroom;
use super::preempt::Yielding;
use super::reserved::Books;
use super::state::State;
use super::unfit::Unfit;
use super::{Broker, Effect, Reject, RejectKind};
use crate::model::audit::Action;
use crate::model::ids::{JobId, NodeName, SessionId};
use crate::model::job::{Ending, Job, JobState, Placed, RankStatus};
use crate::model::qos::Preemption;
use crate::model::resources::{Allocation, ResourceRequest};
use crate::model::session::SessionSpec;
use crate::model::terms::Terms;
use crate::model::time::Timestamp;
use crate::placement::{Assume, Hosts, Needs, Part, WhyNot, find, fits, place, why_not};
use crate::queue::pending::Spot;
use crate::queue::{Kept, Wait};

/// Interactive demand is looked at anew after so long while somebody waits for what is kept for it.
const HEADROOM_AGE: Duration = Duration::from_mins(10);

/// What a look at a pending job leads to.
enum Next {
    /// The next one of its class is looked at.
    Job,
    /// It is an array of which a task has started: it is looked at again.
    Task,
    /// A limit keeps it from starting: it is no other with the rest of its class.
    Class,
    /// It waits, and so do all in its line.
    Line,
}

/// What a look at a job finds, promises aside.
enum Look {
    /// It has started.
    Started,
    /// A limit keeps it from starting.
    Limited,
    /// It waits for something that no promise can be made of.
    Waits,
    /// It waits for others to end.
    Blocked(Arc<Job>),
}

/// A pass under way.
struct Pass {
    now: Timestamp,
    promises: Books,
    /// What was promised to jobs that have not been looked at.
    former: OrdMap<JobId, Arc<Promise>>,
    unfit: Unfit,
    /// Who may be ended for others.
    yielding: Yielding,
    headroom: Headroom,
    /// Somebody waits for what is kept for interactive jobs.
    kept_out: bool,
    /// Lines of which a job has been looked at before its turn.
    looked: BTreeSet<u32>,
    addresses: gang::Addresses,
}

impl Pass {
    fn new(now: Timestamp, promises: Books, former: OrdMap<JobId, Arc<Promise>>) -> Self {
        Self {
            now,
            promises,
            former,
            unfit: Unfit::default(),
            yielding: Yielding::default(),
            headroom: Headroom::default(),
            kept_out: false,
            looked: BTreeSet::new(),
            addresses: gang::Addresses::default(),
        }
    }
}

impl Broker {
    /// Looks at the pending jobs in order and starts those that may.
    ///
    /// The first that could run on what the reachable nodes have, were it free, are promised a start
    /// ([`Promises`]); those behind them start if that does not move it. One that waits for something else (a limit,
    /// a node to come back) lets others pass.
    pub(super) fn schedule(&mut self, now: Timestamp) {
        self.state.refresh_standings(now, None);
        self.state.refresh_order();
        let former = std::mem::take(&mut self.state.promises);
        let mut pass = Pass::new(now, Books::at(now, self.state.improve_next), former);
        pass.yielding = Yielding::of(&self.state, now);
        // What others are being ended for, nobody else gets in between.
        let takers = pass.yielding.takers(pass.former.values().map(Arc::as_ref));
        for id in &takers {
            if let Some(line) = self.state.pending.line_of(*id) {
                let first = pass.looked.insert(line);
                self.consider(&mut pass, *id, line, first);
            }
        }
        let promised: BTreeSet<JobId> = pass.promises.made().map(|promise| promise.job).collect();
        // Lines that wait and others of whose jobs were to be looked at.
        let mut waiting = BTreeSet::new();
        let mut firsts = Vec::with_capacity(self.state.pending.lines());
        firsts.extend(self.state.pending.firsts());
        firsts.sort_unstable();
        let mut firsts = firsts.into_iter().peekable();
        // What comes after those that have been looked at.
        let mut next: BinaryHeap<Reverse<Spot>> = BinaryHeap::new();
        while let Some(spot) = soonest(&mut firsts, &mut next) {
            if !spot.turn && waiting.contains(&spot.line) {
                continue;
            }
            let looked = !spot.turn || pass.looked.contains(&spot.line);
            let led_to = if promised.contains(&spot.job()) {
                Next::Job
            } else if !looked && self.waits_on(&mut pass, spot.line) {
                Next::Line
            } else {
                self.consider(&mut pass, spot.job(), spot.line, !looked)
            };
            let with_class = match led_to {
                Next::Line => {
                    if !spot.turn {
                        waiting.insert(spot.line);
                    }
                    continue;
                }
                Next::Task => {
                    next.push(Reverse(Spot { turn: false, ..spot }));
                    continue;
                }
                Next::Class => false,
                Next::Job => true,
            };
            next.extend(self.state.pending.after(&spot, with_class).map(Reverse));
        }
        self.state.improve_next = pass.promises.next_turn();
        let made = pass.promises.made();
        self.state.promises = made.map(|promise| (promise.job, Arc::clone(promise))).collect();
        let headroom = pass.kept_out.then(|| now.after(HEADROOM_AGE));
        self.state.next_pass = pass.yielding.next_look(now).into_iter().chain(headroom).min();
    }

    /// Whether it is known without a look that jobs of a line wait, as they did when they were looked at, if they ever
    /// were: there is no room for them, they are promised nothing, and nobody is ended for them.
    fn waits_on(&mut self, pass: &mut Pass, number: u32) -> bool {
        let Some(line) = self.state.pending.line(number) else {
            return false;
        };
        let key = &line.key;
        let promises = pass.promises.known(key.reservation.as_ref());
        let Some(promises) = promises.filter(|_| key.reservation.is_none()) else {
            return false;
        };
        let has_promise = promises.made().len() < self.state.settings.queue.promises as usize;
        if has_promise || key.alone.is_some() || !pass.yielding.is_empty() {
            return false;
        }
        let asked = pass.unfit.asked(&key.request, key);
        let known = || pass.unfit.known(asked);
        match &line.why {
            Some(Wait::Resources) => line.when_free == Some((self.state.hosts.epoch(), true)) && known().now,
            Some(Wait::Priority(ahead)) => {
                let until = pass.now.after(key.time_limit).after(self.state.settings.grace);
                let (known, first) = (known(), promises.before(until));
                !known.now
                    && known.until.is_some_and(|at| at <= until)
                    && first.is_some_and(|promise| promise.job == *ahead)
            }
            None => {
                let waits = known().now && pass.unfit.would_fit(asked);
                if waits {
                    let when_free = (self.state.hosts.epoch(), true);
                    self.state.pending.set_waits(number, Wait::Resources, when_free);
                }
                waits
            }
            _ => false,
        }
    }

    /// Looks at a job that has just been queued, when nothing else has changed: those before it were looked at,
    /// and have what they can have.
    pub(super) fn schedule_new(&mut self, now: Timestamp, id: JobId) {
        if self.state.refresh_standings(now, Some(id)) {
            // The order may be another one.
            self.output.room = true;
            return;
        }
        let (Some(number), Some(place)) = (self.state.pending.line_of(id), self.state.pending.place_of(id))
        else {
            return;
        };
        let places = |promise: &JobId| self.state.pending.place_of(*promise);
        let mut promised: Vec<_> = self.state.promises.iter().collect();
        promised.sort_by_key(|(job, _)| places(job));
        let ahead = promised.partition_point(|(job, _)| places(job).is_some_and(|other| other < place));
        let outranks = ahead < promised.len();
        let has_room = promised.len() < self.state.settings.queue.promises as usize;
        // What was found for those in front of it in its line holds for it.
        let first = self.state.pending.first(number);
        let line = self.state.pending.line(number);
        let waits =
            line.is_some_and(|line| line.why.is_some()) && first.is_some_and(|first| first.place < place);
        if !waits {
            let job = &self.state.jobs[&id];
            let beside = |other: &JobId| self.state.jobs[other].terms.reservation == job.terms.reservation;
            let made = promised[..ahead].iter().filter(|(other, _)| beside(other));
            let made = made.map(|(_, promise)| Arc::clone(promise)).collect();
            let books = Books::with(&self.state, now, job, made);
            let mut pass = Pass::new(now, books, OrdMap::new());
            // Of an array as many tasks as may.
            while let Look::Started = self.look(&mut pass, id, number) {
                if self.state.pending.class_of(id).is_none() {
                    break;
                }
            }
        }
        let job = self.state.jobs.get(&id);
        let preempts = job.is_some_and(|job| self.state.may_preempt(job)) && self.state.has_yielding();
        let started = !self.state.pending.contains(id);
        // Who was promised something behind it is told anew; and it may be promised something itself.
        let blocked = self.state.pending.line(number).is_some_and(|line| {
            matches!(
                line.why,
                Some(Wait::Resources | Wait::Priority(_) | Wait::Reserved(_))
            )
        });
        self.output.room |=
            (started && outranks) || (!started && blocked && (outranks || has_room || preempts));
    }

    /// Starts a job if it may, and says why it waits if not, but promises nothing.
    fn look(&mut self, pass: &mut Pass, id: JobId, number: u32) -> Look {
        let (job, line) = (self.state.jobs.get(&id), self.state.pending.line(number));
        let (Some(job), Some(line)) = (job.map(Arc::clone), line.map(|line| Arc::clone(&line.key))) else {
            return Look::Waits;
        };
        if self.state.kept_by_limit(&job, pass.now).is_some() {
            return Look::Limited;
        }
        let asked = self.state.asked_now(&job);
        let state = &self.state;
        let time = state.time_from(&job, pass.now);
        if time.is_zero() {
            // Its reservation is just over.
            self.state.pending.set_why(number, Some(Wait::Resources));
            return Look::Waits;
        }
        let until = pass.now.after(time).after(state.settings.grace);
        let needs = state.needs(&job, &asked);
        let looked_up = pass.unfit.asked(&asked, &line);
        let known = pass.unfit.known(looked_up);
        let behind = known.until.is_some_and(|at| at <= until);
        if !known.now {
            let found = if behind {
                Err(None)
            } else {
                let kept = job
                    .session
                    .map(|session| self.kept_on(session))
                    .unwrap_or_default();
                let promises = pass.promises.of(state, &job);
                let hosts = promises.hosts_until(state, until).unwrap_or(&state.hosts);
                beside_headroom(state, &mut pass.headroom, pass.now, hosts, (&job, needs, &kept))
            };
            match found {
                Ok(allocation) => {
                    if let Some(reached) = state.kept_from(&job, &allocation, pass.now) {
                        let why = Wait::Limit(Box::new(reached));
                        self.state.pending.set_why(number, Some(why));
                        return Look::Limited;
                    }
                    let nodes = self.give(pass.now, &job, allocation, &mut pass.addresses);
                    pass.promises.given(&self.state, &job, &nodes);
                    return Look::Started;
                }
                Err(Some(kept)) => {
                    pass.kept_out = true;
                    self.state
                        .pending
                        .set_why(number, Some(Wait::Headroom(Box::new(kept))));
                    return Look::Waits;
                }
                Err(None) => {}
            }
            if fits(&state.hosts, needs, Assume::Now) {
                // What is promised, or reserved, is in the way.
                if !behind {
                    pass.unfit.learn_until(looked_up, until);
                }
                let promises = pass.promises.of(state, &job);
                let ahead = promises.before(until).map(|promise| Wait::Priority(promise.job));
                let reserved = promises.reserved(state, until, needs).map(Wait::Reserved);
                let why = reserved.or(ahead).unwrap_or(Wait::Resources);
                self.state.pending.set_why(number, Some(why));
                return Look::Blocked(job);
            }
            pass.unfit.learn_now(looked_up);
        }
        let epoch = state.hosts.epoch();
        let when_free = match self.state.pending.line(number).and_then(|line| line.when_free) {
            Some((at, when_free)) if at == epoch && line.alone.is_none() => when_free,
            _ => {
                let looked = || fits_when_free(state, needs);
                let when_free = pass.unfit.fits_when_free(looked_up, looked);
                self.state.pending.set_when_free(number, (epoch, when_free));
                when_free
            }
        };
        let needs = self.state.needs(&job, &asked);
        let state = &self.state;
        if holds_out(state, &job, needs).is_some() {
            // It could start, and waits by its own wish: nobody need wait behind it.
            self.state.pending.set_why(number, Some(Wait::Wish));
            return Look::Waits;
        }
        let why = if when_free { Wait::Resources } else { Wait::Nodes };
        self.state.pending.set_why(number, Some(why));
        if when_free {
            Look::Blocked(job)
        } else {
            Look::Waits
        }
    }

    /// Starts a job if it may, or promises it a start if it is among the first; `first`: of its line that is looked at.
    fn consider(&mut self, pass: &mut Pass, id: JobId, number: u32, first: bool) -> Next {
        if first {
            self.state.pending.set_why(number, None);
        }
        let job = match self.look(pass, id, number) {
            Look::Started if self.state.pending.class_of(id).is_some() => return Next::Task,
            // Its equals may start where it did.
            Look::Started => return Next::Job,
            Look::Limited => return Next::Class,
            Look::Waits => return Next::Line,
            Look::Blocked(job) => job,
        };
        let asked = self.state.asked_now(&job);
        if self.take_over(pass, &job, &asked) {
            return Next::Job;
        }
        let promises = pass.promises.of(&self.state, &job);
        if promises.made().len() >= self.state.settings.queue.promises as usize {
            return Next::Line;
        }
        let ending = pass.yielding.ending_for(id);
        match promises.promise(&self.state, (&job, &asked), &pass.former, ending) {
            Some(_) => Next::Job,
            None => Next::Line,
        }
    }

    /// Ends jobs that give way so that this one can start, if that is what it takes, and promises it their place.
    fn take_over(&mut self, pass: &mut Pass, job: &Job, asked: &ResourceRequest) -> bool {
        if job.terms.reservation.is_some() {
            // Those who run in its reservation are there by the same right.
            return false;
        }
        let promises = pass.promises.of(&self.state, job);
        let found = pass.yielding.look(&self.state, promises, pass.now, (job, asked));
        let kept_out = |headroom: &mut Headroom, allocation: &Allocation| {
            headroom
                .in_the_way(&self.state, pass.now, job, allocation)
                .is_some()
        };
        let limited = |allocation: &Allocation| self.state.kept_from(job, allocation, pass.now).is_some();
        let Some(found) = found.filter(|found| {
            let allocation = &found.promise.allocation;
            !limited(allocation) && !kept_out(&mut pass.headroom, allocation)
        }) else {
            return false;
        };
        for victim in &found.victims {
            let yields = self
                .state
                .jobs
                .get(victim)
                .and_then(|victim| self.state.gives_way(victim));
            let ending = Ending {
                state: JobState::Preempted,
                reason: format!("gave way to job {} of {}", job.id, job.owner),
                exit_code: None,
            };
            let again = yields == Some(Preemption::Requeue);
            self.begin_end(pass.now, *victim, ending, again, Some(job.id));
        }
        pass.yielding.taken(&found);
        promises.take_over(found.promise);
        true
    }

    fn kept_on(&self, session: SessionId) -> Vec<NodeName> {
        self.state
            .sessions
            .get(&session)
            .map(|session| session.kept_on.clone())
            .unwrap_or_default()
    }

    /// Gives a job, or the next task of an array, what it starts on. The nodes.
    fn give(
        &mut self,
        now: Timestamp,
        job: &Job,
        allocation: Allocation,
        addresses: &mut gang::Addresses,
    ) -> Vec<NodeName> {
        let job = &self.start_of_array(job);
        self.state.next_generation = self.state.next_generation.next();
        let nodes: Vec<NodeName> = allocation.nodes.iter().map(|part| part.node.clone()).collect();
        let charges = self.state.charges(&job.terms.qos, &allocation);
        let networks = addresses.networks(&self.state, job, &allocation, self.state.next_generation);
        let rank = |network| RankStatus {
            network,
            ..RankStatus::default()
        };
        let placed = Placed {
            generation: self.state.next_generation,
            ranks: networks.into_iter().map(rank).collect(),
            billing_milli: charges.iter().map(|charge| charge.billing_milli).sum(),
            charges,
            allocation,
            started: now,
            deadline: now.after(self.state.time_from(job, now)),
            ending: None,
            leaving: None,
            extended: None,
            signalled: None,
        };
        let detail = units(&placed);
        self.audit_own(
            Some(job.owner.clone()),
            Action::JobStart,
            job_subject(job),
            detail,
        );
        self.put_job(job.with_placed(placed));
        if let Some(session) = job.session.and_then(|id| self.state.sessions.get(&id)).cloned() {
            let mut session = (*session).clone();
            let new: Vec<_> = nodes
                .iter()
                .filter(|node| !session.kept_on.contains(node))
                .cloned()
                .collect();
            if !new.is_empty() {
                session.kept_on.extend(new);
                self.put_session(session);
            }
        }
        for node in &nodes {
            self.touch_job(node, job.id);
        }
        nodes
    }

    /// A job's place in a node's desired state changed.
    pub(super) fn touch_job(&mut self, node: &NodeName, job: JobId) {
        self.output.effects.insert(Effect::SendDesired(node.clone()));
        self.state.update_desired(node, |link| {
            link.generation += 1;
            link.since.insert(job, link.generation);
        });
    }
}

/// The one of both that comes first.
fn soonest(
    sorted: &mut Peekable<impl Iterator<Item = Spot>>,
    heap: &mut BinaryHeap<Reverse<Spot>>,
) -> Option<Spot> {
    match heap.peek() {
        Some(Reverse(other)) if sorted.peek().is_none_or(|spot| other < spot) => {
            heap.pop().map(|Reverse(spot)| spot)
        }
        _ => sorted.next(),
    }
}

/// What a job that could start on what is free still waits for, by its own wish; none: it could not, or does not.
pub(super) fn holds_out(state: &State, job: &Job, now: Needs<'_>) -> Option<String> {
    let least = state.keeping_off(job, job.request.at_last());
    if *least == *now.request {
        return None;
    }
    let needs = Needs {
        request: &least,
        ..now
    };
    fits(&state.hosts, needs, Assume::Now).then(|| {
        let nvlink = now.request.nvlink && !least.nvlink;
        let wish = if nvlink {
            "GPUs joined by NVLink"
        } else {
            "nodes on fewer switches"
        };
        let longest = job.request.relaxes_after().last().unwrap_or_default();
        format!(
            "it could start now, and holds out for {wish} for {} at most",
            minutes(longest)
        )
    })
}

fn minutes(time: std::time::Duration) -> String {
    match (time.as_secs() / 60, time.as_secs() % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

/// A place for a request on what is free: where its session's changes are kept, if that fits.
pub(super) fn find_place(
    state: &State,
    needs: Needs<'_>,
    kept_on: &[NodeName],
) -> Result<Allocation, WhyNot> {
    find_place_on(state, &state.hosts, needs, kept_on)
        .ok_or_else(|| why_not(&state.hosts, needs, Assume::Now))
}

/// The same, on what of the hosts may be held.
fn find_place_on(state: &State, hosts: &Hosts, needs: Needs<'_>, kept_on: &[NodeName]) -> Option<Allocation> {
    let parts = if needs.request.all_nodes() == 1 && !kept_on.is_empty() {
        find(&hosts.only(kept_on), needs, Assume::Now)
    } else {
        None
    };
    let parts = parts.or_else(|| find(hosts, needs, Assume::Now))?;
    Some(state.allocation(&parts, needs.request))
}

/// A place that leaves what is kept for interactive jobs; else what of it is in the way, if it is that.
fn beside_headroom(
    state: &State,
    headroom: &mut Headroom,
    now: Timestamp,
    hosts: &Hosts,
    (job, needs, kept_on): (&Job, Needs<'_>, &[NodeName]),
) -> Result<Allocation, Option<Kept>> {
    let mut models = BTreeSet::new();
    let mut first = None;
    let mut others = None;
    loop {
        let hosts = others.as_ref().unwrap_or(hosts);
        let Some(allocation) = find_place_on(state, hosts, needs, kept_on) else {
            return Err(first);
        };
        let Some(kept) = headroom.in_the_way(state, now, job, &allocation) else {
            return Ok(allocation);
        };
        // Another model may do as well.
        if !models.insert(kept.model.clone()) {
            return Err(first);
        }
        others = Some(hosts.only(state.nodes_without(&models)));
        first.get_or_insert(kept);
    }
}

/// The request fits on the nodes that are reachable and in service, were all of them free.
pub(super) fn fits_when_free(state: &State, needs: Needs<'_>) -> bool {
    fits(&state.hosts, needs, Assume::Emptied)
}

/// One sentence for people.
pub(super) fn summary(why: &WhyNot) -> String {
    match &why.nearest {
        Some(nearest) => format!("{}; nearest now: {nearest}", list(&why.refusals)),
        None => list(&why.refusals),
    }
}

fn list(refusals: &[(crate::placement::Refusal, u32)]) -> String {
    let parts: Vec<String> = refusals
        .iter()
        .map(|(refusal, hosts)| {
            format!(
                "{refusal} on {hosts} {}",
                if *hosts == 1 { "node" } else { "nodes" }
            )
        })
        .collect();
    if parts.is_empty() {
        "no node is there".to_owned()
    } else {
        parts.join(", ")
    }
}

impl State {
    /// What parts of nodes hold for a request.
    pub(super) fn allocation(&self, parts: &[Part], request: &ResourceRequest) -> Allocation {
        let held = parts.iter().filter_map(|part| {
            let node = self.nodes.get(&part.node)?;
            Some(part.allocation(&node.inventory, request))
        });
        Allocation {
            nodes: held.collect(),
        }
    }

    /// Refuses a request that no set of the nodes that it may have could ever hold.
    pub(super) fn must_be_possible(&self, spec: &SessionSpec, terms: &Terms) -> Result<(), Reject> {
        let needs = Needs {
            request: &spec.request.at_last(),
            root: spec.container.root,
            within: self.within(terms),
            user: None,
        };
        match place(&self.hosts, needs, Assume::Whole) {
            Ok(_) => Ok(()),
            Err(why) => {
                let hint = match why.nearest {
                    Some(nearest) => format!("the nearest that this cluster has: {nearest}"),
                    None => "`carrel nodes` lists what this cluster has".to_owned(),
                };
                let message = if self.nodes.is_empty() {
                    "this cluster has no nodes yet".to_owned()
                } else {
                    let whole = match &terms.reservation {
                        Some(name) => format!("reservation {name}"),
                        None => "this cluster".to_owned(),
                    };
                    format!("{whole} can never hold that: {}", list(&why.refusals))
                };
                Err(Reject::new(RejectKind::Invalid, message).hint(hint))
            }
        }
    }
}
