//! One job.

use std::sync::Arc;

use carrel_core::broker::{State, queue_position};
use carrel_core::model::ids::JobId;
use carrel_proto::v1::{GetJobRequest, Job};
use tonic::{Code, Status};

use super::refuse::with_hint;
use super::{Call, convert};

pub(super) async fn get_job(call: Call, request: GetJobRequest) -> Result<Job, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let job = find(state, request.id)?;
    Ok(convert::job(state, job, queue_position(state, job.id)))
}

/// A job by its number. Jobs are visible to all, as in squeue.
pub(super) fn find(state: &State, id: u64) -> Result<&Arc<carrel_core::model::job::Job>, Status> {
    let hint = "`carrel ps` lists your sessions and their jobs";
    let job = state.jobs.get(&JobId(id));
    job.ok_or_else(|| with_hint(Code::NotFound, format!("there is no job {id}"), hint))
}
