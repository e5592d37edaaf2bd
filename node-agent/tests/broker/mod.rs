//! A broker for agents' tests: its own CA, joining, renewal, and a link that says what the test wants said.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use carrel_proto::v1;
use carrel_proto::v1::agent_link_server::{AgentLink, AgentLinkServer};
use carrel_proto::v1::node_join_server::{NodeJoin, NodeJoinServer};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer,
    ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::codegen::http;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

/// Longest wait for anything; only a failing test waits so long.
pub const PATIENCE: Duration = Duration::from_mins(1);

pub const CLUSTER: &str = "0123456789abcdef0123456789abcdef";
pub const TOKEN: &str = "carrel_node_secret";

/// What the agent said, and what is to be said to it.
pub struct State {
    ca: CertifiedIssuer<'static, KeyPair>,
    /// All reports, the newest last.
    observed: watch::Sender<Vec<v1::Observed>>,
    /// Said in answer to every report, and at once when it changes.
    desired: watch::Sender<Option<v1::Desired>>,
    /// Links are refused with this status.
    refuse: Mutex<Option<Status>>,
    /// Certificates made.
    signed: watch::Sender<u32>,
    /// How long a node's certificate is good.
    validity: Mutex<Duration>,
    /// Calls of the users' API, the newest last.
    calls: Mutex<Vec<Heard>>,
}

/// A call of the users' API as it arrived.
#[derive(Clone, Debug)]
pub struct Heard {
    pub uri: http::Uri,
    pub headers: http::HeaderMap,
    pub body: Vec<u8>,
    pub certified: bool,
}

pub struct Broker {
    pub uri: String,
    pub fingerprint: String,
    pub state: Arc<State>,
    server: JoinHandle<()>,
    port: u16,
}

struct Service(Arc<State>);

impl State {
    fn sign(&self, csr_der: &[u8], node: &str) -> v1::JoinResponse {
        let mut csr = CertificateSigningRequestParams::from_der(&csr_der.into()).expect("a request");
        let now = std::time::SystemTime::now();
        let validity = *self.validity.lock().expect("unpoisoned");
        csr.params.not_before = (now - Duration::from_secs(10)).into();
        csr.params.not_after = (now + validity).into();
        csr.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let signed = csr.signed_by(&self.ca).expect("signed");
        self.signed.send_modify(|count| *count += 1);
        v1::JoinResponse {
            certificate_pem: signed.pem(),
            ca_pem: self.ca.pem(),
            node: node.to_owned(),
            cluster: CLUSTER.to_owned(),
        }
    }
}

#[tonic::async_trait]
impl NodeJoin for Service {
    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        let request = request.into_inner();
        if request.token != TOKEN {
            return Err(Status::permission_denied(
                "this join token is not known, was used, or has expired",
            ));
        }
        Ok(Response::new(self.0.sign(&request.csr_der, &request.node)))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        if request.peer_certs().is_none_or(|chain| chain.is_empty()) {
            return Err(Status::unauthenticated("no certificate"));
        }
        Ok(Response::new(self.0.sign(&request.get_ref().csr_der, "n1")))
    }
}

