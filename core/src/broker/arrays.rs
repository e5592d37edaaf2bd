//! Job arrays: which jobs their tasks are, how many run, and what has become of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;

use super::Broker;
use super::change::Change;
use super::input::Caller;
use super::reject::{Reject, RejectKind};
use super::state::State;
use crate::model::array::{ArrayPart, ArrayRecord, JobRef};
use crate::model::ids::JobId;
use crate::model::indices::IndexSet;
use crate::model::job::{Job, JobState, Phase};
use crate::model::start::{Dependency, DependencyKind};

/// An array, as the jobs in the state make it.
#[derive(Clone, Debug)]
pub struct Array {
    /// What is kept: with what has become of tasks that have left the state.
    pub record: Arc<ArrayRecord>,
    /// The same, with what has become of those that are over and still in it.
    pub known: ArrayRecord,
    /// Jobs that are one task.
    pub tasks: OrdMap<u32, JobId>,
    /// Jobs that are several: they wait, or were cancelled before they started.
    pub parts: BTreeSet<JobId>,
    /// Those of both that wait.
    pub waiting: BTreeSet<JobId>,
    /// Tasks that hold something.
    pub running: u32,
}

impl Array {
    fn of(record: Arc<ArrayRecord>) -> Self {
        Self {
            known: (*record).clone(),
            record,
            tasks: OrdMap::new(),
            parts: BTreeSet::new(),
            waiting: BTreeSet::new(),
            running: 0,
        }
    }

    /// None of its jobs is in the state.
    fn is_spent(&self) -> bool {
        self.tasks.is_empty() && self.parts.is_empty()
    }

    /// Takes a job in, or out.
    fn count(&mut self, job: &Job, part: &ArrayPart, there: bool) {
        match (part.task(), there) {
            (Some(task), true) => drop(self.tasks.insert(task, job.id)),
            (Some(task), false) => drop(self.tasks.remove(&task)),
            (None, true) => {
                self.parts.insert(job.id);
            }
            (None, false) => {
                self.parts.remove(&job.id);
            }
        }
        match &job.phase {
            Phase::Pending if there => {
                self.waiting.insert(job.id);
            }
            Phase::Pending => {
                self.waiting.remove(&job.id);
            }
            Phase::Placed(_) if there => self.running += 1,
            Phase::Placed(_) => self.running = self.running.saturating_sub(1),
            Phase::Ended { ending, .. } if there => {
                self.known.note(&part.tasks, ending.state, ending.exit_code);
            }
            Phase::Ended { .. } => self.known.take_back(&part.tasks),
        }
    }
}

/// What a name of jobs means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A job.
    Job(JobId),
    /// These tasks of an array.
    Tasks(JobId, IndexSet),
}

impl State {
    /// Puts an array in place of its former self, before its jobs.
    pub(super) fn insert_array(&mut self, record: Arc<ArrayRecord>) {
        let id = record.id;
        match self.arrays.get_mut(&id) {
            Some(array) => Arc::make_mut(array).record = record,
            None => drop(self.arrays.insert(id, Arc::new(Array::of(record)))),
        }
    }

    /// Takes note of a job of an array in place of its former self.
    pub(super) fn count_in_array(&mut self, old: Option<&Job>, job: &Job) {
        let Some(part) = &job.array else { return };
        let Some(array) = self.arrays.get_mut(&part.array) else {
            return;
        };
        let array = Arc::make_mut(array);
        let before = array.running;
        if let Some((old, was)) = old.and_then(|old| Some((old, old.array.as_ref()?))) {
            array.count(old, was, false);
        }
        array.count(job, part, true);
        let (after, waiting) = (array.running, array.waiting.clone());
        let full = |running: u32| part.throttle.is_some_and(|most| running >= most);
        if full(before) != full(after) {
            for id in waiting {
                self.look_again(id);
            }
        }
    }

