//! Ends a batch job.

use carrel_core::broker::Input;
use carrel_proto::v1::{GetJobRequest, Job};
use tonic::Status;

use super::{Call, job_ref};

pub(super) async fn cancel_job(call: Call, request: GetJobRequest) -> Result<Job, Status> {
    let name = job_ref(request.id, &request.tasks)?;
    call.input(Input::CancelJob(call.asker.caller.clone(), name.clone()))
        .await?;
    tracing::info!(job = %name, "cancel wished");
    call.job_message(&name).await
}
