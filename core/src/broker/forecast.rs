//! When something would start: the broker's own passes, on a copy, while jobs end at their deadlines.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Broker;
use super::change::Change;
use super::input::Caller;
use super::reject::Reject;
use super::state::State;
use crate::model::ids::{JobId, SessionId, UserName};
use crate::model::job::{Ending, Job, JobKind, JobState, Phase, Placed};
use crate::model::node::Observed;
use crate::model::resources::{Allocation, ResourceRequest, UnitRequest};
use crate::model::session::{Session, SessionSpec};
use crate::model::start::Conditions;
use crate::model::terms::Terms;
use crate::model::time::Timestamp;
use crate::placement::{WhyNot, seat};

/// Ends of jobs that a forecast looks ahead to: each is a pass. Of what starts later it is said that it waits.
const MAX_ENDS: usize = 1_000;

/// Of them those at which reservations begin or end: some recur for ever.
const MAX_RESERVATIONS: usize = 100;

/// Promised starts of each of those passes: each takes as long as many jobs that are only looked at.
const MAX_PROMISES: u32 = 4;

/// A start that is to be expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// When at the latest, if nothing is extended and nobody is let in before it.
    pub at: Timestamp,
    /// On what.
    pub allocation: Allocation,
}

/// One way to have what is asked for, or nearly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What would be asked for.
    pub request: ResourceRequest,
    /// When it would start; none: that cannot be said.
    pub start: Option<Start>,
}

/// What would come of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// With all defaults filled in.
    pub spec: SessionSpec,
    /// What was asked for comes first, then what could be had sooner, or better.
    pub choices: Vec<Choice>,
    /// Why what was asked for cannot start now; none: it can, or it waits behind others.
    pub why_not: Option<WhyNot>,
}

/// When a pending job starts; none: that cannot be said.
pub fn start_of(state: &State, job: JobId, now: Timestamp) -> Option<Start> {
    if let Some(promise) = state.promises.get(&job) {
        return Some(Start {
            at: promise.start,
            allocation: promise.allocation.clone(),
        });
    }
    let mut copy = Copy::of(state, now);
    copy.run_until(job)
}

/// When pending jobs start, those that are promised it and those of which it can be foreseen, as long as
/// `go_on` says so: it is asked before each pass.
pub fn starts_of(state: &State, now: Timestamp, go_on: impl FnMut() -> bool) -> BTreeMap<JobId, Timestamp> {
    let mut starts = Copy::of(state, now).run_all(go_on);
    let promised = state.promises.iter();
    starts.extend(promised.map(|(job, promise)| (*job, promise.start)));
    starts
}

/// What would come of a request of a user's.
///
/// # Errors
/// As when the session were opened.
pub fn plan(state: &State, caller: &Caller, spec: SessionSpec, now: Timestamp) -> Result<Plan, Reject> {
    let terms = state.terms(&caller.user, caller.role, &spec.terms)?;
    let spec = state.complete(spec, &terms)?;
    state.must_be_acceptable(&caller.user, &spec, &terms)?;
    let start = |request: &ResourceRequest| {
        let mut copy = Copy::of(state, now);
        let spec = SessionSpec {
            request: request.clone().into(),
            ..spec.clone()
        };
        let job = copy.submit(&caller.user, spec, terms.clone());
        copy.run_until(job)
    };
    let asked = Choice {
        start: start(&spec.request),
        request: (*spec.request).clone(),
    };
    let why_not = (!asked.is_now(now))
        .then(|| why_not(state, &caller.user, &spec, &terms))
        .flatten();
    let mut choices = vec![asked];
    for request in variants(&spec.request) {
        if !choices[0].leaves_to_wish(state, &request, now) {
            continue;
        }
        let choice = Choice {
            start: start(&request),
            request,
        };
        // What is only less is worth it at once.
        let better = choice.request.nvlink && !spec.request.nvlink;
        if choice.start.is_some() && choice.is_now(now) != better {
            choices.push(choice);
        }
    }
    Ok(Plan {
        spec,
        choices,
        why_not,
    })
}

fn why_not(state: &State, user: &UserName, spec: &SessionSpec, terms: &Terms) -> Option<WhyNot> {
    let needs = crate::placement::Needs {
        request: &spec.request,
        root: spec.container.root,
        within: state.within(terms),
        user: Some(user),
    };
    super::schedule::find_place(state, needs, &[]).err()
}

