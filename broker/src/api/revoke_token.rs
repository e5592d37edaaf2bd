//! Ends a token.

use carrel_core::broker::Input;
use carrel_proto::v1::{RevokeTokenRequest, RevokeTokenResponse};
use tonic::Status;

use super::Call;

pub(super) async fn revoke_token(
    call: Call,
    request: RevokeTokenRequest,
) -> Result<RevokeTokenResponse, Status> {
    call.input(Input::RevokeToken(
        call.asker.caller.clone(),
        request.id.as_str().into(),
    ))
    .await?;
    tracing::info!(token = request.id, "a token was revoked");
    Ok(RevokeTokenResponse {})
}
