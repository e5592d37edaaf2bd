//! The caller's tokens; administrators see all.

use carrel_proto::v1::{ListTokensRequest, ListTokensResponse};
use tonic::Status;

use super::{Call, convert};

pub(super) async fn list_tokens(call: Call, _: ListTokensRequest) -> Result<ListTokensResponse, Status> {
    let snapshot = call.snapshot();
    let caller = &call.asker.caller;
    let tokens = snapshot
        .state()
        .tokens
        .values()
        .filter(|token| caller.admin || token.user == caller.user);
    Ok(ListTokensResponse {
        tokens: tokens.map(|token| convert::token(token)).collect(),
    })
}
