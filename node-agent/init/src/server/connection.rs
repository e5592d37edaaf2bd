//! What an SSH client asks, and who answers.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use russh::keys::{Certificate, HashAlg, PublicKey};
use russh::server::{
    Auth, ChannelOpenHandle, Handle, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey,
};
use russh::{Channel, ChannelId, ChannelOpenFailure, MethodKind, MethodSet, Pty, Sig};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info, warn};

use super::auth::{Permissions, Way};
use super::command::{Run, client_may_set};
use super::forward::{self, Purpose, SocketFile};
use super::pty::{self, Master, Size};
use super::shared::{Connected, Shared};
use super::terminal::Window;
use super::{relay, session, sftp, terminal};

/// Channels of one connection: a browser behind `-D` opens many.
const MAX_CHANNELS: usize = 1024;
/// Remote forwards of one connection.
const MAX_FORWARDS: usize = 128;
/// Variables of one channel.
const MAX_VARIABLES: usize = 256;
/// Longest value of a variable.
const MAX_VALUE: usize = 32 * 1024;

/// A channel that was opened for a session, before and while it runs.
struct SessionChannel {
    /// Until it runs something.
    channel: Option<Channel<Msg>>,
    variables: Vec<(String, String)>,
    /// Our side and the child's, until it starts.
    terminal: Option<(Arc<AsyncFd<Master>>, OwnedFd)>,
    /// Our side, for its size. Not held: its end hangs the terminal up.
    screen: Weak<AsyncFd<Master>>,
    /// The client's, and which terminal it shows.
    window: Arc<Window>,
    /// The process, once it runs.
    process: Arc<OnceLock<u64>>,
    ended: CancellationToken,
}

/// One client.
pub struct Connection {
    shared: Arc<Shared>,
    tasks: TaskTracker,
    ended: CancellationToken,
    authenticated: Arc<Notify>,
    counted: Option<Connected>,
    permissions: Option<Permissions>,
    /// How they got in, for whoever sees to it that they may stay.
    way: Arc<OnceLock<Way>>,
    channels: HashMap<ChannelId, SessionChannel>,
    open_channels: Arc<AtomicUsize>,
    forwards: HashMap<(String, u32), CancellationToken>,
    agent: Option<PathBuf>,
}

/// RFC 4254, 5.2: SSH_EXTENDED_DATA_STDERR.
const STDERR: u32 = 1;
/// What is said to somebody who may only look on and asks for more.
const LOOKS_ON: &str = "carrel: this session is shared with you read-only: nothing can be run in it\r\n";

/// Where a streamlocal forward stands among those of ports.
const NO_PORT: u32 = u32::MAX;

/// Counts a channel as long as it lives.
struct ChannelCount(Arc<AtomicUsize>);

impl Drop for ChannelCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn refused() -> Auth {
    let methods = Some(MethodSet::from(&[MethodKind::PublicKey][..]));
    Auth::Reject {
        proceed_with_methods: methods,
        partial_success: false,
    }
}

/// Says to somebody who may only look on that nothing is run for them.
fn refuse_to_run(id: ChannelId, session: &mut Session) -> Result<(), russh::Error> {
    session.channel_success(id)?;
    session.extended_data(id, STDERR, LOOKS_ON.as_bytes())?;
    session.exit_status_request(id, 1)?;
    session.eof(id)?;
    session.close(id)
}

impl Connection {
    /// A client that is not yet known. `ended`: ends all that it started; `authenticated`: told
    /// when it may enter; `way`: then says how it got in.
    pub fn new(
        shared: Arc<Shared>,
        ended: CancellationToken,
        authenticated: Arc<Notify>,
        way: Arc<OnceLock<Way>>,
    ) -> Self {
        Self {
            shared,
            tasks: TaskTracker::new(),
            ended,
            authenticated,
            counted: None,
            permissions: None,
            way,
            channels: HashMap::new(),
            open_channels: Arc::default(),
            forwards: HashMap::new(),
            agent: None,
        }
    }

    fn check_key(&self, user: &str, key: &PublicKey) -> bool {
        self.shared.settings().access.allows_key(user, key)
    }

    fn check_certificate(&self, user: &str, certificate: &Certificate) -> Option<Permissions> {
        match self.shared.settings().access.check_certificate(user, certificate) {
            Ok(permissions) => Some(permissions),
            Err(reason) => {
                info!(
                    key_id = certificate.key_id(),
                    serial = certificate.serial(),
                    reason,
                    "certificate refused"
                );
                None
            }
        }
    }

    /// Runs a task until it or the connection ends.
    fn spawn(&self, ended: CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(
            async move {
                tokio::select! {
                    () = task => {}
                    () = ended.cancelled() => {}
                }
            }
            .in_current_span(),
        );
    }

