//! Signing in over TLS: `carrel.v1.SignIn`. Nobody who calls it is known yet.

mod challenge;
mod device;
pub mod oidc;
mod ssh_key;

use std::sync::Arc;

use carrel_core::broker::{Input, SignIn as SignInInput};
use carrel_core::model::audit::{Action, AuditRecord, Origin};
use carrel_core::model::ids::UserName;
use carrel_core::model::user::{Role, User};
use carrel_proto::v1;
use carrel_proto::v1::sign_in_server;
use tonic::{Request, Response, Status};

use crate::api::create_token::new_token;
use crate::api::{convert, refuse};
use crate::context::Context;
use crate::listen::Peer;

use challenge::Challenges;
use oidc::Oidc;

/// The service.
#[derive(Debug)]
pub struct SignIn {
    context: Arc<Context>,
    challenges: Challenges,
    oidc: Option<Arc<Oidc>>,
}

/// Somebody who has proved who they are.
struct Proved {
    user: UserName,
    /// How, for the audit log.
    method: String,
    /// Their record, where the directory may not have one yet.
    newcomer: Option<User>,
    /// The role that they are to have; none: theirs.
    role: Option<Role>,
}

impl SignIn {
    /// A service whose challenges nobody has seen, and that may have a provider to ask.
    pub fn new(context: Arc<Context>, oidc: Option<Oidc>) -> Self {
        let cluster = context.handle.snapshot().state().cluster.id.to_string();
        let challenges = Challenges::new(cluster, context.authority.fingerprint());
        Self {
            context,
            challenges,
            oidc: oidc.map(Arc::new),
        }
    }
}

#[tonic::async_trait]
impl sign_in_server::SignIn for SignIn {
    type SignInByDeviceStream = device::Progress;

    async fn get_sign_in_methods(
        &self,
        _: Request<v1::GetSignInMethodsRequest>,
    ) -> Result<Response<v1::SignInMethods>, Status> {
        let provider = self.oidc.as_ref().map(|oidc| oidc.host());
        Ok(Response::new(v1::SignInMethods {
            oidc_provider: provider.unwrap_or_default(),
        }))
    }

    async fn sign_in_by_device(
        &self,
        request: Request<v1::SignInByDeviceRequest>,
    ) -> Result<Response<Self::SignInByDeviceStream>, Status> {
        let peer = Peer::of(&request)?.clone();
        let (context, oidc) = (Arc::clone(&self.context), self.oidc.clone());
        let progress = device::sign_in(context, oidc, &peer, request.into_inner()).await?;
        Ok(Response::new(progress))
    }

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
                let proved = Proved {
                    user,
                    method,
                    newcomer: None,
                    role: None,
                };
                let signed_in = give(&self.context, proved, origin, &wanted).await?;
                Ok(Response::new(signed_in))
            }
            Err(not) => {
                failed(&self.context, origin, claimed(&request.user), &not.to_string()).await;
                Err(not.status())
            }
        }
    }
}

/// Gives a token to somebody who has proved who they are.
async fn give(
    context: &Context,
    proved: Proved,
    origin: Origin,
    wanted: &v1::WantedToken,
) -> Result<v1::SignedIn, Status> {
    let Proved {
        user,
        method,
        newcomer,
        role,
    } = proved;
    let (token, mut record) = new_token(wanted, user.clone(), context.clock.now())?;
    record.by_sign_in = true;
    let info = convert::token(&record);
    let input = SignInInput {
        method: method.clone(),
        origin: origin.clone(),
        newcomer,
        role,
        token: record,
    };
    let input = Input::SignIn(Box::new(input));
    context.handle.call(input).await.map_err(refuse::status)?;
    tracing::info!(%user, method, %origin, token = info.id, "signed in");
    Ok(v1::SignedIn {
        user: user.to_string(),
        token,
        info: Some(info),
    })
}

/// What somebody says that they are is written down only if it can be a name.
fn claimed(name: &str) -> String {
    match name.parse::<UserName>() {
        Ok(user) => format!("user {user}"),
        Err(_) => "nobody's name".to_owned(),
    }
}

/// Notes a sign-in that failed.
async fn failed(context: &Context, origin: Origin, subject: String, why: &str) {
    tracing::info!(subject, %origin, why, "a sign-in failed");
    let record = AuditRecord::new(None, origin, Action::SignIn, subject, why);
    context.note(record.refused()).await;
}
