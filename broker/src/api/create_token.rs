//! An API token.

use std::time::Duration;

use carrel_core::broker::Input;
use carrel_core::model::ids::UserName;
use carrel_core::model::time::Timestamp;
use carrel_core::model::user::{ApiToken, Scope};
use carrel_proto::v1::{self, CreateTokenRequest, CreateTokenResponse, WantedToken};
use tonic::Status;

use super::refuse::{bad_name, invalid};
use super::{Call, convert};
use crate::secret;

const DEFAULT_VALIDITY: Duration = Duration::from_hours(30 * 24);
const LONGEST_VALIDITY: Duration = Duration::from_hours(366 * 24);
const MAX_LABEL: usize = 128;

pub(super) async fn create_token(
    call: Call,
    request: CreateTokenRequest,
) -> Result<CreateTokenResponse, Status> {
    let caller = call.asker.caller.clone();
    let user = match request.user.as_str() {
        "" => caller.user.clone(),
        user => user.parse().map_err(bad_name)?,
    };
    let wanted = WantedToken {
        label: request.label,
        ttl_s: request.ttl_s,
        scope: request.scope,
    };
    let (token, record) = new_token(&wanted, user, call.context.clock.now())?;
    let info = convert::token(&record);
    call.input(Input::CreateToken(caller, record)).await?;
    tracing::info!(token = info.id, user = info.user, "a token was made");
    Ok(CreateTokenResponse {
        token,
        info: Some(info),
    })
}

/// Refuses what no token can be.
pub fn check_wanted(wanted: &WantedToken) -> Result<(), Status> {
    limits(wanted).map(drop)
}

/// How long a wanted token is good, and for what.
fn limits(wanted: &WantedToken) -> Result<(Duration, Scope), Status> {
    if wanted.label.chars().count() > MAX_LABEL || wanted.label.contains(char::is_control) {
        return Err(invalid(format!(
            "a label is one line of at most {MAX_LABEL} characters"
        )));
    }
    let validity = match Duration::from_secs(wanted.ttl_s) {
        Duration::ZERO => DEFAULT_VALIDITY,
        validity if validity > LONGEST_VALIDITY => {
            return Err(invalid("a token is good for 366 days at most"));
        }
        validity => validity,
    };
    let scope = v1::TokenScope::try_from(wanted.scope).map_err(|_| invalid("there is no such scope"))?;
    Ok((validity, scope.into()))
}

/// A new token as it is wanted: its secret, and what is kept of it.
pub fn new_token(wanted: &WantedToken, user: UserName, now: Timestamp) -> Result<(String, ApiToken), Status> {
    let (validity, scope) = limits(wanted)?;
    let (token, hash) = secret::generate(secret::TOKEN_PREFIX);
    let record = ApiToken {
        id: secret::handle().into(),
        hash,
        user,
        label: wanted.label.clone(),
        scope,
        by_sign_in: false,
        created: now,
        expires: now.after(validity),
        last_used: None,
    };
    Ok((token, record))
}
