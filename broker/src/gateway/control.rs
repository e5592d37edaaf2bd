//! The gateway's calls to the broker, over its Unix socket.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use carrel_proto::stream::Endpoint;
use carrel_proto::v1::gateway_control_client::GatewayControlClient;
use carrel_proto::v1::{
    AuthenticateKeyRequest, EnrollRequest, EnrollResponse, ResolveTargetRequest, StreamTicket,
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::limits;

/// A client of the broker's `GatewayControl`. Cheap to clone. It connects when
/// called, and again after the broker restarted.
#[derive(Clone, Debug)]
pub(super) struct Control {
    client: GatewayControlClient<Channel>,
    socket: Arc<Path>,
}

/// Where a jump host's target is, or why it cannot be reached, for people.
pub(super) type Resolved = Result<StreamTicket, String>;

impl Control {
    /// For the broker's socket.
    pub fn new(broker: &Endpoint) -> Result<Self> {
        let Endpoint::Unix(path) = broker else {
            bail!("--broker {broker}: the gateway talks to the broker over its Unix socket (unix:PATH)");
        };
        let socket: Arc<Path> = path.as_path().into();
        let connect = {
            let socket = Arc::clone(&socket);
            tower::service_fn(move |_| {
                let socket = Arc::clone(&socket);
                async move { UnixStream::connect(&*socket).await.map(TokioIo::new) }
            })
        };
        // The URI only names the host in HTTP headers.
        let channel = tonic::transport::Endpoint::from_static("http://broker")
            .connect_timeout(limits::BROKER_TIMEOUT)
            .connect_with_connector_lazy(connect);
        Ok(Self {
            client: GatewayControlClient::new(channel),
            socket,
        })
    }

    /// The broker's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// `Enroll`.
    pub async fn enrol(&self, request: EnrollRequest) -> Result<EnrollResponse> {
        let answer = call(|| {
            let (mut client, request) = (self.client.clone(), request.clone());
            async move { client.enroll(bounded(request)).await }
        });
        // A status prints all its sources; its message says it once.
        answer.await.map_err(|status| {
            anyhow!(
                "the broker at unix:{}: {}",
                self.socket.display(),
                status.message()
            )
        })
    }

    /// `AuthenticateKey`: the login name that a plain key belongs to; none: nobody's.
    pub async fn owner_of_key(&self, public_key: String, user: &str) -> Result<Option<String>, Status> {
        let request = AuthenticateKeyRequest {
            public_key,
            user: user.to_owned(),
        };
        let answer = call(|| {
            let (mut client, request) = (self.client.clone(), request.clone());
            async move { client.authenticate_key(bounded(request)).await }
        });
        let answer = answer.await?;
        Ok((!answer.user.is_empty()).then_some(answer.user))
    }

    /// `ResolveTarget`.
    pub async fn resolve(&self, user: &str, target: &str) -> Result<Resolved, Status> {
        let request = ResolveTargetRequest {
            user: user.to_owned(),
            target: target.to_owned(),
        };
        let answer = call(|| {
            let (mut client, request) = (self.client.clone(), request.clone());
            async move { client.resolve_target(bounded(request)).await }
        });
        let answer = answer.await?;
        match answer.ticket {
            Some(ticket) if answer.error.is_empty() => Ok(Ok(ticket)),
            _ if !answer.error.is_empty() => Ok(Err(answer.error)),
            _ => Err(Status::internal("the broker resolved a target to nothing")),
        }
    }
}

fn bounded<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limits::BROKER_TIMEOUT);
    request
}

/// Calls, and once more when the broker was not reached: the connection may
/// be one that a restart has ended. All calls may be repeated.
async fn call<T, F>(request: impl Fn() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<tonic::Response<T>, Status>>,
{
    let again = |status: &Status| matches!(status.code(), Code::Unavailable | Code::Unknown);
    match timed(request()).await {
        Err(status) if again(&status) => timed(request()).await,
        answer => answer,
    }
}

async fn timed<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(limits::BROKER_TIMEOUT, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("the broker did not answer in time")),
    }
}
