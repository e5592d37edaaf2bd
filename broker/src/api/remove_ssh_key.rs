//! Takes a plain SSH key back.

use carrel_core::broker::Input;
use carrel_proto::v1::{RemoveSshKeyRequest, RemoveSshKeyResponse};
use tonic::{Code, Status};

use super::Call;
use super::refuse::with_hint;
use crate::ca::ssh::{fingerprint, parse_public_key};

pub(super) async fn remove_ssh_key(
    call: Call,
    request: RemoveSshKeyRequest,
) -> Result<RemoveSshKeyResponse, Status> {
    let keys = &call.asker.user.ssh_keys;
    let key = keys.iter().find(|key| {
        parse_public_key(key).is_ok_and(|key| fingerprint(&key).to_string() == request.fingerprint)
    });
    let Some(key) = key.cloned() else {
        let shown: String = request.fingerprint.chars().take(80).collect();
        return Err(with_hint(
            Code::NotFound,
            format!("no key of yours has the fingerprint {shown:?}"),
            "`ssh-keygen -lf KEY.pub` shows a key's fingerprint (\"SHA256:...\")",
        ));
    };
    call.input(Input::RemoveSshKey(call.asker.caller.clone(), key))
        .await?;
    tracing::info!(key = request.fingerprint, "an SSH key was taken back");
    Ok(RemoveSshKeyResponse {})
}
