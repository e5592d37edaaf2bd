//! Ends a session's live job.

use carrel_core::broker::Input;
use carrel_core::model::ids::JobId;
use carrel_proto::v1::{Session, StopSessionRequest};
use tonic::Status;

use super::{Call, session_ref};

pub(super) async fn stop_session(call: Call, request: StopSessionRequest) -> Result<Session, Status> {
    let reference = session_ref(&request.name)?;
    // An ephemeral one may be gone with its job: what it was is known from before.
    let session = call.session(call.snapshot().state(), &reference)?;
    let only = (request.job != 0).then_some(JobId(request.job));
    let caller = call.asker.caller.clone();
    let input = match (request.exit_code, only) {
        (None, _) => Input::StopSession(caller, reference, only),
        (Some(code), Some(job)) => {
            let code = u8::try_from(code)
                .map_err(|_| Status::invalid_argument(format!("exit code {code} is none: 0 to 255")))?;
            Input::EndSession(caller, reference, job, code)
        }
        (Some(_), None) => return Err(Status::invalid_argument("an exit code is one of a job: name it")),
    };
    call.input(input).await?;
    tracing::info!(session = session.id.0, job = request.job, "stop wished");
    call.session_message(session.id, Some(&session))
}
