//! What users and operators change of jobs that wait, and what others keep them from.

use std::sync::Arc;
use std::time::Duration;

use crate::broker::input::{Caller, JobUpdate, MailEdit};
use crate::broker::names::out_of_reach;
use crate::broker::{Broker, Call, Named, Reject, RejectKind, Reply, State};
use crate::model::array::JobRef;
use crate::model::audit::Action;
use crate::model::batch::Batch;
use crate::model::ids::JobId;
use crate::model::indices::IndexSet;
use crate::model::job::{Hold, Job, Phase};
use crate::model::mail::{MailTypes, MailWish};
use crate::model::start::{Conditions, Dependency, MAX_DEPENDENCIES};
use crate::model::terms::MAX_NICE;
use crate::model::time::Timestamp;
use crate::model::user::Role;

/// People that a refusal names: more would say less.
const MAX_NAMED: usize = 3;

impl Broker {
    pub(super) fn on_update_job(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        name: &JobRef,
        update: &JobUpdate,
    ) -> Result<Reply, Reject> {
        caller.must(Call::UpdateJob)?;
        let named = self.state.named(name).map_err(|reject| match caller.job() {
            Some(_) => out_of_reach(),
            None => reject,
        });
        let (jobs, tasks): (Vec<Arc<Job>>, _) = match named? {
            Named::Job(id) => (self.state.jobs.get(&id).cloned().into_iter().collect(), None),
            Named::Tasks(array, tasks) => (self.state.jobs_of_tasks(array, &tasks), Some(tasks)),
        };
        if jobs.iter().any(|job| !self.state.within_reach(caller, job)) {
            return Err(out_of_reach());
        }
        let foreign = jobs.iter().any(|job| job.owner != caller.user);
        if foreign {
            caller.must_reach_others(Call::UpdateJob)?;
        }
        if let Some(most) = update.throttle {
            self.throttle(name, &jobs, most)?;
            if foreign {
                self.audit(caller, Action::JobUpdate, format!("job {name}"), "throttle");
            }
            let rest = JobUpdate {
                throttle: None,
                ..update.clone()
            };
            return if rest == JobUpdate::default() {
                Ok(Reply::Done)
            } else {
                self.on_update_job(now, caller, name, &rest)
            };
        }
        if let Some(edit) = &update.mail {
            self.change_mail(name, &jobs, tasks.as_ref(), edit)?;
            if foreign {
                self.audit(caller, Action::JobUpdate, format!("job {name}"), "mail");
            }
            let rest = JobUpdate {
                mail: None,
                ..update.clone()
            };
            return if rest == JobUpdate::default() {
                Ok(Reply::Done)
            } else {
                self.on_update_job(now, caller, name, &rest)
            };
        }
        let waits = |job: &&Arc<Job>| matches!(job.phase, Phase::Pending);
        let waiting: Vec<Arc<Job>> = jobs.iter().filter(waits).cloned().collect();
        let runs = |job: &&Arc<Job>| job.placed().is_some_and(|placed| placed.ending.is_none());
        let limited = update.time_limit.filter(|_| jobs.iter().any(|job| runs(&job)));
        let rest = JobUpdate {
            time_limit: None,
            ..update.clone()
        };
        if waiting.is_empty() && (limited.is_none() || rest != JobUpdate::default()) {
            let state = jobs.last().map_or("over", |job| job.state().name());
            return Err(Reject::new(
                RejectKind::WrongState,
                format!("job {name} does not wait: it is {state}"),
            )
            .hint(
                "only what waits can be held, let go or moved; of what runs the time limit can be changed",
            ));
        }
        for (job, time) in jobs.iter().filter(runs).zip(limited.into_iter().cycle()) {
            self.limit_running(now, caller, job, time)?;
        }
        let mut changes = String::new();
        for job in waiting {
            let changed = self.state.updated(caller, &job, update)?;
            if changed == *job {
                continue;
            }
            changes = difference(&job, &changed);
            let apart = match &tasks {
                Some(tasks) => self.set_apart(&job, tasks),
                None => job,
            };
            self.put_job(Job {
                id: apart.id,
                array: apart.array.clone(),
                ..changed
            });
            self.output.room = true;
        }
        if foreign && !changes.is_empty() {
            self.audit(caller, Action::JobUpdate, format!("job {name}"), changes);
        }
        Ok(Reply::Done)
    }
}

