//! Ends a batch job.

use carrel_core::broker::Input;
use carrel_core::model::ids::JobId;
use carrel_proto::v1::{GetJobRequest, Job};
use tonic::Status;

use super::Call;

pub(super) async fn cancel_job(call: Call, request: GetJobRequest) -> Result<Job, Status> {
    let id = JobId(request.id);
    call.input(Input::CancelJob(call.asker.caller.clone(), id))
        .await?;
    tracing::info!(job = id.0, "cancel wished");
    call.job_message(id)
}
