//! The caller's tokens, or everybody's.

use carrel_proto::v1::{ListTokensRequest, ListTokensResponse};
use tonic::Status;

use super::{Call, convert, refuse};

pub(super) async fn list_tokens(
    call: Call,
    request: ListTokensRequest,
) -> Result<ListTokensResponse, Status> {
    if request.all_users {
        let caller = &call.asker.caller;
        caller.must_reach_others(call.right).map_err(refuse::status)?;
    }
    let snapshot = call.snapshot();
    let caller = &call.asker.caller;
    let tokens = snapshot
        .state()
        .tokens
        .values()
        .filter(|token| request.all_users || token.user == caller.user);
    Ok(ListTokensResponse {
        tokens: tokens.map(|token| convert::token(token)).collect(),
    })
}
