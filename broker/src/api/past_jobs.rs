//! Jobs that may have left the state.

use std::sync::Arc;

use carrel_core::broker::{RejectKind, State};
use carrel_core::model::array::{ArrayRecord, JobRef};
use carrel_core::model::ids::JobId;
use carrel_core::model::job::{Job, JobState};
use carrel_core::model::start::{Conditions, Dependency};
use tonic::Status;

use super::{Call, refuse};
use crate::store::History;

impl Call {
    /// The job that the caller means, wherever it is kept, if it is theirs to see.
    pub(super) async fn job(&self, state: &State, name: &JobRef) -> Result<Arc<Job>, Status> {
        let reject = match state.find_job(&self.asker.caller, name) {
            Ok(job) => return Ok(Arc::clone(job)),
            Err(reject) => reject,
        };
        if reject.kind == RejectKind::NotFound {
            let wanted = name.clone();
            // The one that has the array's number stands for all of it.
            let look = move |history: &History| match wanted.tasks {
                None => history.jobs(&[wanted.job]),
                Some(_) => history.named(&wanted, 1),
            };
            if let Some(job) = self.context.look_up(look).await?.into_iter().next() {
                return Ok(Arc::new(job));
            }
        }
        Err(refuse::status(reject))
    }

    /// Conditions without what is decided by jobs that have left the state.
    pub(super) async fn settled(&self, conditions: Conditions) -> Result<Conditions, Status> {
        let snapshot = self.snapshot();
        let state = snapshot.state();
        let known = |id: &JobId| state.jobs.contains_key(id) || state.arrays.contains_key(id);
        let named = conditions.dependencies.iter().map(|one| one.job);
        let gone: Vec<JobId> = named.filter(|id| !known(id)).collect();
        if gone.is_empty() {
            return Ok(conditions);
        }
        let look = move |history: &History| Ok((history.arrays(&gone)?, history.jobs(&gone)?));
        let (arrays, jobs) = self.context.look_up(look).await?;
        let outcome = |on: &Dependency| {
            if known(&on.job) {
                return None;
            }
            let array = arrays.iter().find(|array| array.id == on.job);
            let job = || jobs.iter().find(|job| job.id == on.job);
            let of_array = |array: &ArrayRecord| match on.task {
                Some(task) => array.outcome_of(task),
                None => array.outcome(),
            };
            match array {
                Some(array) => of_array(array).map(|state| (state, true)),
                None if on.task.is_some() => None,
                None => job().map(|job| (job.state(), has_started(job))),
            }
        };
        conditions.settle(outcome).map_err(|never| {
            let state = outcome(&never).map_or(JobState::Cancelled, |(state, _)| state);
            Status::failed_precondition(format!(
                "{never} will never be met: job {} is over, and {}",
                never.on(),
                state.name()
            ))
        })
    }
}

fn has_started(job: &Job) -> bool {
    job.last_placed().is_some() || !job.past_runs.is_empty()
}