    /// Runs a session channel's task; when it is over, the channel may be forgotten.
    fn spawn_session(&self, ended: CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
        let over = ended.clone().drop_guard();
        self.spawn(ended, async move {
            task.await;
            drop(over);
        });
    }

    fn count_channel(&self) -> Option<ChannelCount> {
        let count = ChannelCount(Arc::clone(&self.open_channels));
        let before = self.open_channels.fetch_add(1, Ordering::Relaxed);
        (before < MAX_CHANNELS).then_some(count)
    }

    fn forwarding(&self) -> bool {
        self.permissions
            .as_ref()
            .is_some_and(|permissions| permissions.forwarding)
    }

    fn looks_on(&self) -> bool {
        self.permissions
            .as_ref()
            .is_some_and(|permissions| permissions.looks_on)
    }

    /// Starts what a channel asked for.
    fn start(&mut self, id: ChannelId, run: Run, session: &mut Session) -> Result<(), russh::Error> {
        if self.looks_on() {
            return refuse_to_run(id, session);
        }
        let handle = session.handle();
        let Some((channel, mut request, state)) = self.take_request(id, run) else {
            return session.channel_failure(id);
        };
        if let Some(forced) = self
            .permissions
            .as_ref()
            .and_then(|permissions| permissions.forced_command.clone())
        {
            if let Run::Line(line) = &request.run {
                let original = String::from_utf8_lossy(line).into_owned();
                request
                    .variables
                    .push(("SSH_ORIGINAL_COMMAND".to_owned(), original));
            }
            request.run = Run::Line(forced.into_bytes());
        }
        session.channel_success(id)?;
        let shared = Arc::clone(&self.shared);
        let (ended, process) = state;
        self.spawn_session(ended, session::run(shared, channel, handle, request, process));
        Ok(())
    }

    #[allow(clippy::type_complexity)]
    fn take_request(
        &mut self,
        id: ChannelId,
        run: Run,
    ) -> Option<(
        Channel<Msg>,
        session::Request,
        (CancellationToken, Arc<OnceLock<u64>>),
    )> {
        let agent = self.agent.clone();
        let state = self.channels.get_mut(&id)?;
        let channel = state.channel.take()?;
        let mut variables = std::mem::take(&mut state.variables);
        let terminal = state.terminal.take();
        if let Some(path) = agent {
            variables.push(("SSH_AUTH_SOCK".to_owned(), path.to_string_lossy().into_owned()));
        }
        let banner = terminal.is_some() && run == Run::Shell;
        let request = session::Request {
            run,
            terminal,
            variables,
            banner,
        };
        Some((
            channel,
            request,
            (state.ended.clone(), Arc::clone(&state.process)),
        ))
    }

    /// Serves terminals that outlive this connection. A certificate with a command of its own opens
    /// none.
    fn start_terminal(
        &mut self,
        id: ChannelId,
        request: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let permitted = self
            .permissions
            .as_ref()
            .is_some_and(super::auth::Permissions::sees_terminals);
        let looks_on = self.looks_on();
        let Some(state) = self.channels.get_mut(&id).filter(|_| permitted) else {
            return session.channel_failure(id);
        };
        let Some(channel) = state.channel.take() else {
            return session.channel_failure(id);
        };
        state.screen = Weak::new();
        let offer = terminal::Offer {
            pty: state.terminal.take(),
            variables: std::mem::take(&mut state.variables),
            window: Arc::clone(&state.window),
            looks_on,
        };
        let ended = state.ended.clone();
        session.channel_success(id)?;
        let shared = Arc::clone(&self.shared);
        let serving = terminal::serve(shared, channel, session.handle(), request.to_owned(), offer);
        self.spawn_session(ended, serving);
        Ok(())
    }

    /// Stands for a forward from now on; `None`: there are too many.
    fn add_forward(&mut self, name: String, port: u32) -> Option<CancellationToken> {
        if self.forwards.len() >= MAX_FORWARDS {
            return None;
        }
        let ended = self.ended.child_token();
        if let Some(before) = self.forwards.insert((name, port), ended.clone()) {
            before.cancel();
        }
        Some(ended)
    }

    fn cancel_forward(&mut self, name: &str, port: u32) -> bool {
        match self.forwards.remove(&(name.to_owned(), port)) {
            Some(ended) => {
                ended.cancel();
                true
            }
            None => false,
        }
    }
}

impl Handler for Connection {
    type Error = russh::Error;