    /// Takes out a job of an array that is over. What is to be kept of the array by now.
    pub(super) fn remove_from_array(&mut self, job: &Job) -> Option<Arc<ArrayRecord>> {
        let part = job.array.as_ref()?;
        let array = Arc::make_mut(self.arrays.get_mut(&part.array)?);
        match part.task() {
            Some(task) => drop(array.tasks.remove(&task)),
            None => {
                array.parts.remove(&job.id);
            }
        }
        if let Phase::Ended { ending, .. } = &job.phase {
            let record = Arc::make_mut(&mut array.record);
            record.note(&part.tasks, ending.state, ending.exit_code);
        }
        Some(Arc::clone(&array.record))
    }

    /// Arrays that may leave: no job of theirs is in the state, and none waits for them.
    pub(super) fn spent_arrays(&self) -> Vec<Arc<ArrayRecord>> {
        let spent = self.arrays.values().filter(|array| array.is_spent());
        spent
            .filter(|array| !self.dependents.contains_key(&array.record.id))
            .map(|array| Arc::clone(&array.record))
            .collect()
    }

    /// How many tasks of an array run, where no more may at once.
    pub(super) fn throttled(&self, job: &Job) -> Option<u32> {
        let part = job.array.as_ref()?;
        let most = part.throttle?;
        let array = self.arrays.get(&part.array)?;
        (array.running >= most).then_some(array.running)
    }

    /// What a dependency is on has become, for a task of the array that waits; none: it is not known any more.
    pub fn outcome(&self, on: &Dependency, task: Option<u32>) -> Option<(JobState, bool)> {
        let of_job = |job: &Job| {
            let started = job.placed().is_some() || !job.past_runs.is_empty();
            (job.state(), started)
        };
        let Some(array) = self.arrays.get(&on.job) else {
            return self.jobs.get(&on.job).map(|job| of_job(job));
        };
        let task = on
            .task
            .or_else(|| task.filter(|_| on.kind == DependencyKind::AfterCorr));
        let open = |started: bool| {
            let state = if started {
                JobState::Running
            } else {
                JobState::Pending
            };
            (state, started)
        };
        Some(match task {
            Some(task) => {
                let job = || array.tasks.get(&task).and_then(|id| self.jobs.get(id));
                let over = array.known.outcome_of(task).map(|state| (state, true));
                over.unwrap_or_else(|| job().map_or(open(false), |job| of_job(job)))
            }
            None => match array.known.outcome() {
                Some(state) => (state, true),
                None => open(array.waiting.iter().all(|id| self.has_started(*id))),
            },
        })
    }

    /// A job that waits has run before.
    fn has_started(&self, id: JobId) -> bool {
        let job = self.jobs.get(&id);
        job.is_some_and(|job| !job.past_runs.is_empty())
    }

    /// The task of an array that a waiting job starts next; none: it is in no array, or each waits for its own.
    pub(super) fn next_task(&self, job: &Job) -> Option<u32> {
        let part = job.array.as_ref()?;
        let conditions = &job.conditions;
        let met = |on: &Dependency, task: u32| match self.outcome(on, Some(task)) {
            Some((state, started)) => on.kind.is_met(state, started) == Some(true),
            None => true,
        };
        let mut by_task = conditions
            .dependencies
            .iter()
            .filter(|on| self.is_by_task(on))
            .peekable();
        if by_task.peek().is_none() {
            return part.tasks.first();
        }
        let first_of = |on: &Dependency, all: bool| {
            let array = self.arrays.get(&on.job)?;
            let mut ready = part.tasks.common(&array.known.completed);
            ready.find(|task| !all || conditions.dependencies.iter().all(|other| met(other, *task)))
        };
        if conditions.any {
            let mut whole = conditions.dependencies.iter().filter(|on| !self.is_by_task(on));
            if whole.any(|on| met(on, 0)) {
                return part.tasks.first();
            }
            return by_task.filter_map(|on| first_of(on, false)).min();
        }
        by_task.next().and_then(|on| first_of(on, true))
    }

    /// It is met for each task of an array by itself.
    pub(super) fn is_by_task(&self, on: &Dependency) -> bool {
        on.kind == DependencyKind::AfterCorr && on.task.is_none() && self.arrays.contains_key(&on.job)
    }

