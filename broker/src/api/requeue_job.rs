//! Ends what runs of a batch job, and queues it again.

use carrel_core::broker::Input;
use carrel_proto::v1::{GetJobRequest, Job};
use tonic::Status;

use super::{Call, job_ref};

pub(super) async fn requeue_job(call: Call, request: GetJobRequest) -> Result<Job, Status> {
    let name = job_ref(request.id, &request.tasks)?;
    call.input(Input::RequeueJob(call.asker.caller.clone(), name.clone()))
        .await?;
    tracing::info!(job = %name, "requeue wished");
    call.job_message(&name).await
}
