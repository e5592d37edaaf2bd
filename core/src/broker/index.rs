//! What follows from jobs: who waits with whom, who holds what, what time brings.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::state::State;
use crate::model::account::Account;
use crate::model::ids::{AccountName, JobId, ReservationName, UserName};
use crate::model::job::{Hold, Job, Phase};
use crate::model::resources::ResourceRequest;
use crate::model::start::{Dependency, DependencyKind};
use crate::model::time::Timestamp;
use crate::placement::{Assume, Needs, fits};
use crate::queue::{Holder, Tallies, Tally};

/// Why a pending job may not start, whatever is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aside {
    /// Somebody holds it.
    Held(Hold),
    /// It does not start before.
    Begin(Timestamp),
    /// Its reservation begins then.
    Reservation(ReservationName, Timestamp),
    /// Its reservation is over, or was taken back.
    NoReservation(ReservationName),
    /// Its reservation is not for it any more.
    NotFor(ReservationName),
    /// So many tasks of its array run, and no more may at once.
    Throttle(u32),
    /// Its session's former run holds something still.
    Former(JobId),
    /// Another job has not become what it waits for.
    Dependency(Dependency),
    /// And never will.
    Never(Dependency),
}

/// When a job was over.
pub(super) fn ended(job: &Job) -> Option<Timestamp> {
    match job.phase {
        Phase::Ended { at, .. } => Some(at),
        Phase::Pending | Phase::Placed(_) => None,
    }
}

impl State {
    /// Puts a job in place of its former self, indexes and all.
    pub(super) fn insert_job(&mut self, job: Arc<Job>) {
        let old = self.jobs.insert(job.id, Arc::clone(&job));
        if let Some(placed) = old.as_ref().and_then(|old| old.placed()) {
            self.deadlines.remove(&(placed.deadline, job.id));
            self.count_held(&job, placed, false);
        }
        if job.placed().is_none_or(|placed| placed.ending.is_some()) {
            self.idle.remove(&job.id);
        }
        if let Some(placed) = job.placed() {
            self.deadlines.insert((placed.deadline, job.id));
            self.count_held(&job, placed, true);
        }
        self.count_in_array(old.as_deref(), &job);
        self.note_submit_key(&job);
        let decay = self.settings.queue.decay();
        self.tallies.change(&self.accounts, old.as_deref(), &job, decay);
        self.count_by_model(old.as_deref(), &job);
        self.count_patience(old.as_deref(), &job);
        self.count_time_parts(old.as_deref(), &job);
        self.count_waiting(old.as_deref(), &job);
        let held = |job: &Job| job.last_placed().map(|placed| placed.allocation.nodes.clone());
        let parts = old.as_deref().and_then(held).into_iter().chain(held(&job));
        for part in parts.flatten() {
            self.refresh(&part.node);
        }
        if let Some(at) = old.as_deref().and_then(ended) {
            self.ended.remove(&(at, job.id));
        }
        if let Some(at) = ended(&job) {
            self.ended.insert((at, job.id));
        }
        let over = |job: &Job| matches!(job.phase, Phase::Ended { .. });
        // One that is over in a restored store may be found running.
        let starts = |job: &Job| job.placed().is_some();
        if over(&job) != old.as_deref().is_some_and(over)
            || starts(&job) && !old.as_deref().is_some_and(starts)
        {
            self.see_to_dependents(&job);
        }
    }

    /// Of a job that is over as well: it may be so before its user's request is repeated.
    fn note_submit_key(&mut self, job: &Job) {
        let key = job.batch.as_ref().map(|batch| &batch.request_key);
        if let Some(key) = key.filter(|key| !key.is_empty()) {
            self.submit_keys
                .insert((job.owner.clone(), key.clone()), job.number());
        }
    }

    /// Puts an account in place of its former self. Its place in the tree may be another one: everything that is
    /// counted on accounts is counted anew, where anything is counted on this one.
    pub(super) fn insert_account(&mut self, account: Arc<Account>) {
        let old = self.accounts.insert(account.name.clone(), Arc::clone(&account));
        let same_place = old.as_ref().map(|old| &old.parent) == Some(&account.parent);
        if !same_place && self.is_counted_on(&account.name) {
            self.count_anew();
        }
        self.standings.0 = Timestamp(0);
    }

    /// Forgets an account: what was used in it counts for nobody above it any more.
    pub(super) fn remove_account(&mut self, name: &AccountName) {
        self.accounts.remove(name);
        if self.is_counted_on(name) {
            self.count_anew();
        }
        self.standings.0 = Timestamp(0);
    }

