//! One session.

use carrel_proto::v1::{GetSessionRequest, Session};
use tonic::Status;

use super::{Call, convert, session_ref};

pub(super) async fn get_session(call: Call, request: GetSessionRequest) -> Result<Session, Status> {
    let snapshot = call.snapshot();
    let session = call.session(snapshot.state(), &session_ref(&request.name)?)?;
    Ok(convert::session(
        snapshot.state(),
        &session,
        &call.asker.caller.user,
    ))
}
