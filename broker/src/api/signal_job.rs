//! Sends a signal to what runs of a batch job.

use carrel_core::broker::Input;
use carrel_core::model::job::Sent;
use carrel_proto::v1::{Job, SignalFor, SignalJobRequest};
use tonic::Status;

use super::{Call, job_ref};

pub(super) async fn signal_job(call: Call, request: SignalJobRequest) -> Result<Job, Status> {
    let name = job_ref(request.id, &request.tasks)?;
    let (shells, others) = match request.to() {
        SignalFor::Unspecified | SignalFor::Others => (false, true),
        SignalFor::Shells => (true, false),
        SignalFor::All => (true, true),
    };
    let sent = Sent {
        signal: request.signal,
        shells,
        others,
    };
    call.input(Input::SignalJob(call.asker.caller.clone(), name.clone(), sent))
        .await?;
    tracing::info!(job = %name, signal = request.signal, "signal wished");
    call.job_message(&name).await
}