    /// Jobs of an account, or below it, hold something, wait, or have used something.
    fn is_counted_on(&self, name: &AccountName) -> bool {
        self.tallies.of(&Holder::Account(name.clone())) != Tally::default()
    }

    /// Shares or priorities are others: fair-share is worked out anew.
    pub(super) fn forget_order(&mut self) {
        self.standings.0 = Timestamp(0);
    }

    /// Counts all jobs on accounts anew.
    pub(super) fn count_anew(&mut self) {
        let decay = self.settings.queue.decay();
        self.tallies = Tallies::default();
        for past in self.past_use.values() {
            self.tallies.count_past(&self.accounts, past, decay);
        }
        for job in self.jobs.values() {
            self.tallies.change(&self.accounts, None, job, decay);
        }
    }

    /// Takes note of when a job will ask for less, once, and forgets it when it waits no more.
    fn count_patience(&mut self, old: Option<&Job>, job: &Job) {
        let waits = |job: &Job| matches!(job.phase, Phase::Pending);
        let relaxes = job.request.relaxes_after().map(|time| job.submitted.after(time));
        let times = relaxes.chain(Self::keeps_off_until(job)).map(|at| (at, job.id));
        match (old.is_some_and(waits), waits(job)) {
            (false, true) => self.patience.extend(times),
            (true, false) => times.for_each(|time| {
                self.patience.remove(&time);
            }),
            (true, true) | (false, false) => {}
        }
    }

    /// Puts a pending job among those that it waits with.
    fn count_waiting(&mut self, old: Option<&Job>, job: &Job) {
        if let Some(old) = old {
            let times = [old.begin, old.give_up].into_iter().flatten();
            times.for_each(|at| {
                self.begins.remove(&(at, job.id));
            });
            for former in old.awaited() {
                self.forget_dependent(former, job.id);
            }
            if old.conditions.singleton {
                self.forget_singleton(old);
            }
        }
        if !matches!(job.phase, Phase::Pending) {
            self.pending.remove(job.id);
            self.promises.remove(&job.id);
            return;
        }
        // Until time has passed it: passes know what time it is.
        let times = [job.begin, job.give_up].into_iter().flatten();
        self.begins
            .extend(times.filter(|at| *at > self.ticked).map(|at| (at, job.id)));
        for former in job.awaited() {
            self.dependents.entry(former).or_default().insert(job.id);
        }
        if job.conditions.singleton {
            self.singletons.entry(name_of(job)).or_default().insert(job.id);
        }
        if self.aside(job).is_some() {
            self.promises.remove(&job.id);
            self.pending.set_aside(job.id);
            return;
        }
        self.line_up(job);
    }

    fn forget_singleton(&mut self, job: &Job) {
        let name = name_of(job);
        if let Some(same) = self.singletons.get_mut(&name) {
            same.remove(&job.id);
            if same.is_empty() {
                self.singletons.remove(&name);
            }
        }
    }

    fn forget_dependent(&mut self, former: JobId, job: JobId) {
        if let Some(dependents) = self.dependents.get_mut(&former) {
            dependents.remove(&job);
            if dependents.is_empty() {
                self.dependents.remove(&former);
            }
        }
    }

    /// Why a pending job may not start, whatever is free; none: it may.
    pub fn aside(&self, job: &Job) -> Option<Aside> {
        if let Some(hold) = job.hold {
            return Some(Aside::Held(hold));
        }
        let former = job.after.and_then(|former| self.jobs.get(&former));
        if let Some(former) = former.filter(|former| !former.state().is_final()) {
            return Some(Aside::Former(former.id));
        }
        if let Some(begin) = job.begin.filter(|begin| self.begins.contains(&(*begin, job.id))) {
            return Some(Aside::Begin(begin));
        }
        if let Some(outside) = self.outside(job) {
            return Some(outside);
        }
        if let Some(running) = self.throttled(job) {
            return Some(Aside::Throttle(running));
        }
        self.unmet(job).map(|(dependency, never)| {
            if never {
                Aside::Never(dependency)
            } else {
                Aside::Dependency(dependency)
            }
        })
    }

