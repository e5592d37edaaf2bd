//! Signs a user's SSH key.

use std::time::{SystemTime, UNIX_EPOCH};

use carrel_core::model::audit::Action;
use carrel_proto::inside;
use carrel_proto::v1::{SignSshKeyRequest, SignSshKeyResponse};
use tonic::Status;

use super::Call;
use super::refuse::invalid;
use crate::ca::ssh::{USER_VALIDITY, fingerprint, parse_public_key};

pub(super) async fn sign_ssh_key(
    call: Call,
    request: SignSshKeyRequest,
) -> Result<SignSshKeyResponse, Status> {
    let key = parse_public_key(&request.public_key).map_err(|error| invalid(error.to_string()))?;
    let user = &call.asker.caller.user;
    // From inside a job it opens that allocation and nothing else.
    let principals = [match call.asker.caller.job() {
        Some(key) => inside::principal(key),
        None => user.to_string(),
    }];
    let signed = call
        .context
        .ssh
        .sign_user(&key, user, &principals, SystemTime::now(), USER_VALIDITY);
    let signed = signed.map_err(|error| Status::internal(format!("{error:#}")))?;
    tracing::info!(serial = signed.serial, key = %fingerprint(&key), "an SSH key is certified");
    let detail = format!(
        "key {}, serial {}, for {}",
        fingerprint(&key),
        signed.serial,
        principals[0]
    );
    let record = call.record(Action::SshCertificate, format!("user {user}"), detail);
    call.context.note(record).await;
    let expires = signed.expires.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(SignSshKeyResponse {
        certificate: signed.text,
        expires_ms: i64::try_from(expires.as_millis()).unwrap_or(i64::MAX),
        user: user.to_string(),
    })
}