/// Nearly the same: with NVLink, without it, on fewer GPUs.
fn variants(request: &ResourceRequest) -> Vec<ResourceRequest> {
    let whole = request.unit == UnitRequest::Whole;
    let mut variants = Vec::new();
    if whole && request.gpus_per_node > 1 {
        variants.push(ResourceRequest {
            nvlink: !request.nvlink,
            ..request.clone()
        });
    }
    // Whole nodes with fewer GPUs are no less of a node.
    let mut fewer = if request.exclusive {
        0
    } else {
        request.gpus_per_node
    };
    while fewer > 1 {
        fewer = fewer.next_power_of_two() / 2;
        let part = |amount: u64| amount * u64::from(fewer) / u64::from(request.gpus_per_node);
        variants.push(ResourceRequest {
            gpus_per_node: fewer,
            cpus_per_node: (part(request.cpus_per_node.into()) as u32).max(1),
            memory_bytes_per_node: part(request.memory_bytes_per_node).max(1),
            ..request.clone()
        });
    }
    variants
}

impl Choice {
    /// It would start at once.
    pub fn is_now(&self, now: Timestamp) -> bool {
        self.start.as_ref().is_some_and(|start| start.at <= now)
    }

    /// This one, which was asked for, may be less than another: it has to wait, or its GPUs are not joined by NVLink.
    fn leaves_to_wish(&self, state: &State, other: &ResourceRequest, now: Timestamp) -> bool {
        if other.nvlink && !self.request.nvlink {
            self.start.as_ref().is_some_and(|start| !joined(state, start))
        } else {
            !self.is_now(now)
        }
    }
}

/// All GPUs of each of its nodes are joined by NVLink.
fn joined(state: &State, start: &Start) -> bool {
    start.allocation.nodes.iter().all(|part| {
        let node = state.nodes.get(&part.node);
        let worst = node.and_then(|node| seat(&node.inventory, &part.gpus).worst);
        worst.is_none_or(|(.., link)| link.is_nvlink())
    })
}

/// A broker that nobody hears.
struct Copy {
    broker: Broker,
    now: Timestamp,
    /// How often a reservation has begun or ended.
    reservations: usize,
}

impl Copy {
    fn of(state: &State, now: Timestamp) -> Self {
        let mut broker = Broker::of(state.clone());
        // Most of what is far ahead is said without it.
        let promises = &mut broker.state.settings.queue.promises;
        *promises = (*promises).min(MAX_PROMISES);
        // What is being ended does not wait for its deadline.
        let over = now;
        let held = state.deadlines.iter();
        let held = held.filter_map(|(deadline, id)| state.jobs.get(id).filter(|_| *deadline > over));
        for job in held {
            if let Phase::Placed(placed) = &job.phase
                && placed.ending.is_some()
            {
                let job = job.with_placed(Placed {
                    deadline: over,
                    ..(**placed).clone()
                });
                broker.state.insert_job(Arc::new(job));
            }
        }
        Self {
            broker,
            now,
            reservations: 0,
        }
    }

    /// Queues a job as if it came now.
    fn submit(&mut self, owner: &UserName, spec: SessionSpec, terms: Terms) -> JobId {
        let state = &mut self.broker.state;
        let (id, session) = (
            JobId(state.cluster.next_job),
            SessionId(state.cluster.next_session),
        );
        let job = Job {
            id,
            name: String::new(),
            kind: JobKind::Interactive,
            owner: owner.clone(),
            session: Some(session),
            request: spec.request.clone(),
            time_limit: spec.time_limit,
            submitted: self.now,
            after: None,
            terms,
            hold: None,
            begin: None,
            conditions: Conditions::default(),
            give_up: None,
            past_runs: Vec::new(),
            requeue: false,
            batch: None,
            array: None,
            phase: Phase::Pending,
        };
        // Tasks of arrays get numbers, too.
        state.cluster.next_job += 1;
        state
            .sessions
            .insert(session, Arc::new(Session::of_nobody(session, owner, spec, id)));
        state.insert_job(Arc::new(job));
        id
    }

    /// Lets jobs end at their deadlines, and patience at its end, until this one has started.
    fn run_until(&mut self, wanted: JobId) -> Option<Start> {
        let waits = Arc::clone(self.broker.state.jobs.get(&wanted)?);
        for _ in 0..MAX_ENDS {
            self.broker.schedule(self.now);
            self.hasten();
            let state = &self.broker.state;
            let started = state.first_of(&waits);
            if let Some(placed) = started.as_ref().and_then(|job| job.placed()) {
                return Some(Start {
                    at: placed.started,
                    allocation: placed.allocation.clone(),
                });
            }
            self.advance()?;
        }
        None
    }

