//! The directory: operators see all, others themselves.

use carrel_proto::v1::{ListUsersRequest, ListUsersResponse};
use tonic::Status;

use super::{Call, convert};

pub(super) async fn list_users(call: Call, _: ListUsersRequest) -> Result<ListUsersResponse, Status> {
    let snapshot = call.snapshot();
    let caller = &call.asker.caller;
    let users = snapshot
        .state()
        .users
        .values()
        .filter(|user| call.reaches_others() || user.name == caller.user);
    let messages = users.map(|user| convert::user(user, call.context.auth.role(user)));
    Ok(ListUsersResponse {
        users: messages.collect(),
    })
}