    /// A dependency of a job that is not met, and that it will never be.
    fn unmet(&self, job: &Job) -> Option<(Dependency, bool)> {
        let conditions = &job.conditions;
        if conditions.is_empty() {
            return None;
        }
        let met = |dependency: &Dependency| {
            if self.is_by_task(dependency) && job.array.is_some() {
                // What starts next has what it waits for: of the others it is asked in their turn.
                return match self.next_task(job) {
                    Some(_) => Some(true),
                    None => (!self.never_by_task(job, dependency)).then_some(false),
                };
            }
            match self.outcome(dependency, None) {
                Some((state, started)) => dependency.kind.is_met(state, started),
                // Records are kept; one that is gone was over long ago.
                None => Some(true),
            }
        };
        if conditions.singleton {
            let mut earlier = self.live_before(job);
            if let Some(other) = earlier.next() {
                let dependency = Dependency {
                    kind: DependencyKind::AfterAny,
                    job: other,
                    task: None,
                };
                return Some((dependency, false));
            }
        }
        let all = || conditions.dependencies.iter();
        if conditions.any {
            if all().any(|one| met(one) == Some(true)) {
                return None;
            }
            let open = all().find(|one| met(one) == Some(false)).map(|one| (*one, false));
            return open.or_else(|| all().next().map(|one| (*one, true)));
        }
        let never = all().find(|one| met(one).is_none()).map(|one| (*one, true));
        never.or_else(|| all().find(|one| met(one) == Some(false)).map(|one| (*one, false)))
    }

    /// Earlier jobs of the same name and user that are not over.
    fn live_before<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = JobId> + 'a {
        let waiting = self.pending.ids();
        let running = self.deadlines.iter().map(|(_, id)| *id);
        let live = waiting.chain(running).filter(move |id| *id < job.id);
        live.filter(move |id| {
            let other = self.jobs.get(id);
            other.is_some_and(|other| {
                other.name == job.name && other.owner == job.owner && other.number() != job.number()
            })
        })
    }

    /// Jobs that wait for one may start when it is over, and only then.
    fn see_to_dependents(&mut self, former: &Job) {
        // Whoever waits for all of a name is told of each that ends; the others wait for the first of them.
        let same = self.singletons.get(&name_of(former));
        if let Some(id) = same.and_then(|same| same.get_min().copied()) {
            self.look_again(id);
        }
        for id in self.dependents.get(&former.number()).cloned().unwrap_or_default() {
            self.look_again(id);
        }
    }

    /// Jobs whose time to begin has come may start. Those whose time is up: they are to be cancelled.
    pub(super) fn let_begin(&mut self, now: Timestamp) -> (bool, Vec<JobId>) {
        self.ticked = self.ticked.max(now);
        let due = self.begins.iter().take_while(|(at, _)| *at <= now);
        let due: Vec<_> = due.copied().collect();
        for entry in &due {
            self.begins.remove(entry);
            self.look_again(entry.1);
        }
        let up = |id: &JobId| {
            let job = self.jobs.get(id);
            job.and_then(|job| job.give_up).is_some_and(|at| at <= now)
        };
        let over = due.iter().map(|(_, id)| *id).filter(up).collect();
        (!due.is_empty(), over)
    }

    /// Puts a pending job where it belongs by now.
    pub(super) fn look_again(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get(&id).cloned() {
            self.count_waiting(Some(&job), &job);
        }
    }

    /// What a pending job asks for by now; less than it was submitted with, once its patience is over or if that
    /// can never be.
    pub(super) fn asked_now<'a>(&self, job: &'a Job) -> Cow<'a, ResourceRequest> {
        self.keeping_off(job, self.wished_now(job))
    }

    /// The same, wherever it has failed before.
    pub(super) fn wished_now<'a>(&self, job: &'a Job) -> Cow<'a, ResourceRequest> {
        let over = |time: &Duration| !self.patience.contains(&(job.submitted.after(*time), job.id));
        let times: Vec<Duration> = job.request.relaxes_after().collect();
        let over = times.iter().filter(|time| over(time)).count();
        let now = times[..over].last().copied().unwrap_or_default();
        let stages = std::iter::once(now).chain(times[over..].iter().copied());
        let mut stages = stages.map(|waited| job.request.after_waiting(waited)).peekable();
        while let Some(stage) = stages.next() {
            if stages.peek().is_none() || fits(&self.hosts, self.needs(job, &stage), Assume::Whole) {
                return stage;
            }
        }
        job.request.at_last()
    }

    /// What a job's nodes must have, where it asks for this.
    pub(super) fn needs<'a>(&'a self, job: &'a Job, request: &'a ResourceRequest) -> Needs<'a> {
        Needs {
            request,
            root: self.wants_root(job),
            within: self.within(&job.terms),
            user: Some(&job.owner),
        }
    }

    /// A job's user is to be root in its containers.
    pub(super) fn wants_root(&self, job: &Job) -> bool {
        if let Some(batch) = &job.batch {
            return batch.container.root;
        }
        let session = job.session.and_then(|id| self.sessions.get(&id));
        session.is_some_and(|session| session.spec.container.root)
    }
}

/// Of what `--dependency singleton` lets one run at a time.
fn name_of(job: &Job) -> (UserName, String) {
    (job.owner.clone(), job.name.clone())
}
