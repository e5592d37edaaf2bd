//! The broker as a process: everything opened, bound, run and ended.

mod address;

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use carrel_core::broker::State;
use carrel_core::model::host_list;
use carrel_core::model::ids::NodeName;
use carrel_proto::v1::agent_link_server::AgentLinkServer;
use carrel_proto::v1::broker_server::BrokerServer;
use carrel_proto::v1::gateway_control_server::GatewayControlServer;
use carrel_proto::v1::node_join_server::NodeJoinServer;
use carrel_proto::v1::sign_in_server::SignInServer;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Server as Http2;

use crate::actor::Writer;
use crate::agents::{Agents, Join, Link};
use crate::api::Api;
use crate::auth::Auth;
use crate::ca::ssh::SshAuthorities;
use crate::ca::tls::ServerTls;
use crate::ca::x509::Authority;
use crate::clock::Clock;
use crate::config::Config;
use crate::context::Context;
use crate::control::{Control, Gateways};
use crate::limits::{
    KEEPALIVE, MAX_AGENT_MESSAGE, MAX_HEADERS, MAX_JOIN_MESSAGE, MAX_STREAMS, MAX_USER_MESSAGE,
    SHUTDOWN_GRACE,
};
use crate::listen::{TlsListener, UnixListener};
use crate::lock::StateDir;
use crate::mail::{self, Sending};
use crate::notes::Notes;
use crate::signin::SignIn;
use crate::signin::oidc::Oidc;
use crate::store::{AuditLog, History, Store, StoreError};

/// Says where the TLS listener is, for tools: "127.0.0.1:7070".
const LISTEN_FILE: &str = "listen";

/// A broker whose state is read and whose sockets are bound. [`run`](Self::run) serves them.
pub struct Server {
    context: Arc<Context>,
    writer: Writer,
    mail: Sending,
    unix: UnixListener,
    tls: Option<(TlsListener, ServerTls)>,
    oidc: Option<Oidc>,
    // Last: what it guards must be closed before it is let go.
    state: StateDir,
}

impl Server {
    /// Takes the state directory, reads the state, and binds the sockets.
    pub async fn bind(config: &Config) -> Result<Self> {
        let state = StateDir::take(&config.state)?;
        let authority = Arc::new(Authority::open(state.path())?);
        let ssh = SshAuthorities::open(state.path())?;
        let gateways = Gateways::open(state.path())?;
        let store = Store::open(state.path())?;
        let oidc = config.oidc.as_ref().map(Oidc::open).transpose()?;

        let mut tls = None;
        let mut url = None;
        if let Some(address) = config.listen.0 {
            let listener = TlsListener::bind(address).await?;
            let host = address::advertised(listener.address(), config.advertise.as_deref())?;
            let names = address::certificate_names(listener.address(), &host, &config.tls_names)?;
            tracing::info!(address = %listener.address(), advertised = %host, "TLS");
            url = Some(format!("https://{host}"));
            tls = Some((listener, ServerTls::new(Arc::clone(&authority), names)?));
        }
        write_listen(state.path(), tls.as_ref().map(|(listener, _)| listener.address()))?;

        let clock = Arc::new(Clock::new());
        let agents = Arc::new(Agents::default());
        let effects = Arc::clone(&agents);
        let (mailer, mail) = mail::start(config.mail_program.clone());
        let (handle, writer, start) = Writer::start(
            store,
            config.settings(),
            Arc::clone(&clock),
            (effects, mailer),
            authority.origin(),
        )?;
        warn_of_unknown_nodes(handle.snapshot().state());
        let admins = config.admins.iter().cloned().collect();
        let notes = Arc::new(Notes::default());
        let auth = Auth::new(handle.clone(), Arc::clone(&clock), Arc::clone(&notes), admins);
        let stopping = CancellationToken::new();
        let context = Context {
            handle,
            clock,
            auth,
            notes,
            audit: AuditLog::new(state.path()),
            history: History::new(state.path()),
            authority,
            ssh,
            agents,
            gateways,
            start,
            url,
            stopping,
        };
        // Last: whoever reaches the socket is answered.
        let unix = UnixListener::bind(&config.socket)?;
        tracing::info!(socket = %config.socket.display(), "Unix socket");
        Ok(Self {
            context: Arc::new(context),
            writer,
            mail,
            unix,
            tls,
            oidc,
            state,
        })
    }

    /// "https://host:port" of the TLS listener.
    pub fn url(&self) -> Option<&str> {
        self.context.url.as_deref()
    }

