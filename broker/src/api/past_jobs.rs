//! Jobs that may have left the state.

use std::sync::Arc;

use carrel_core::broker::{RejectKind, State};
use carrel_core::model::ids::JobId;
use carrel_core::model::job::{Job, JobState};
use carrel_core::model::start::Conditions;
use tonic::Status;

use super::{Call, refuse};

impl Call {
    /// The job that the caller means, wherever it is kept, if it is theirs to see.
    pub(super) async fn job(&self, state: &State, id: JobId) -> Result<Arc<Job>, Status> {
        let reject = match state.job_for(&self.asker.caller, id) {
            Ok(job) => return Ok(Arc::clone(job)),
            Err(reject) => reject,
        };
        if reject.kind == RejectKind::NotFound {
            let found = self.context.look_up(move |history| history.jobs(&[id])).await?;
            if let Some(job) = found.into_iter().next() {
                return Ok(Arc::new(job));
            }
        }
        Err(refuse::status(reject))
    }

    /// Conditions without what is decided by jobs that have left the state.
    pub(super) async fn settled(&self, conditions: Conditions) -> Result<Conditions, Status> {
        let snapshot = self.snapshot();
        let known = &snapshot.state().jobs;
        let named = conditions.dependencies.iter().map(|one| one.job);
        let gone: Vec<JobId> = named.filter(|id| !known.contains_key(id)).collect();
        if gone.is_empty() {
            return Ok(conditions);
        }
        let found = self.context.look_up(move |history| history.jobs(&gone)).await?;
        let over = |id: JobId| found.iter().find(|job| job.id == id);
        let outcome = |id: JobId| over(id).map(|job| (job.state(), has_started(job)));
        conditions.settle(outcome).map_err(|never| {
            let state = over(never.job).map_or(JobState::Cancelled, Job::state);
            Status::failed_precondition(format!(
                "{never} will never be met: job {} is over, and {}",
                never.job,
                state.name()
            ))
        })
    }
}

fn has_started(job: &Job) -> bool {
    job.last_placed().is_some() || !job.past_runs.is_empty()
}