    /// None of a job's tasks will ever have what it waits for.
    pub(super) fn never_by_task(&self, job: &Job, on: &Dependency) -> bool {
        let (Some(part), Some(array)) = (&job.array, self.arrays.get(&on.job)) else {
            return false;
        };
        part.tasks.common(&array.known.failed).count() == part.tasks.len()
    }

    /// Dependencies as they are kept: on a task by its array and index, whatever number it has.
    pub(super) fn by_array(&self, on: Dependency) -> Dependency {
        let known = self.jobs.get(&on.job).and_then(|job| job.task());
        match known {
            Some((array, task)) if on.task.is_none() && array != on.job => Dependency {
                job: array,
                task: Some(task),
                ..on
            },
            _ => on,
        }
    }

    /// Of a job that waited: it, or the first of its tasks that has started.
    pub(super) fn first_of(&self, waited: &Job) -> Option<Arc<Job>> {
        let part = waited.array.as_ref().filter(|part| part.task().is_none());
        let Some(part) = part else {
            return self.jobs.get(&waited.id).cloned();
        };
        let started = self.jobs_of_tasks(part.array, &part.tasks).into_iter();
        started
            .filter(|job| job.placed().is_some())
            .min_by_key(|job| job.placed().map(|placed| placed.started))
    }

    /// The job in which a task of an array waits here that is one by itself elsewhere.
    pub(super) fn waits_in(&self, task: &Job) -> Option<JobId> {
        let (array, index) = task.task()?;
        let jobs = self.jobs_of_tasks(array, &IndexSet::one(index));
        jobs.first().map(|job| job.id)
    }

    /// What a name of jobs means.
    ///
    /// # Errors
    /// There is no such job, or the array has no such tasks.
    pub fn named(&self, name: &JobRef) -> Result<Named, Reject> {
        let missing = |what: String| {
            Reject::new(RejectKind::NotFound, what).hint("`carrel queue --all` lists those that wait and run")
        };
        let array = self.arrays.get(&name.job);
        match (&name.tasks, array) {
            (None, Some(array)) => Ok(Named::Tasks(name.job, array.record.tasks.clone())),
            (None, None) if self.jobs.contains_key(&name.job) => Ok(Named::Job(name.job)),
            (None, None) if name.job.0 < self.cluster.next_job => Err(gone(name)),
            (None, None) => Err(missing(format!("there is no job {name}"))),
            (Some(tasks), Some(array)) => {
                let unknown = tasks.without(&array.record.tasks);
                if unknown.is_empty() {
                    return Ok(Named::Tasks(name.job, tasks.clone()));
                }
                let own = shortened(&array.record.tasks);
                Err(missing(format!(
                    "array {} has no task {}: its tasks are {own}",
                    name.job,
                    shortened(&unknown)
                )))
            }
            (Some(_), None) if self.jobs.contains_key(&name.job) => {
                Err(missing(format!("job {} is no array", name.job)))
            }
            (Some(_), None) => Err(missing(format!("there is no array {}", name.job))),
        }
    }

    /// The jobs that tasks of an array are or wait in, in the order of their ids.
    pub fn jobs_of_tasks(&self, array: JobId, tasks: &IndexSet) -> Vec<Arc<Job>> {
        let Some(array) = self.arrays.get(&array) else {
            return Vec::new();
        };
        let few = tasks.len() <= array.tasks.len();
        let named = tasks.iter().filter(|_| few);
        let named = named.filter_map(|task| array.tasks.get(&task).copied());
        let all = array
            .tasks
            .iter()
            .filter(|(task, _)| !few && tasks.contains(**task));
        let single = named.chain(all.map(|(_, id)| *id));
        let several = array.parts.iter().filter(|id| {
            let part = self.jobs.get(*id).and_then(|job| job.array.as_ref());
            part.is_some_and(|part| part.tasks.common(tasks).next().is_some())
        });
        let ids: BTreeSet<JobId> = single.chain(several.copied()).collect();
        ids.iter().filter_map(|id| self.jobs.get(id).cloned()).collect()
    }