    async fn auth_publickey_offered(
        &mut self,
        user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, Self::Error> {
        let welcome = match offer.certificate {
            Some(certificate) => self.check_certificate(user, certificate).is_some(),
            None => self.check_key(user, offer.public_key),
        };
        Ok(if welcome { Auth::Accept } else { refused() })
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        if !self.check_key(user, key.public_key) {
            return Ok(refused());
        }
        info!(fingerprint = %key.public_key.fingerprint(HashAlg::Sha256), "entered by key");
        self.permissions = Some(Permissions::ALL);
        self.way
            .get_or_init(|| Way::Key(key.public_key.key_data().clone()));
        Ok(Auth::Accept)
    }

    async fn auth_openssh_certificate(
        &mut self,
        user: &str,
        certificate: &Certificate,
    ) -> Result<Auth, Self::Error> {
        let Some(permissions) = self.check_certificate(user, certificate) else {
            return Ok(refused());
        };
        info!(
            key_id = certificate.key_id(),
            serial = certificate.serial(),
            "entered by certificate"
        );
        self.way.get_or_init(|| Way::Certificate {
            authority: certificate.signature_key().clone(),
            principals: certificate.valid_principals().to_vec(),
            looks_on: permissions.looks_on,
        });
        self.permissions = Some(permissions);
        Ok(Auth::Accept)
    }

    async fn auth_succeeded(&mut self, _session: &mut Session) -> Result<(), Self::Error> {
        self.counted = Some(self.shared.connected());
        self.authenticated.notify_one();
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        // Channels that ended by themselves are not told of again.
        self.channels.retain(|_, state| !state.ended.is_cancelled());
        if self.channels.len() >= MAX_CHANNELS {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        let id = channel.id();
        let state = SessionChannel {
            variables: Vec::new(),
            terminal: None,
            screen: Weak::new(),
            window: Arc::default(),
            process: Arc::default(),
            ended: self.ended.child_token(),
            channel: Some(channel),
        };
        self.channels.insert(id, state);
        reply.accept().await;
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        if !self.forwarding() {
            // Dropping the reply refuses.
            return Ok(());
        }
        let (Some(count), Ok(port)) = (self.count_channel(), u16::try_from(port)) else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        let (host, shared) = (host.to_owned(), Arc::clone(&self.shared));
        self.spawn(self.ended.clone(), async move {
            match forward::connect_tcp(&host, port).await {
                Ok(stream) => {
                    reply.accept().await;
                    relay::relay(channel, stream, Some(&shared)).await;
                }
                Err(error) => {
                    debug!(%error, "a forward's target");
                    reply.reject(ChannelOpenFailure::ConnectFailed).await;
                }
            }
            drop(count);
        });
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        if !self.forwarding() {
            return Ok(());
        }
        let Some(count) = self.count_channel() else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        let (path, shared) = (path.to_owned(), Arc::clone(&self.shared));
        self.spawn(self.ended.clone(), async move {
            match UnixStream::connect(&path).await {
                Ok(stream) => {
                    reply.accept().await;
                    relay::relay(channel, stream, Some(&shared)).await;
                }
                Err(error) => {
                    debug!(%error, "a forward's target");
                    reply.reject(ChannelOpenFailure::ConnectFailed).await;
                }
            }
            drop(count);
        });
        Ok(())
    }

    async fn channel_close(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), Self::Error> {
        if let Some(state) = self.channels.remove(&channel) {
            state.ended.cancel();
        }
        Ok(())
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        term: &str,
        columns: u32,
        rows: u32,
        width: u32,
        height: u32,
        modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let allowed = self
            .permissions
            .as_ref()
            .is_some_and(|permissions| permissions.terminal || permissions.looks_on);
        let Some(state) = self
            .channels
            .get_mut(&channel)
            .filter(|state| allowed && state.channel.is_some())
        else {
            return session.channel_failure(channel);
        };
        let size = Size {
            columns,
            rows,
            width,
            height,
        };
        state.window.resize(size);
        match pty::create(size, modes) {
            Ok((master, slave)) => {
                if let Some(name) = nix::unistd::ttyname(&slave)
                    .ok()
                    .filter(|_| state.terminal.is_none())
                {
                    state
                        .variables
                        .push(("SSH_TTY".to_owned(), name.to_string_lossy().into_owned()));
                }
                if !term.is_empty() && client_may_set("TERM", term) {
                    state.variables.push(("TERM".to_owned(), term.to_owned()));
                }
                let master = Arc::new(master);
                state.screen = Arc::downgrade(&master);
                state.terminal = Some((master, slave));
                session.channel_success(channel)
            }
            Err(error) => {
                warn!(%error, "no terminal");
                session.channel_failure(channel)
            }
        }
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let state = self.channels.get_mut(&channel).filter(|state| {
            state.variables.len() < MAX_VARIABLES && value.len() <= MAX_VALUE && client_may_set(name, value)
        });
        let Some(state) = state else {
            return session.channel_failure(channel);
        };
        state.variables.push((name.to_owned(), value.to_owned()));
        session.channel_success(channel)
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        self.start(channel, Run::Shell, session)
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        line: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.start(channel, Run::Line(line.to_vec()), session)
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        if name.split(' ').next() == Some(carrel_core::terminal::SUBSYSTEM) {
            return self.start_terminal(channel, name, session);
        }
        if name != "sftp" || self.looks_on() {
            return session.channel_failure(channel);
        }
        if self
            .permissions
            .as_ref()
            .is_some_and(|permissions| permissions.forced_command.is_some())
        {
            return self.start(channel, Run::Line(b"internal-sftp".to_vec()), session);
        }
        let Some(state) = self.channels.get_mut(&channel) else {
            return session.channel_failure(channel);
        };
        let Some(opened) = state.channel.take() else {
            return session.channel_failure(channel);
        };
        let ended = state.ended.clone();
        session.channel_success(channel)?;
        self.shared.touch();
        let home = self.shared.settings().identity().home;
        self.spawn_session(ended, sftp::serve(opened, session.handle(), home));
        Ok(())
    }

    async fn window_change_request(
        &mut self,
        channel: ChannelId,
        columns: u32,
        rows: u32,
        width: u32,
        height: u32,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        let size = Size {
            columns,
            rows,
            width,
            height,
        };
        let Some(state) = self.channels.get(&channel) else {
            return Ok(());
        };
        state.window.resize(size);
        if let Some(master) = state.screen.upgrade()
            && let Err(error) = master.get_ref().resize(size)
        {
            debug!(%error, "resizing a terminal");
        }
        Ok(())
    }

    async fn signal(
        &mut self,
        channel: ChannelId,
        signal: Sig,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        let (Some(state), Some(number)) = (self.channels.get(&channel), session::signal_number(&signal))
        else {
            return Ok(());
        };
        let keeper = &self.shared.keeper;
        let sent = match (state.process.get(), state.window.signalled()) {
            (Some(process), _) => keeper.signal(*process, number).await,
            (None, Some(terminal)) => keeper.signal_kept(terminal, number).await,
            (None, None) => Ok(()),
        };
        if let Err(error) = sent {
            debug!(%error, "sending a signal");
        }
        Ok(())
    }

    async fn agent_request(
        &mut self,
        _channel: ChannelId,
        session: &mut Session,
    ) -> Result<bool, Self::Error> {
        if !self
            .permissions
            .as_ref()
            .is_some_and(|permissions| permissions.agent)
        {
            return Ok(false);
        }
        if self.agent.is_some() {
            return Ok(true);
        }
        match SocketFile::listen_private().await {
            Ok(socket) => {
                self.agent = Some(socket.path().to_owned());
                self.spawn(
                    self.ended.clone(),
                    forward::serve_unix(socket, session.handle(), Purpose::Agent),
                );
                Ok(true)
            }
            Err(error) => {
                warn!(%error, "no socket for the agent");
                Ok(false)
            }
        }
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        session: &mut Session,
    ) -> Result<bool, Self::Error> {
        let Ok(wanted) = u16::try_from(*port) else {
            return Ok(false);
        };
        if !self.forwarding() {
            return Ok(false);
        }
        match forward::listen_tcp(address, wanted).await {
            Ok((listeners, chosen)) => {
                *port = chosen.into();
                let Some(ended) = self.add_forward(address.to_owned(), *port) else {
                    return Ok(false);
                };
                self.spawn(
                    ended,
                    forward::serve_tcp(listeners, session.handle(), address.to_owned(), chosen),
                );
                Ok(true)
            }
            Err(error) => {
                info!(%error, "a remote forward");
                Ok(false)
            }
        }
    }

    async fn cancel_tcpip_forward(
        &mut self,
        address: &str,
        port: u32,
        _session: &mut Session,
    ) -> Result<bool, Self::Error> {
        Ok(self.cancel_forward(address, port))
    }

    async fn streamlocal_forward(&mut self, path: &str, session: &mut Session) -> Result<bool, Self::Error> {
        if !self.forwarding() {
            return Ok(false);
        }
        match SocketFile::listen(path.as_ref()).await {
            Ok(socket) => {
                let Some(ended) = self.add_forward(path.to_owned(), NO_PORT) else {
                    return Ok(false);
                };
                let handle: Handle = session.handle();
                self.spawn(
                    ended,
                    forward::serve_unix(socket, handle, Purpose::Forward(path.to_owned())),
                );
                Ok(true)
            }
            Err(error) => {
                info!(%error, "a remote forward");
                Ok(false)
            }
        }
    }

    async fn cancel_streamlocal_forward(
        &mut self,
        path: &str,
        _session: &mut Session,
    ) -> Result<bool, Self::Error> {
        Ok(self.cancel_forward(path, NO_PORT))
    }
}
