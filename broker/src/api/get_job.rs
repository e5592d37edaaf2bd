//! One job.

use carrel_core::broker::queue_position;
use carrel_proto::v1::{GetJobRequest, Job};
use tonic::Status;

use super::{Call, convert, job_ref};

pub(super) async fn get_job(call: Call, request: GetJobRequest) -> Result<Job, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let job = call.job(state, &job_ref(request.id, &request.tasks)?).await?;
    Ok(convert::job(state, &job, queue_position(state, job.id)))
}