    /// Serves until cancelled, or until something fails. What was acknowledged is on disk in any case.
    pub async fn run(self, cancel: CancellationToken) -> Result<()> {
        let Self {
            context,
            writer,
            mail,
            unix,
            tls,
            oidc,
            state,
        } = self;
        let stopping = context.stopping.clone();
        let tasks = TaskTracker::new();
        let mut servers = JoinSet::new();
        servers.spawn(serve_unix(Arc::clone(&context), unix, tasks.clone()));
        if let Some((listener, tls)) = tls {
            let sign_in = SignIn::new(Arc::clone(&context), oidc);
            servers.spawn(serve_tls(
                Arc::clone(&context),
                sign_in,
                listener,
                tls,
                tasks.clone(),
            ));
        }
        tasks.spawn(mail.run(stopping.clone()));
        let writing = CancellationToken::new();
        let mut writer = start_writer(writer, writing.clone())?;

        // Each arm only waits; what has ended is remembered.
        let (why, written) = tokio::select! {
            () = cancel.cancelled() => (Ok(()), None),
            ended = servers.join_next() => (ended_early(ended), None),
            ended = &mut writer => (Ok(()), Some(ended)),
        };
        stopping.cancel();
        let ending = async {
            while servers.join_next().await.is_some() {}
            tasks.close();
            tasks.wait().await;
        };
        if tokio::time::timeout(SHUTDOWN_GRACE, ending).await.is_err() {
            tracing::info!("connections that did not end in time are cut");
        }
        writing.cancel();
        let written = match written {
            Some(ended) => ended,
            None => writer.await,
        };
        drop(state);
        match written {
            Ok(Ok(())) => why,
            Ok(Err(error)) => Err(anyhow::Error::new(error).context("the state could not be written")),
            Err(_) => bail!("the writer ended badly: this is a bug, its trace is above"),
        }
    }
}

fn ended_early(ended: Option<Result<Result<()>, tokio::task::JoinError>>) -> Result<()> {
    match ended {
        Some(Ok(Ok(()))) | None => bail!("a listener ended by itself"),
        Some(Ok(Err(error))) => Err(error.context("a listener failed")),
        Some(Err(error)) => Err(anyhow::Error::new(error).context("a listener ended badly")),
    }
}

/// The writer has a thread of its own: it waits for the disk.
fn start_writer(
    writer: Writer,
    cancel: CancellationToken,
) -> Result<oneshot::Receiver<Result<(), StoreError>>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new().name("writer".into()).spawn(move || {
        let ended = runtime.block_on(writer.run(cancel));
        // Nobody waits any more when the process is ending.
        sender.send(ended).ok();
    })?;
    Ok(receiver)
}

fn http2() -> Http2 {
    Http2::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADERS)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
}

async fn serve_unix(context: Arc<Context>, listener: UnixListener, tasks: TaskTracker) -> Result<()> {
    let stopping = context.stopping.clone();
    let incoming = listener.serve(stopping.clone(), &tasks);
    let api = BrokerServer::new(Api(Arc::clone(&context))).max_decoding_message_size(MAX_USER_MESSAGE);
    let control = GatewayControlServer::new(Control(context)).max_decoding_message_size(MAX_JOIN_MESSAGE);
    let routes = http2().add_service(api).add_service(control);
    routes
        .serve_with_incoming_shutdown(incoming, stopping.cancelled_owned())
        .await?;
    Ok(())
}

async fn serve_tls(
    context: Arc<Context>,
    sign_in: SignIn,
    listener: TlsListener,
    tls: ServerTls,
    tasks: TaskTracker,
) -> Result<()> {
    let stopping = context.stopping.clone();
    let incoming = listener.serve(tls.current(), stopping.clone(), &tasks);
    let renewal = stopping.clone();
    tasks.spawn(async move { tls.run(renewal).await });
    let api = BrokerServer::new(Api(Arc::clone(&context))).max_decoding_message_size(MAX_USER_MESSAGE);
    let join = NodeJoinServer::new(Join(Arc::clone(&context))).max_decoding_message_size(MAX_JOIN_MESSAGE);
    let sign_in = SignInServer::new(sign_in).max_decoding_message_size(MAX_JOIN_MESSAGE);
    let link = Link { context, tasks };
    let link = AgentLinkServer::new(link).max_decoding_message_size(MAX_AGENT_MESSAGE);
    let routes = http2()
        .add_service(api)
        .add_service(sign_in)
        .add_service(join)
        .add_service(link);
    routes
        .serve_with_incoming_shutdown(incoming, stopping.cancelled_owned())
        .await?;
    Ok(())
}

fn write_listen(state: &Path, address: Option<std::net::SocketAddr>) -> Result<()> {
    let path = state.join(LISTEN_FILE);
    let text = address.map(|address| format!("{address}\n")).unwrap_or_default();
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(state)?;
        file.write_all(text.as_bytes())?;
        file.as_file().set_permissions(Permissions::from_mode(0o644))?;
        file.persist(&path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// `carrel-broker serve`: serves until SIGTERM or SIGINT.
pub async fn run(config: Config) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
    allow_many_files();
    let server = Server::bind(&config).await?;
    let cancel = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(server.run(cancel.clone()));
    // Waiting for a signal, or for the server's own end.
    tokio::select! {
        _ = terminate.recv() => tracing::info!("ending: SIGTERM"),
        _ = interrupt.recv() => tracing::info!("ending: SIGINT"),
        Some(ended) = running.join_next() => return ended?,
    }
    cancel.cancel();
    match running.join_next().await {
        Some(ended) => ended?,
        None => Ok(()),
    }
}

/// Each connection is a file: as many as the system lets us have.
fn allow_many_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the number of open files could not be raised");
    }
}
/// Nodes that the fabric names may still come; a slip of the keyboard looks alike.
fn warn_of_unknown_nodes(state: &State) {
    let named = state.settings.fabric.nodes().into_iter();
    let unknown: Vec<&NodeName> = named.filter(|name| !state.nodes.contains_key(*name)).collect();
    if !unknown.is_empty() {
        let nodes = host_list::format(unknown);
        tracing::warn!(
            nodes,
            "the fabric in the configuration names nodes that have not joined"
        );
    }
}
