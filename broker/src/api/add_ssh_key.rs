//! Registers a plain SSH key.

use carrel_core::broker::Input;
use carrel_proto::v1::{AddSshKeyRequest, AddSshKeyResponse};
use tonic::Status;

use super::Call;
use super::refuse::invalid;
use crate::ca::ssh::{canonical, fingerprint, parse_public_key};

pub(super) async fn add_ssh_key(call: Call, request: AddSshKeyRequest) -> Result<AddSshKeyResponse, Status> {
    let key = parse_public_key(&request.public_key).map_err(|error| invalid(error.to_string()))?;
    let text = canonical(key.key_data());
    call.input(Input::AddSshKey(call.asker.caller.clone(), text.into()))
        .await?;
    let fingerprint = fingerprint(&key).to_string();
    tracing::info!(key = fingerprint, "an SSH key was registered");
    Ok(AddSshKeyResponse { fingerprint })
}