    /// What is ended for another one does not wait for its deadline.
    fn hasten(&mut self) {
        let state = &mut self.broker.state;
        if !state.has_yielding() {
            return;
        }
        let grace = state.settings.grace;
        let running = state
            .deadlines
            .iter()
            .filter_map(|(_, id)| state.jobs.get(id))
            .cloned();
        let running: Vec<Arc<Job>> = running.collect();
        for job in running {
            let Phase::Placed(placed) = &job.phase else {
                continue;
            };
            let Some(leaving) = placed.leaving else { continue };
            let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            let deadline = Timestamp(leaving.killed.0.saturating_sub(grace));
            if deadline < placed.deadline {
                let placed = Placed {
                    deadline,
                    ..(**placed).clone()
                };
                state.insert_job(Arc::new(job.with_placed(placed)));
            }
        }
    }

    /// The same, until nothing waits any more: who starts when.
    fn run_all(&mut self, mut go_on: impl FnMut() -> bool) -> BTreeMap<JobId, Timestamp> {
        let mut starts = BTreeMap::new();
        let before = self.broker.state.clone();
        for _ in 0..MAX_ENDS {
            if self.broker.state.pending.is_empty() || !go_on() {
                break;
            }
            self.broker.schedule(self.now);
            self.hasten();
            for change in std::mem::take(&mut self.broker.output.changes) {
                if let Change::PutJob(job) = change
                    && let Some(placed) = job.placed()
                {
                    let waits = before.waits_in(&job).unwrap_or(job.id);
                    starts.entry(waits).or_insert(placed.started);
                }
            }
            if self.advance().is_none() {
                break;
            }
        }
        starts
    }

    /// Goes on to when the next job ends or asks for less; none: nothing will happen any more.
    fn advance(&mut self) -> Option<()> {
        let end = self.next_end_at();
        let state = &self.broker.state;
        let waits = [state.patience.get_min(), state.begins.get_min()];
        let waits = waits.into_iter().flatten().map(|(at, _)| *at);
        let reservation = state.next_reservation();
        let reservation = reservation.filter(|_| self.reservations < MAX_RESERVATIONS);
        let waits = waits.chain(state.next_pass).chain(reservation);
        self.now = self.now.max(end.into_iter().chain(waits).min()?);
        self.broker.end_patience(self.now);
        let (_, over) = self.broker.state.let_begin(self.now);
        self.reservations += usize::from(self.broker.state.let_reservations(self.now));
        for job in over {
            self.end(job);
        }
        while let Some((_, job)) = self.next_end() {
            self.end(job);
        }
        Some(())
    }

    /// When the next job has given back what it holds.
    fn next_end_at(&self) -> Option<Timestamp> {
        let state = &self.broker.state;
        let next = state.deadlines.get_min().filter(|(at, _)| *at < Timestamp::MAX);
        next.map(|(at, _)| at.after(state.settings.grace))
    }

    fn next_end(&self) -> Option<(Timestamp, JobId)> {
        let at = self.next_end_at().filter(|at| *at <= self.now)?;
        self.broker.state.deadlines.get_min().map(|(_, job)| (at, *job))
    }

    /// The job is over, and its nodes say so.
    fn end(&mut self, id: JobId) {
        let state = &mut self.broker.state;
        let Some(job) = state.jobs.get(&id).cloned() else {
            return;
        };
        let held = job.placed().map(|placed| placed.allocation.nodes.clone());
        let ending = Ending {
            state: JobState::Timeout,
            reason: String::new(),
            exit_code: None,
        };
        let nodes: Vec<_> = held.into_iter().flatten().map(|part| part.node).collect();
        let ended = job.queued_again(self.now).unwrap_or_else(|| Job {
            phase: Phase::Ended {
                ending,
                at: self.now,
                last: None,
            },
            ..(*job).clone()
        });
        state.insert_job(Arc::new(ended));
        for node in nodes {
            state.update_link(&node, |link| {
                if let Some(observed) = &link.observed {
                    let jobs = observed.jobs.iter().filter(|seen| seen.key.job != id);
                    link.observed = Some(Arc::new(Observed {
                        jobs: jobs.cloned().collect(),
                        ..(**observed).clone()
                    }));
                }
            });
        }
    }
}
