//! Moves a live job's deadline.

use std::time::Duration;

use carrel_core::broker::Input;
use carrel_proto::v1::{ExtendSessionRequest, Session};
use tonic::Status;

use super::{Call, session_ref};

pub(super) async fn extend_session(call: Call, request: ExtendSessionRequest) -> Result<Session, Status> {
    let reference = session_ref(&request.name)?;
    let session = call.session(call.snapshot().state(), &reference)?;
    let add = Duration::from_secs(request.add_s);
    call.input(Input::ExtendSession(call.asker.caller.clone(), reference, add))
        .await?;
    tracing::info!(session = session.id.0, add_s = request.add_s, "extended");
    call.session_message(session.id, Some(&session))
}
