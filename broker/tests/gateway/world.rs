//! A world around one gateway: a broker's `GatewayControl` on a Unix socket,
//! agents with certificates of its CA, and what stands behind them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use carrel_broker::ca::ssh::{HOST_VALIDITY, SshAuthorities, parse_public_key};
use carrel_broker::ca::x509::Authority;
use carrel_broker::gateway::{Gateway, Handle, Options};
use carrel_core::stream::StreamId;
use carrel_proto::socket::{OpenError, Socket, open_with_ticket};
use carrel_proto::stream::{Endpoint, Secret, Ticket};
use carrel_proto::v1::gateway_control_server::{GatewayControl, GatewayControlServer};
use carrel_proto::v1::{
    AuthenticateKeyRequest, AuthenticateKeyResponse, EnrollRequest, EnrollResponse, ResolveTargetRequest,
    ResolveTargetResponse, StreamTicket,
};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Job behind every session of these tests.
pub const JOB: u64 = 17;
/// Its generation.
pub const GENERATION: u64 = 3;

/// How long a condition may take to come true on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a condition holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What the broker knows, changed by tests as they go.
#[derive(Default)]
pub struct Known {
    /// Targets and the nodes that they are on; others are refused.
    pub targets: BTreeMap<String, String>,
    /// Plain keys and their owners.
    pub keys: BTreeMap<String, String>,
    pub revoked: Vec<String>,
    pub enrolments: usize,
}

/// Authorities and a broker that can be stopped and started.
pub struct World {
    pub dir: tempfile::TempDir,
    pub authority: Arc<Authority>,
    pub ssh: Arc<SshAuthorities>,
    pub stream_key: Secret,
    pub known: Arc<Mutex<Known>>,
    broker: Option<(CancellationToken, JoinHandle<()>)>,
}

/// A gateway in this process.
pub struct Running {
    pub handle: Handle,
    cancel: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    /// Ends it as a signal would.
    pub async fn stop(self) {
        self.cancel.cancel();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .expect("an end")
            .expect("no panic")
            .expect("no error");
    }

    pub fn unix(&self) -> Endpoint {
        self.handle.endpoints().client_streams[0].clone()
    }

    pub fn tcp(&self) -> Endpoint {
        self.handle.endpoints().streams.clone()
    }
}

/// The port of a "host:port".
pub fn port_of(address: &str) -> u16 {
    let (_, port) = address.rsplit_once(':').expect("a port");
    port.parse().expect("a number")
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Arc::new(Authority::open(&dir.path().join("broker")).expect("a CA"));
        let ssh = Arc::new(SshAuthorities::open(&dir.path().join("broker")).expect("CAs"));
        Self {
            dir,
            authority,
            ssh,
            stream_key: rand::random(),
            known: Arc::default(),
            broker: None,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn start_broker(&mut self) {
        let path = self.path("broker.sock");
        std::fs::remove_file(&path).ok();
        let listener = UnixListener::bind(&path).expect("a socket");
        let service = Control {
            authority: Arc::clone(&self.authority),
            ssh: Arc::clone(&self.ssh),
            stream_key: self.stream_key,
            known: Arc::clone(&self.known),
        };
        let cancel = CancellationToken::new();
        let ended = cancel.clone();
        let task = tokio::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(GatewayControlServer::new(service))
                .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
                    ended.cancelled().await;
                })
                .await
                .expect("a broker");
        });
        self.broker = Some((cancel, task));
    }

    pub async fn stop_broker(&mut self) {
        let (cancel, task) = self.broker.take().expect("a running broker");
        cancel.cancel();
        // Connections that stay open would hold a graceful end: a dead broker has none.
        task.abort();
        task.await.ok();
        std::fs::remove_file(self.path("broker.sock")).expect("removed");
    }

    pub fn options(&self) -> Options {
        Options {
            state: self.path("gateway"),
            broker: Endpoint::Unix(self.path("broker.sock")),
            name: "gw".into(),
            listen_ssh: ([127, 0, 0, 1], 0).into(),
            listen_link: ([127, 0, 0, 1], 0).into(),
            listen_streams: vec![
                Endpoint::Unix(self.path("streams.sock")),
                Endpoint::Tcp("127.0.0.1:0".into()),
            ],
            advertise_host: None,
            advertise_ssh: None,
            advertise_link: None,
            advertise_streams: None,
            link_wait: Duration::from_millis(300),
            resumption_validity: None,
        }
    }

    pub async fn start_gateway(&self) -> Running {
        let gateway = Gateway::bind(self.options()).await.expect("bound");
        let handle = gateway.handle();
        let cancel = CancellationToken::new();
        let task = tokio::spawn(gateway.run(cancel.clone()));
        tokio::time::timeout(PATIENCE, handle.ready())
            .await
            .expect("ready in time");
        Running { handle, cancel, task }
    }

    /// A ticket for a node, good for so many milliseconds from now.
    pub fn ticket(&self, node: &str, valid_ms: i64) -> Ticket {
        let content = StreamTicket {
            id: rand::random::<[u8; 16]>().to_vec(),
            expires_ms: now_ms() + valid_ms,
            ..ticket_content(node, "alice")
        };
        Ticket::new(&self.stream_key, &content)
    }

    /// Opens a stream with a new ticket.
    pub async fn open(&self, endpoint: &Endpoint, node: &str) -> Result<Socket, OpenError> {
        show(endpoint, &self.ticket(node, 60_000)).await
    }
}