#[tonic::async_trait]
impl AgentLink for Service {
    type ConnectStream = ReceiverStream<Result<v1::Desired, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<v1::Observed>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        if request.peer_certs().is_none_or(|chain| chain.is_empty()) {
            return Err(Status::unauthenticated("no certificate"));
        }
        if let Some(status) = self.0.refuse.lock().expect("unpoisoned").clone() {
            return Err(status);
        }
        let mut incoming = request.into_inner();
        let (sender, receiver) = mpsc::channel(1);
        let state = Arc::clone(&self.0);
        tokio::spawn(async move {
            let mut wanted = state.desired.subscribe();
            let mut last = None;
            loop {
                tokio::select! {
                    observed = incoming.message() => {
                        let Ok(Some(observed)) = observed else { return };
                        last = Some(observed.seq);
                        state.observed.send_modify(|all| all.push(observed));
                    }
                    changed = wanted.changed() => if changed.is_err() { return },
                }
                let desired = wanted.borrow_and_update().clone();
                if let (Some(desired), Some(renews)) = (desired, last)
                    && sender.send(Ok(v1::Desired { renews, ..desired })).await.is_err()
                {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// The users' API: every call is noted and refused.
#[derive(Clone)]
struct Calls(Arc<State>);

/// What every call of the users' API is answered.
pub const REFUSAL: &str = "session dev is already ending";
pub const HINT: &str = "wait for its end";

impl tonic::server::NamedService for Calls {
    const NAME: &'static str = "carrel.v1.Broker";
}

impl tonic::codegen::Service<http::Request<tonic::body::Body>> for Calls {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = tonic::codegen::BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), std::convert::Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
        let state = Arc::clone(&self.0);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let connection = parts.extensions.get::<TlsConnectInfo<TcpConnectInfo>>();
            let certified = connection.is_some_and(|tls| tls.peer_certs().is_some());
            let mut body = std::pin::pin!(body);
            let mut bytes = Vec::new();
            while let Some(frame) =
                std::future::poll_fn(|context| tonic::codegen::Body::poll_frame(body.as_mut(), context)).await
            {
                if let Ok(data) = frame.expect("a whole request").into_data() {
                    bytes.extend_from_slice(&data);
                }
            }
            state.calls.lock().expect("unpoisoned").push(Heard {
                uri: parts.uri,
                headers: parts.headers,
                body: bytes,
                certified,
            });
            let mut status = Status::failed_precondition(REFUSAL);
            status
                .metadata_mut()
                .insert("carrel-hint", HINT.parse().expect("a header"));
            status
                .metadata_mut()
                .insert("x-more", "not for jobs".parse().expect("a header"));
            Ok(status.into_http())
        })
    }
}

impl Broker {
    /// One that knows nobody yet.
    pub async fn start() -> Self {
        rustls::crypto::ring::default_provider().install_default().ok();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA");
        let mut fingerprint = String::from("sha256:");
        for byte in Sha256::digest(ca.der()) {
            write!(fingerprint, "{byte:02x}").expect("a string takes all");
        }
        let state = Arc::new(State {
            ca,
            observed: watch::Sender::new(Vec::new()),
            desired: watch::Sender::new(None),
            refuse: Mutex::default(),
            signed: watch::Sender::new(0),
            validity: Mutex::new(Duration::from_hours(24)),
            calls: Mutex::default(),
        });
        let (server, port) = serve(&state, 0).await;
        Self {
            uri: format!("https://127.0.0.1:{port}"),
            fingerprint,
            state,
            server,
            port,
        }
    }

    /// Goes away, with all links.
    pub async fn stop(&mut self) {
        self.server.abort();
        // Its end is what is waited for, not how.
        (&mut self.server).await.ok();
    }

    /// Comes back at the same address.
    pub async fn again(&mut self) {
        let (server, _) = serve(&self.state, self.port).await;
        self.server = server;
    }

    pub fn validity(&self, validity: Duration) {
        *self.state.validity.lock().expect("unpoisoned") = validity;
    }

    pub fn refuse(&self, status: Option<Status>) {
        *self.state.refuse.lock().expect("unpoisoned") = status;
    }

    pub fn say(&self, desired: v1::Desired) {
        self.state.desired.send_replace(Some(desired));
    }

    pub fn reports(&self) -> usize {
        self.state.observed.borrow().len()
    }

    /// The first report from now on of which the condition holds.
    pub async fn observed(&self, what: &str, holds: impl Fn(&v1::Observed) -> bool) -> v1::Observed {
        let mut observed = self.state.observed.subscribe();
        let known = self.reports();
        let waited = tokio::time::timeout(PATIENCE, async {
            let all = observed
                .wait_for(|all| all[known..].iter().any(&holds))
                .await
                .expect("the broker lives");
            all[known..]
                .iter()
                .find(|one| holds(one))
                .cloned()
                .expect("just seen")
        });
        waited
            .await
            .unwrap_or_else(|_| panic!("{what}: it was never reported; last: {:#?}", self.last()))
    }

    pub async fn signed(&self, count: u32) {
        let mut signed = self.state.signed.subscribe();
        let waited = tokio::time::timeout(PATIENCE, signed.wait_for(|signed| *signed >= count));
        waited
            .await
            .expect("a certificate in time")
            .expect("the broker lives");
    }

    /// Calls of the users' API so far.
    pub fn calls(&self) -> Vec<Heard> {
        self.state.calls.lock().expect("unpoisoned").clone()
    }

    fn last(&self) -> Option<v1::Observed> {
        self.state.observed.borrow().last().cloned()
    }
}

async fn serve(state: &Arc<State>, port: u16) -> (JoinHandle<()>, u16) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&key, &state.ca).expect("signed");
    let chain = format!("{}{}", certificate.pem(), state.ca.pem());
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(chain, key.serialize_pem()))
        .client_ca_root(Certificate::from_pem(state.ca.pem()))
        .client_auth_optional(true);
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = Server::builder()
        .tls_config(tls)
        .expect("TLS")
        .add_service(NodeJoinServer::new(Service(Arc::clone(state))))
        .add_service(AgentLinkServer::new(Service(Arc::clone(state))))
        .add_service(Calls(Arc::clone(state)))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(async move {
        server.await.expect("served");
    });
    (server, port)
}