impl Broker {
    /// A job that runs ends so long after its start. Less is its user's to say; more, if nobody is harmed, or an operator
    /// says so.
    fn limit_running(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        job: &Arc<Job>,
        time: Duration,
    ) -> Result<(), Reject> {
        let Some(placed) = job.placed().cloned() else {
            return Ok(());
        };
        let deadline = placed.started.after(time);
        self.state.must_be_time(time)?;
        // Operators decide for all others, as where a session is extended.
        let decides = caller.role >= Role::Operator && job.owner != caller.user;
        if deadline > placed.deadline && !decides {
            self.state.must_keep_longest(&job.owner, &job.terms, time)?;
            self.state.must_keep_off(now, job, deadline)?;
            self.state.must_harm_nobody(now, job, deadline)?;
        }
        let changed = Job {
            time_limit: time,
            ..(**job).clone()
        };
        self.put_deadline(&changed, placed, deadline);
        if job.owner != caller.user {
            self.audit(caller, Action::JobUpdate, format!("job {}", job.id), "time limit");
        }
        Ok(())
    }

    /// What mail is sent of batch jobs from now on, of what is not over.
    fn change_mail(
        &mut self,
        name: &JobRef,
        jobs: &[Arc<Job>],
        tasks: Option<&IndexSet>,
        edit: &MailEdit,
    ) -> Result<(), Reject> {
        let live: Vec<&Arc<Job>> = jobs.iter().filter(|job| !job.state().is_final()).collect();
        if live.is_empty() {
            let state = jobs.last().map_or("over", |job| job.state().name());
            let why = format!("job {name} is over: it is {state}");
            return Err(Reject::new(RejectKind::WrongState, why).hint("no more mail is sent of it"));
        }
        for job in live {
            let Some(batch) = &job.batch else {
                let why = format!("job {name} is no batch job: no mail is sent of it");
                return Err(Reject::new(RejectKind::WrongState, why));
            };
            let known = batch.mail.clone();
            let known = known.unwrap_or_else(|| MailWish {
                types: MailTypes::default(),
                to: String::new(),
            });
            let wish = MailWish {
                types: edit.types.clone().unwrap_or(known.types),
                to: edit.to.clone().unwrap_or(known.to),
            };
            if let Some(wrong) = wish.wrong() {
                return Err(Reject::new(RejectKind::Invalid, wrong));
            }
            // To whom is kept for when it is said of what.
            let mail = Some(wish).filter(|wish| !wish.types.events.is_empty() || !wish.to.is_empty());
            if mail == batch.mail {
                continue;
            }
            let batch = Arc::new(Batch {
                mail,
                ..(**batch).clone()
            });
            let apart = match tasks {
                Some(tasks) if matches!(job.phase, Phase::Pending) => self.set_apart(job, tasks),
                Some(_) | None => Arc::clone(job),
            };
            self.put_job(Job {
                batch: Some(batch),
                ..(*apart).clone()
            });
        }
        Ok(())
    }

    /// So many tasks of an array run at once from now on; none that runs is ended for it.
    fn throttle(&mut self, name: &JobRef, jobs: &[Arc<Job>], most: u32) -> Result<(), Reject> {
        let array = jobs
            .first()
            .and_then(|job| job.array.as_ref())
            .map(|part| part.array);
        let Some(array) = array else {
            return Err(Reject::new(
                RejectKind::WrongState,
                format!("job {name} is no array: it has no throttle"),
            )
            .hint("one is submitted with --array=0-99%5"));
        };
        let most = (most > 0).then_some(most);
        let Some(known) = self.state.arrays.get(&array).cloned() else {
            return Ok(());
        };
        if most.is_some_and(|most| known.running > most) && !known.record.lowered {
            self.put_array(crate::model::array::ArrayRecord {
                lowered: true,
                ..(*known.record).clone()
            });
        }
        let jobs = self.state.jobs_of_tasks(array, &known.record.tasks);
        // What is over says what held then.
        for job in jobs.iter().filter(|job| !job.state().is_final()) {
            let part = job.array.as_ref().filter(|part| part.throttle != most);
            if let Some(part) = part {
                let part = crate::model::array::ArrayPart {
                    throttle: most,
                    ..(**part).clone()
                };
                self.put_job(Job {
                    array: Some(Arc::new(part)),
                    ..(**job).clone()
                });
                self.output.room = true;
            }
        }
        Ok(())
    }
}

