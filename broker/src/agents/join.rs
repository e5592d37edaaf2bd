//! How a host becomes a node, and how a node gets its next certificate.

use std::sync::Arc;
use std::time::SystemTime;

use carrel_core::broker::Input;
use carrel_core::model::audit::{Action, AuditRecord};
use carrel_core::model::ids::NodeName;
use carrel_proto::v1::node_join_server::NodeJoin;
use carrel_proto::v1::{JoinRequest, JoinResponse, RenewRequest};
use tonic::{Request, Response, Status};

use super::link::authenticate;
use crate::api::refuse;
use crate::ca::x509::{SignError, SignedCertificate};
use crate::context::Context;
use crate::listen::Peer;
use crate::secret;

/// The service.
#[derive(Debug)]
pub struct Join(pub Arc<Context>);

#[tonic::async_trait]
impl NodeJoin for Join {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let origin = Peer::of(&request)?.origin();
        let request = request.into_inner();
        let node: NodeName = request.node.parse().map_err(refuse::bad_name)?;
        let token = secret::hash(&request.token, secret::NODE_TOKEN_PREFIX).ok_or_else(|| {
            refuse::with_hint(
                tonic::Code::PermissionDenied,
                "this is not a join token",
                "an operator of the cluster makes one with `carrel node token`",
            )
        })?;
        let signed = self.sign(&request.csr_der, &node)?;
        let certificate = signed.serial.as_str().to_owned();
        let input = Input::JoinNode {
            token,
            node: node.clone(),
            certificate,
            origin: origin.clone(),
        };
        if let Err(refusal) = self.0.handle.call(input).await {
            let subject = format!("node {node}");
            let record = AuditRecord::new(
                None,
                origin,
                Action::NodeCertificate,
                subject,
                refusal.to_string(),
            );
            self.0.note(record.refused()).await;
            return Err(refuse::status(refusal));
        }
        tracing::info!(%node, serial = %signed.serial, "a host has joined");
        Ok(self.response(signed, &node))
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<JoinResponse>, Status> {
        let peer = Peer::of(&request)?;
        let node = authenticate(&self.0, peer).await?;
        let Peer::Remote { node: Some(old), .. } = peer else {
            return Err(Status::unauthenticated(
                "renewing needs the certificate that is to be renewed",
            ));
        };
        let old = old.serial.as_str().to_owned();
        let signed = self.sign(&request.get_ref().csr_der, &node)?;
        let certificate = signed.serial.as_str().to_owned();
        let input = Input::RenewNode {
            node: node.clone(),
            old,
            certificate,
        };
        self.0.handle.call(input).await.map_err(refuse::status)?;
        tracing::info!(%node, serial = %signed.serial, "a node's certificate is renewed");
        Ok(self.response(signed, &node))
    }
}

impl Join {
    fn sign(&self, csr_der: &[u8], node: &NodeName) -> Result<SignedCertificate, Status> {
        let signed = self.0.authority.sign_node(csr_der, node, SystemTime::now());
        signed.map_err(|error| match error {
            SignError::BadRequest(_) => refuse::invalid(error.to_string()),
            SignError::Failed(_) => Status::internal(error.to_string()),
        })
    }

    fn response(&self, signed: SignedCertificate, node: &NodeName) -> Response<JoinResponse> {
        Response::new(JoinResponse {
            certificate_pem: signed.pem,
            ca_pem: self.0.authority.certificate_pem().to_owned(),
            node: node.to_string(),
            cluster: self.0.handle.snapshot().state().cluster.id.to_string(),
        })
    }
}
