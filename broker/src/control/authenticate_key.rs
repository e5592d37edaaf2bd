//! Who a plain SSH key belongs to.

use carrel_proto::v1::{AuthenticateKeyRequest, AuthenticateKeyResponse};
use tonic::Status;

use crate::api::refuse::invalid;
use crate::ca::ssh::{canonical, parse_public_key};
use crate::context::Context;

pub(super) fn authenticate_key(
    context: &Context,
    request: &AuthenticateKeyRequest,
) -> Result<AuthenticateKeyResponse, Status> {
    let key = parse_public_key(&request.public_key).map_err(|error| invalid(error.to_string()))?;
    let text = canonical(key.key_data());
    let snapshot = context.handle.snapshot();
    let owner = snapshot
        .state()
        .users
        .values()
        .find(|user| user.ssh_keys.iter().any(|own| **own == text));
    // Only as oneself: the name that was given is the one that sessions are looked up by.
    let owner = owner.filter(|owner| request.user.is_empty() || owner.name.as_str() == request.user);
    Ok(AuthenticateKeyResponse {
        user: owner.map(|owner| owner.name.to_string()).unwrap_or_default(),
    })
}
