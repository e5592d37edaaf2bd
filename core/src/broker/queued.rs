//! The queue as people see it: what waits, in order, and why, worked out once for jobs that are equal.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::index::Aside;
use super::state::State;
use super::view::state_reason;
use crate::model::ids::JobId;
use crate::model::job::{Hold, Job, Phase};
use crate::model::time::Timestamp;
use crate::queue::Wait;

/// A job that waits.
#[derive(Clone, Debug)]
pub struct Queued {
    /// Which.
    pub job: Arc<Job>,
    /// Its place, 1 is next; none: it may not start yet, whatever is free.
    pub position: Option<usize>,
    /// Points of all factors; none: as above.
    pub priority: Option<i64>,
    /// Why it waits, Slurm's word first, in short.
    pub reason: String,
}

/// Everything that waits, the next one first; what may not start yet comes last.
pub fn queued(state: &State, now: Timestamp) -> Vec<Queued> {
    let classes = state.pending.classes();
    let points = classes.flat_map(|class| state.points(class, now));
    let points: BTreeMap<JobId, i64> = points.collect();
    let mut reasons: BTreeMap<u32, String> = BTreeMap::new();
    let mut reason = |job: &Job| match state.pending.class_of(job.id) {
        Some((number, _)) => reasons
            .entry(number)
            .or_insert_with(|| short(state, state.wait_of(job).as_deref()))
            .clone(),
        None => aside(state, job),
    };
    let jobs = state.in_order().into_iter().enumerate();
    jobs.filter_map(|(index, id)| {
        let job = state.jobs.get(&id)?;
        let priority = points.get(&id).copied();
        Some(Queued {
            job: Arc::clone(job),
            position: priority.is_some().then_some(index + 1),
            priority,
            reason: reason(job),
        })
    })
    .collect()
}

/// Why a class waits, without what is missing on which host.
fn short(state: &State, why: Option<&Wait>) -> String {
    match why {
        None => "None".to_owned(),
        Some(Wait::Resources) => "Resources".to_owned(),
        Some(Wait::Nodes) => "ReqNodeNotAvail".to_owned(),
        Some(Wait::Wish) => "Resources: it holds out for something better".to_owned(),
        Some(Wait::Headroom(kept)) => format!("Headroom: {} are kept for interactive jobs", kept.model),
        Some(Wait::Priority(ahead)) => format!("Priority: behind job {ahead}"),
        Some(Wait::Reserved(name)) => state.say_reserved(name),
        Some(Wait::Limit(reached)) => {
            let said = state.say_limit(reached, state.ticked);
            let word = said.split_once(':').map_or(said.as_str(), |(word, _)| word);
            format!("{word}: {}", reached.holder)
        }
    }
}

/// Why a job may not start yet.
fn aside(state: &State, job: &Job) -> String {
    match state.aside(job) {
        Some(Aside::Held(Hold::User)) => "JobHeldUser".to_owned(),
        Some(Aside::Held(Hold::Operator)) => "JobHeldAdmin".to_owned(),
        Some(Aside::Begin(_)) => "BeginTime".to_owned(),
        Some(Aside::Reservation(name, begins)) => format!("Reservation: {name} begins {}", begins.utc()),
        Some(Aside::NoReservation(name)) => format!("ReservationDeleted: {name}"),
        Some(Aside::NotFor(name)) => format!("ReservationInvalid: {name}"),
        Some(Aside::Throttle(_)) => "JobArrayTaskLimit".to_owned(),
        Some(Aside::Former(former)) => format!("Dependency: job {former}"),
        Some(Aside::Dependency(on)) => format!("Dependency: job {}", on.on()),
        Some(Aside::Never(on)) => format!("DependencyNeverSatisfied: job {}", on.on()),
        None => "None".to_owned(),
    }
}

/// Reasons in full of many jobs: those that are equal are looked at once.
#[derive(Debug)]
pub struct Reasons<'a> {
    state: &'a State,
    known: BTreeMap<u32, String>,
}

impl<'a> Reasons<'a> {
    /// None known yet.
    pub fn of(state: &'a State) -> Self {
        Self {
            state,
            known: BTreeMap::new(),
        }
    }

    fn takes_over(&self, job: &Job) -> bool {
        let promise = self.state.promises.get(&job.id);
        promise.is_some_and(|promise| !promise.takes_over.is_empty())
    }

    /// Why a job is in its state.
    pub fn reason(&mut self, job: &Job) -> String {
        let class = match &job.phase {
            // Whoever is promised what others give up says so, and nobody else.
            Phase::Pending => (self.state.pending.class_of(job.id)).filter(|_| !self.takes_over(job)),
            Phase::Placed(_) | Phase::Ended { .. } => None,
        };
        match class {
            Some((number, _)) => {
                let reason = || state_reason(self.state, job);
                self.known.entry(number).or_insert_with(reason).clone()
            }
            None => state_reason(self.state, job),
        }
    }
}
