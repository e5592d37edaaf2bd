//! Stops and forgets a session.

use carrel_core::broker::Input;
use carrel_proto::v1::{RemoveSessionRequest, RemoveSessionResponse};
use tonic::Status;

use super::{Call, session_ref};

pub(super) async fn remove_session(
    call: Call,
    request: RemoveSessionRequest,
) -> Result<RemoveSessionResponse, Status> {
    let reference = session_ref(&request.name)?;
    let session = call.session(call.snapshot().state(), &reference)?;
    call.input(Input::RemoveSession(call.asker.caller.clone(), reference))
        .await?;
    tracing::info!(session = session.id.0, "removal wished");
    Ok(RemoveSessionResponse {})
}
