//! Shares a session with a user.

use carrel_core::broker::Input;
use carrel_core::model::ids::UserName;
use carrel_core::model::session::Share;
use carrel_proto::v1::{Session, ShareMode, ShareSessionRequest};
use tonic::Status;

use super::refuse::{bad_name, invalid};
use super::{Call, session_ref};

pub(super) async fn share_session(call: Call, request: ShareSessionRequest) -> Result<Session, Status> {
    let reference = session_ref(&request.name)?;
    let user: UserName = request.user.parse().map_err(bad_name)?;
    let share = match ShareMode::try_from(request.mode) {
        Ok(ShareMode::Unspecified | ShareMode::Full) => Share::Full,
        Ok(ShareMode::ReadOnly) => Share::ReadOnly,
        Err(_) => return Err(invalid("there is no such way to share")),
    };
    let session = call.session(call.snapshot().state(), &reference)?;
    let caller = call.asker.caller.clone();
    call.input(Input::ShareSession(caller, reference, user.clone(), share))
        .await?;
    tracing::info!(session = session.id.0, with = %user, how = share.name(), "shared");
    call.session_message(session.id, Some(&session))
}