/// What has become otherwise, for the log.
fn difference(old: &Job, new: &Job) -> String {
    let changes = [
        ("hold", old.hold != new.hold),
        ("nice", old.terms.nice != new.terms.nice),
        ("top", old.terms.top != new.terms.top),
        ("begin", old.begin != new.begin),
        ("time limit", old.time_limit != new.time_limit),
        ("dependencies", old.conditions != new.conditions),
    ];
    let changed: Vec<&str> = changes
        .iter()
        .filter(|(_, is)| *is)
        .map(|(name, _)| *name)
        .collect();
    changed.join(", ")
}

impl State {
    fn updated(&self, caller: &Caller, job: &Job, update: &JobUpdate) -> Result<Job, Reject> {
        let mut job = job.clone();
        let operator = caller.role >= Role::Operator;
        if let Some(hold) = update.hold {
            let own = if job.owner == caller.user {
                Hold::User
            } else {
                Hold::Operator
            };
            job.hold = match (hold, job.hold) {
                (false, Some(Hold::Operator)) if !operator => {
                    return Err(
                        Reject::new(RejectKind::Denied, format!("an operator holds job {}", job.id))
                            .hint("only an operator lets it go"),
                    );
                }
                (false, _) => None,
                (true, Some(hold)) => Some(hold),
                (true, None) => Some(own),
            };
        }
        if let Some(nice) = update.nice {
            if nice.abs() > MAX_NICE {
                return Err(Reject::new(
                    RejectKind::Invalid,
                    format!("a nice value of {nice} is beyond {MAX_NICE}"),
                ));
            }
            if nice < job.terms.nice.min(0) && !operator {
                return Err(Reject::new(
                    RejectKind::Denied,
                    "a negative nice value takes the role operator",
                )
                .hint("a positive one lets others pass"));
            }
            job.terms.nice = nice;
        }
        if let Some(top) = update.top {
            if !operator {
                return Err(Reject::new(
                    RejectKind::Denied,
                    "to put a job before all others takes the role operator",
                ));
            }
            job.terms.top = top.then(|| self.before_all());
        }
        if let Some(begin) = update.begin {
            job.begin = (begin > self.ticked).then_some(begin);
        }
        if let Some(time) = update.time_limit {
            self.must_be_time(time)?;
            self.must_keep_longest(&job.owner, &job.terms, time)
                .or_else(|refused| if operator { Ok(()) } else { Err(refused) })?;
            job.time_limit = time;
        }
        if let Some(conditions) = &update.conditions {
            let dependencies = conditions.dependencies.iter();
            let conditions = Conditions {
                dependencies: dependencies.map(|on| self.by_array(*on)).collect(),
                ..conditions.clone()
            };
            self.must_exist(&conditions)?;
            if self.waits_for_itself(job.number(), &conditions) {
                return Err(Reject::new(
                    RejectKind::Invalid,
                    format!("job {} would wait for itself", job.label()),
                ));
            }
            job.conditions = conditions;
        }
        Ok(job)
    }

    /// Refuses what is no time limit on this cluster.
    fn must_be_time(&self, time: Duration) -> Result<(), Reject> {
        if time.is_zero() || time > self.settings.max_time {
            return Err(Reject::new(RejectKind::Invalid, "that is no time limit here")
                .hint("between a second and the cluster's longest"));
        }
        Ok(())
    }

    /// The place before all that are before all others.
    fn before_all(&self) -> i64 {
        let tops = self.pending.classes().filter_map(|(_, class, _)| class.key.top);
        tops.min().map_or(0, |first| first - 1)
    }

    /// Refuses dependencies on jobs that there are not, and too many.
    pub(super) fn must_exist(&self, conditions: &Conditions) -> Result<(), Reject> {
        if conditions.dependencies.len() > MAX_DEPENDENCIES {
            return Err(Reject::new(
                RejectKind::Invalid,
                format!(
                    "{} dependencies are too many ({MAX_DEPENDENCIES} at most)",
                    conditions.dependencies.len()
                ),
            ));
        }
        let mut wanted = conditions.dependencies.iter();
        let is_there = |one: &Dependency| match (self.arrays.get(&one.job), one.task) {
            (Some(array), Some(task)) => array.record.tasks.contains(task),
            (Some(_), None) => true,
            (None, task) => task.is_none() && self.jobs.contains_key(&one.job),
        };
        match wanted.find(|one| !is_there(one)) {
            Some(unknown) => Err(Reject::new(
                RejectKind::NotFound,
                format!("there is no job {} to depend on", unknown.on()),
            )
            .hint("`carrel queue --all` lists those that wait and run")),
            None => Ok(()),
        }
    }

