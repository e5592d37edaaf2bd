//! Takes a share back.

use carrel_core::broker::Input;
use carrel_core::model::ids::UserName;
use carrel_proto::v1::{Session, UnshareSessionRequest};
use tonic::Status;

use super::refuse::bad_name;
use super::{Call, session_ref};

pub(super) async fn unshare_session(call: Call, request: UnshareSessionRequest) -> Result<Session, Status> {
    let reference = session_ref(&request.name)?;
    let user: UserName = request.user.parse().map_err(bad_name)?;
    let session = call.session(call.snapshot().state(), &reference)?;
    let caller = call.asker.caller.clone();
    call.input(Input::UnshareSession(caller, reference, user.clone()))
        .await?;
    tracing::info!(session = session.id.0, with = %user, "no longer shared");
    call.session_message(session.id, Some(&session))
}
