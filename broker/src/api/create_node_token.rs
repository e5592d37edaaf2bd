//! A one-time token with which a host becomes a node.

use std::time::Duration;

use carrel_core::broker::Input;
use carrel_core::model::user::NodeToken;
use carrel_proto::v1::{CreateNodeTokenRequest, CreateNodeTokenResponse};
use tonic::{Code, Status};

use super::Call;
use super::refuse::{bad_name, invalid, with_hint};
use crate::secret;

const DEFAULT_VALIDITY: Duration = Duration::from_hours(1);
const LONGEST_VALIDITY: Duration = Duration::from_hours(30 * 24);

pub(super) async fn create_node_token(
    call: Call,
    request: CreateNodeTokenRequest,
) -> Result<CreateNodeTokenResponse, Status> {
    let Some(broker) = call.context.url.clone() else {
        return Err(with_hint(
            Code::FailedPrecondition,
            "this broker has no TLS listener, so no host can join",
            "start it with --listen ADDR:PORT",
        ));
    };
    let node = match request.node.as_str() {
        "" => None,
        node => Some(node.parse().map_err(bad_name)?),
    };
    let validity = match Duration::from_secs(request.ttl_s) {
        Duration::ZERO => DEFAULT_VALIDITY,
        validity if validity > LONGEST_VALIDITY => {
            return Err(invalid("a join token is good for 30 days at most"));
        }
        validity => validity,
    };
    let expires = call.context.clock.now().after(validity);
    let (token, hash) = secret::generate(secret::NODE_TOKEN_PREFIX);
    let record = NodeToken { hash, node, expires };
    call.input(Input::CreateNodeToken(call.asker.caller.clone(), record))
        .await?;
    Ok(CreateNodeTokenResponse {
        token,
        expires_ms: expires.millis(),
        ca_fingerprint: call.context.authority.fingerprint(),
        broker,
    })
}
