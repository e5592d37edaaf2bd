//! A broker process of a test's own, and clients of it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use carrel_proto::v1;
use carrel_proto::v1::broker_client::BrokerClient;
use carrel_proto::v1::gateway_control_client::GatewayControlClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

/// Longest wait for anything that is to happen; only a failure takes so long.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// A broker process; killed when dropped.
pub struct Daemon {
    child: Child,
    pub state: PathBuf,
    pub log: PathBuf,
}

/// The program with its arguments, not started.
pub fn command(state: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_carrel-broker"));
    clean(&mut command);
    command.args(["serve", "--state"]).arg(state).args(args);
    command
}

/// What the tests' own environment sets must not reach the program.
fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARREL_") {
            command.env_remove(name);
        }
    }
}

impl Daemon {
    /// Starts one with a TLS listener on a free port, and waits until it answers.
    pub async fn start(state: &Path, args: &[&str]) -> Self {
        let mut command = command(state, &["--listen", "127.0.0.1:0", "--default-image", "busybox"]);
        command.args(args);
        Self::run(command, state).await
    }

    /// Starts a command that becomes a broker.
    pub async fn run(mut command: Command, state: &Path) -> Self {
        let log = state.with_extension("log");
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("started");
        let mut daemon = Self {
            child,
            state: state.to_owned(),
            log,
        };
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(daemon.socket()).is_err() {
            if let Some(status) = daemon.child.try_wait().expect("a status") {
                panic!("the broker ended ({status}):\n{}", daemon.log_text());
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the broker does not answer:\n{}",
                daemon.log_text()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        daemon
    }

    pub fn socket(&self) -> PathBuf {
        self.state.join("broker.sock")
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// SIGKILL, as a crash.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// SIGTERM, and how it ended.
    pub async fn terminate(mut self) -> ExitStatus {
        let pid = nix::unistd::Pid::from_raw(self.pid());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("signalled");
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a status") {
                return status;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the broker does not end:\n{}",
                self.log_text()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn channel(&self) -> Channel {
        let socket = self.socket();
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://broker.invalid");
        endpoint
            .connect_with_connector(connector)
            .await
            .expect("connected")
    }

    /// The users' API on the Unix socket: as root, or whoever runs the tests.
    pub async fn client(&self) -> BrokerClient<Channel> {
        BrokerClient::new(self.channel().await).max_encoding_message_size(usize::MAX)
    }

    pub async fn control(&self) -> GatewayControlClient<Channel> {
        GatewayControlClient::new(self.channel().await)
    }

    /// "127.0.0.1:port" of the TLS listener.
    pub fn address(&self) -> String {
        fs::read_to_string(self.state.join("listen"))
            .expect("an address")
            .trim()
            .to_owned()
    }

    pub fn ca(&self) -> Certificate {
        Certificate::from_pem(fs::read(self.state.join("ca.pem")).expect("a certificate"))
    }

    /// TLS, with or without a client certificate.
    pub async fn tls(&self, identity: Option<Identity>) -> Result<Channel, tonic::transport::Error> {
        let mut tls = ClientTlsConfig::new().ca_certificate(self.ca());
        if let Some(identity) = identity {
            tls = tls.identity(identity);
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address())).expect("an address");
        endpoint.tls_config(tls).expect("TLS").connect().await
    }

    /// The users' API over TLS, with a token.
    pub async fn client_with(&self, token: &str) -> TokenClient {
        let channel = self.tls(None).await.expect("connected");
        with_headers(channel, &[("authorization", &format!("Bearer {token}"))])
    }

    /// A user of the directory.
    pub async fn put_user(&self, name: &str, uid: u32, role: v1::Role) {
        let user = v1::User {
            name: name.into(),
            uid,
            gid: uid,
            home: format!("/home/{name}"),
            role: role.into(),
            ..v1::User::default()
        };
        let mut root = self.client().await;
        root.put_user(v1::PutUserRequest { user: Some(user) })
            .await
            .expect("put");
    }

    /// A token of a user's.
    pub async fn token(&self, user: &str, scope: v1::TokenScope) -> String {
        let request = v1::CreateTokenRequest {
            user: user.into(),
            label: "test".into(),
            scope: scope.into(),
            ..v1::CreateTokenRequest::default()
        };
        let mut root = self.client().await;
        root.create_token(request)
            .await
            .expect("a token")
            .into_inner()
            .token
    }

    /// A user of the directory with a token for TLS.
    pub async fn user(&self, name: &str, uid: u32) -> TokenClient {
        self.put_user(name, uid, v1::Role::User).await;
        self.client_with(&self.token(name, v1::TokenScope::Full).await)
            .await
    }
}

/// The users' API, with these headers in every call.
pub fn with_headers(channel: Channel, headers: &[(&'static str, &str)]) -> TokenClient {
    let headers: Vec<(&'static str, MetadataValue<Ascii>)> = headers
        .iter()
        .map(|(name, value)| {
            let mut value: MetadataValue<_> = value.parse().expect("a header");
            value.set_sensitive(true);
            (*name, value)
        })
        .collect();
    let add = move |mut request: Request<()>| -> Result<Request<()>, Status> {
        for (name, value) in &headers {
            request.metadata_mut().insert(*name, value.clone());
        }
        Ok(request)
    };
    BrokerClient::with_interceptor(channel, Box::new(add))
}

type AddToken = Box<dyn FnMut(Request<()>) -> Result<Request<()>, Status> + Send + Sync>;
pub type TokenClient = BrokerClient<tonic::service::interceptor::InterceptedService<Channel, AddToken>>;

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that is gone already needs no killing.
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log_text());
        }
    }
}

/// The hint of a status.
pub fn hint(status: &Status) -> &str {
    status
        .metadata()
        .get("carrel-hint")
        .and_then(|hint| hint.to_str().ok())
        .unwrap_or_default()
}

/// A request for a session of one node.
pub fn open(name: &str, gpus: u32) -> v1::OpenSessionRequest {
    let resources = v1::ResourceRequest {
        nodes: 1,
        gpus_per_node: gpus,
        ..v1::ResourceRequest::default()
    };
    let spec = v1::SessionSpec {
        resources: Some(resources),
        ..v1::SessionSpec::default()
    };
    v1::OpenSessionRequest {
        name: name.into(),
        spec: Some(spec),
        ..v1::OpenSessionRequest::default()
    }
}

/// By name.
pub fn by_name(name: &str) -> v1::GetSessionRequest {
    v1::GetSessionRequest { name: name.into() }
}
