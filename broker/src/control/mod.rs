//! What the broker does for gateways, on its Unix socket: `carrel.v1.GatewayControl`.

mod authenticate_key;
mod enroll;
mod registry;
mod resolve_target;

use std::sync::Arc;

use carrel_proto::v1::gateway_control_server::GatewayControl;
use carrel_proto::v1::{
    AuthenticateKeyRequest, AuthenticateKeyResponse, EnrollRequest, EnrollResponse, ResolveTargetRequest,
    ResolveTargetResponse,
};
use tonic::{Request, Response, Status};

pub use registry::{Gateway, Gateways};

use crate::context::Context;
use crate::listen::Peer;

/// The service.
#[derive(Debug)]
pub struct Control(pub Arc<Context>);

impl Control {
    /// Gateways run as root or as the broker's own user.
    fn must_be_own<T>(&self, request: &Request<T>) -> Result<(), Status> {
        if self.0.auth.is_own(Peer::of(request)?) {
            return Ok(());
        }
        Err(Status::permission_denied(
            "a gateway has to run as root or as the broker's own user",
        ))
    }
}

#[tonic::async_trait]
impl GatewayControl for Control {
    async fn enroll(&self, request: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        self.must_be_own(&request)?;
        let origin = Peer::of(&request)?.origin();
        let enrolled = enroll::enroll(&self.0, origin, request.into_inner());
        enrolled.await.map(Response::new)
    }

    async fn authenticate_key(
        &self,
        request: Request<AuthenticateKeyRequest>,
    ) -> Result<Response<AuthenticateKeyResponse>, Status> {
        self.must_be_own(&request)?;
        authenticate_key::authenticate_key(&self.0, &request.into_inner()).map(Response::new)
    }

    async fn resolve_target(
        &self,
        request: Request<ResolveTargetRequest>,
    ) -> Result<Response<ResolveTargetResponse>, Status> {
        self.must_be_own(&request)?;
        resolve_target::resolve_target(&self.0, &request.into_inner()).map(Response::new)
    }
}