/// Opens some stream with a ticket.
pub async fn show(endpoint: &Endpoint, ticket: &Ticket) -> Result<Socket, OpenError> {
    let id = StreamId(rand::random());
    Ok(open_with_ticket(endpoint, ticket, id).await?.0)
}

fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    since.as_millis() as i64
}

fn ticket_content(node: &str, user: &str) -> StreamTicket {
    StreamTicket {
        id: Vec::new(),
        job: JOB,
        generation: GENERATION,
        node: node.into(),
        user: user.into(),
        session: 5,
        expires_ms: 0,
        made_ms: now_ms(),
        stream: Vec::new(),
        log: false,
    }
}

struct Control {
    authority: Arc<Authority>,
    ssh: Arc<SshAuthorities>,
    stream_key: Secret,
    known: Arc<Mutex<Known>>,
}

#[tonic::async_trait]
impl GatewayControl for Control {
    async fn enroll(&self, request: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        let request = request.into_inner();
        let now = SystemTime::now();
        let host = ["127.0.0.1".to_owned()];
        let signed = self
            .authority
            .sign_gateway(&request.csr_der, &request.name, &host, now)
            .expect("signed");
        let key = parse_public_key(&request.ssh_host_public_key).expect("a key");
        let certificate = self
            .ssh
            .sign_host(&key, &host, now, HOST_VALIDITY)
            .expect("signed");
        let mut known = self.known.lock().expect("a lock");
        known.enrolments += 1;
        Ok(Response::new(EnrollResponse {
            certificate_pem: signed.pem,
            ca_pem: self.authority.certificate_pem().into(),
            stream_key: self.stream_key.to_vec(),
            user_cas: vec![self.ssh.user_ca()],
            ssh_host_certificate: certificate.text,
            revoked_serials: known.revoked.clone(),
        }))
    }

    async fn authenticate_key(
        &self,
        request: Request<AuthenticateKeyRequest>,
    ) -> Result<Response<AuthenticateKeyResponse>, Status> {
        let known = self.known.lock().expect("a lock");
        let user = known
            .keys
            .get(&request.get_ref().public_key)
            .cloned()
            .unwrap_or_default();
        Ok(Response::new(AuthenticateKeyResponse { user }))
    }

    async fn resolve_target(
        &self,
        request: Request<ResolveTargetRequest>,
    ) -> Result<Response<ResolveTargetResponse>, Status> {
        let request = request.into_inner();
        let known = self.known.lock().expect("a lock");
        Ok(Response::new(match known.targets.get(&request.target) {
            Some(node) => ResolveTargetResponse {
                ticket: Some(ticket_content(node, &request.user)),
                error: String::new(),
            },
            None => ResolveTargetResponse {
                ticket: None,
                error: format!("{} has no session {:?}", request.user, request.target),
            },
        }))
    }
}

/// Runs a command to its end; its exit code, stdout and stderr.
pub async fn run(program: &str, args: &[&str], dir: &Path) -> (Option<i32>, String, String) {
    let mut command = tokio::process::Command::new(program);
    command
        .args(args)
        .current_dir(dir)
        .env("HOME", dir)
        .env_remove("SSH_AUTH_SOCK")
        .kill_on_drop(true);
    command.stdin(std::process::Stdio::null());
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .expect("an end")
        .expect(program);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}
