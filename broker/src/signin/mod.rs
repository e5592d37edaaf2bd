//! Signing in over TLS: `carrel.v1.SignIn`. Nobody who calls it is known yet.

mod challenge;
mod ssh_key;

use std::sync::Arc;

use carrel_core::broker::{Input, SignIn as SignInInput};
use carrel_core::model::audit::{Action, AuditRecord, Origin};
use carrel_core::model::ids::UserName;
use carrel_proto::v1;
use carrel_proto::v1::sign_in_server;
use tonic::{Request, Response, Status};

use crate::api::create_token::new_token;
use crate::api::{convert, refuse};
use crate::context::Context;
use crate::listen::Peer;

use challenge::Challenges;

/// The service.
#[derive(Debug)]
pub struct SignIn {
    context: Arc<Context>,
    challenges: Challenges,
}

impl SignIn {
    /// A service whose challenges nobody has seen.
    pub fn new(context: Arc<Context>) -> Self {
        let cluster = context.handle.snapshot().state().cluster.id.to_string();
        let challenges = Challenges::new(cluster, context.authority.fingerprint());
        Self { context, challenges }
    }
}

#[tonic::async_trait]
impl sign_in_server::SignIn for SignIn {
    async fn start_ssh_key(
        &self,
        _: Request<v1::StartSshKeyRequest>,
    ) -> Result<Response<v1::SshKeyChallenge>, Status> {
        let (challenge, expires) = self.challenges.make(self.context.clock.now());
        Ok(Response::new(v1::SshKeyChallenge {
            challenge,
            expires_ms: expires.millis(),
        }))
    }

    async fn finish_ssh_key(
        &self,
        request: Request<v1::FinishSshKeyRequest>,
    ) -> Result<Response<v1::SignedIn>, Status> {
        let origin = Peer::of(&request)?.origin();
        let request = request.into_inner();
        let wanted = request.token.clone().unwrap_or_default();
        let proved = ssh_key::prove(&self.context, &self.challenges, &request);
        match proved {
            Ok((user, method)) => {
                let signed_in = give(&self.context, user, method, origin, &wanted).await?;
                Ok(Response::new(signed_in))
            }
            Err(not) => {
                failed(&self.context, origin, &request.user, &not.to_string()).await;
                Err(not.status())
            }
        }
    }
}

/// Gives a token to somebody who has proved who they are.
async fn give(
    context: &Context,
    user: UserName,
    method: String,
    origin: Origin,
    wanted: &v1::WantedToken,
) -> Result<v1::SignedIn, Status> {
    let (token, mut record) = new_token(wanted, user.clone(), context.clock.now())?;
    record.by_sign_in = true;
    let info = convert::token(&record);
    tracing::info!(%user, method, %origin, token = info.id, "signed in");
    let input = SignInInput {
        method,
        origin,
        token: record,
    };
    let input = Input::SignIn(Box::new(input));
    context.handle.call(input).await.map_err(refuse::status)?;
    Ok(v1::SignedIn {
        user: user.to_string(),
        token,
        info: Some(info),
    })
}

/// Notes a sign-in that failed. What was claimed is written down only if it can be a name.
async fn failed(context: &Context, origin: Origin, claimed: &str, why: &str) {
    let subject = match claimed.parse::<UserName>() {
        Ok(user) => format!("user {user}"),
        Err(_) => "nobody's name".to_owned(),
    };
    tracing::info!(subject, %origin, why, "a sign-in failed");
    let record = AuditRecord::new(None, origin, Action::SignIn, subject, why);
    context.note(record.refused()).await;
}