    /// Dependencies lead from a job back to it.
    fn waits_for_itself(&self, job: JobId, conditions: &Conditions) -> bool {
        let mut open: Vec<JobId> = conditions.dependencies.iter().map(|one| one.job).collect();
        let mut seen = std::collections::BTreeSet::new();
        while let Some(next) = open.pop() {
            if next == job {
                return true;
            }
            if !seen.insert(next) {
                continue;
            }
            let of_array = self.arrays.get(&next).map(|array| array.waiting.iter().copied());
            let others = of_array.into_iter().flatten().chain([next]);
            let others = others.filter_map(|other| self.jobs.get(&other));
            open.extend(others.flat_map(|other| other.awaited()));
        }
        false
    }

    /// Refuses to move a deadline if somebody who waits would start later for it than was promised.
    pub(super) fn must_harm_nobody(
        &self,
        now: Timestamp,
        job: &Job,
        deadline: Timestamp,
    ) -> Result<(), Reject> {
        let later = self.harmed(now, job, deadline);
        let Some((_, first, _)) = later.first() else {
            return Ok(());
        };
        let minutes = |at: Timestamp| at.since(now).as_secs().div_ceil(60);
        let named = later.iter().take(MAX_NAMED).map(|(id, promised, then)| {
            let owner = self
                .jobs
                .get(id)
                .map_or_else(String::new, |job| job.owner.to_string());
            match then {
                Some(then) => format!(
                    "job {id} of {owner} would start in {} min and not in {}",
                    minutes(*then),
                    minutes(*promised)
                ),
                None => format!(
                    "job {id} of {owner}, promised a start in {} min, would have none",
                    minutes(*promised)
                ),
            }
        });
        let mut who = named.collect::<Vec<_>>().join("; ");
        if later.len() > MAX_NAMED {
            who.push_str(&format!("; and {} more", later.len() - MAX_NAMED));
        }
        let from = job.placed().map_or(now, |placed| placed.deadline);
        let free = first.since(from.after(self.settings.grace));
        let enough = self.longest_harmless(now, job, free);
        let hint = match enough.as_secs() / 60 {
            0 => "nothing can be added without it; what you have runs until its deadline".to_owned(),
            minutes => format!("{minutes} minutes can be added without it"),
        };
        Err(Reject::new(RejectKind::WrongState, format!("others wait for it: {who}")).hint(hint))
    }

    /// Jobs that would start later than was promised, when that was, and when they would.
    fn harmed(
        &self,
        now: Timestamp,
        job: &Job,
        deadline: Timestamp,
    ) -> Vec<(JobId, Timestamp, Option<Timestamp>)> {
        let Some(placed) = job.placed() else {
            return Vec::new();
        };
        let end = deadline.after(self.settings.grace);
        let nodes = |node| placed.allocation.nodes.iter().any(|part| part.node == node);
        let touched = |promise: &crate::broker::Promise| {
            let mut parts = promise.allocation.nodes.iter();
            promise.start < end && parts.any(|part| nodes(part.node.clone()))
        };
        if !self.promises.values().any(|promise| touched(promise)) {
            return Vec::new();
        }
        // What would come of it is what comes of it on a copy.
        let mut copy = Broker::of(self.clone());
        let mut moved = job.clone();
        if let Phase::Placed(placed) = &mut moved.phase {
            placed.deadline = deadline;
        }
        copy.state.insert_job(std::sync::Arc::new(moved));
        copy.schedule(now);
        let mut later = Vec::new();
        for promise in self.promises.values() {
            let started = copy
                .state
                .jobs
                .get(&promise.job)
                .is_some_and(|job| job.placed().is_some());
            let then = copy.state.promises.get(&promise.job).map(|promise| promise.start);
            if !started && then.is_none_or(|then| then > promise.start) {
                later.push((promise.job, promise.start, then));
            }
        }
        later.sort_by_key(|(job, promised, _)| (*promised, *job));
        later
    }

    /// The longest time, up to this one, that can be added without harm to anybody; zero where that is not it.
    fn longest_harmless(&self, now: Timestamp, job: &Job, most: Duration) -> Duration {
        let from = job.placed().map_or(now, |placed| placed.deadline);
        let whole = Duration::from_secs(most.as_secs() / 60 * 60);
        if self.harmed(now, job, from.after(whole)).is_empty() {
            whole
        } else {
            Duration::ZERO
        }
    }
}