    /// The job that a name means to a caller; of several tasks the one that stands for them: what waits, if any
    /// does, or what has the array's number.
    pub fn find_job(&self, caller: &Caller, name: &JobRef) -> Result<&Arc<Job>, Reject> {
        let whole = self.arrays.get(&name.job).filter(|_| name.tasks.is_none());
        if let Some(id) = whole.and_then(|array| array.waiting.first()) {
            return self.job_for(caller, *id);
        }
        let id = match self.named(name) {
            Ok(Named::Tasks(array, tasks)) => {
                let jobs = self.jobs_of_tasks(array, &tasks);
                let waits = jobs.iter().find(|job| self.pending.contains(job.id));
                let lives = || jobs.iter().find(|job| !job.state().is_final());
                let own = || jobs.iter().find(|job| job.id == array);
                let found = waits.or_else(lives).or_else(own).or_else(|| jobs.last());
                found.map(|job| job.id)
            }
            Ok(Named::Job(id)) => Some(id),
            // Inside a job it is not said what there is besides.
            Err(reject) if caller.job().is_none() => return Err(reject),
            Err(_) => Some(name.job),
        };
        match id {
            Some(id) => self.job_for(caller, id),
            None => Err(gone(name)),
        }
    }
}

/// Jobs that were there.
fn gone(name: &JobRef) -> Reject {
    let what = format!("job {name} is over, and has left the broker's memory");
    Reject::new(RejectKind::NotFound, what).hint("`carrel history` has it")
}

/// A set, or its beginning.
fn shortened(tasks: &IndexSet) -> String {
    const MOST: usize = 60;
    let text = tasks.to_string();
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

impl Broker {
    /// The task of an array that starts next, as a job of its own; other jobs as they are.
    pub(super) fn start_of_array(&mut self, job: &Job) -> Job {
        match (job.count(), self.state.next_task(job)) {
            (2.., Some(task)) => self.split_off(job, &IndexSet::one(task)),
            _ => job.clone(),
        }
    }

    /// Takes tasks out of a job that waits. They as a job of its own, which has not been put anywhere; the whole job
    /// where these are all that it has.
    pub(super) fn split_off(&mut self, job: &Job, tasks: &IndexSet) -> Job {
        let Some(part) = &job.array else {
            return job.clone();
        };
        let taken = part.tasks.and(tasks);
        if taken.len() >= part.tasks.len() {
            return job.clone();
        }
        let rest = match taken.only() {
            Some(task) => {
                let mut rest = part.tasks.clone();
                rest.remove(task);
                rest
            }
            None => part.tasks.without(&taken),
        };
        let with = |tasks: IndexSet| {
            Some(Arc::new(ArrayPart {
                tasks,
                ..(**part).clone()
            }))
        };
        self.put_job(Job {
            array: with(rest),
            ..job.clone()
        });
        let id = JobId(self.state.cluster.next_job);
        self.state.cluster.next_job += 1;
        self.put_cluster();
        Job {
            id,
            array: with(taken),
            ..job.clone()
        }
    }

    /// The job that these tasks wait in by themselves: they leave the others that they waited with.
    pub(super) fn set_apart(&mut self, job: &Arc<Job>, tasks: &IndexSet) -> Arc<Job> {
        let waits = matches!(job.phase, Phase::Pending);
        let part = job.array.as_ref().filter(|_| waits);
        if part.is_none_or(|part| part.tasks.iter().all(|task| tasks.contains(task))) {
            return Arc::clone(job);
        }
        let apart = self.split_off(job, tasks);
        let id = apart.id;
        self.put_job(apart);
        self.state
            .jobs
            .get(&id)
            .map_or_else(|| Arc::clone(job), Arc::clone)
    }

    pub(super) fn put_array(&mut self, record: ArrayRecord) {
        let record = Arc::new(record);
        self.state.insert_array(Arc::clone(&record));
        self.record(Change::PutArray(record));
    }

    /// Arrays leave that nothing refers to.
    pub(super) fn forget_arrays(&mut self) {
        for record in self.state.spent_arrays() {
            self.state.arrays.remove(&record.id);
            self.record(Change::ForgetArray(record));
        }
    }
}
