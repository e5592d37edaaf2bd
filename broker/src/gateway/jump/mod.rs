//! The SSH jump host: `ssh -J alice@gateway dev`. It serves direct-tcpip to
//! sessions' names and nothing else; the SSH session to carrel-init passes
//! through it encrypted.

mod certificate;
mod cut;
mod handler;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Algorithm, PrivateKey};
use russh::server::{Config, run_stream};
use russh::{MethodKind, MethodSet, SshId};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info, info_span};

use self::cut::Cut;
use self::handler::Handler;
use super::control::Control;
use super::enrolment::{Keys, Material};
use super::links::Links;
use super::quota::Quota;
use super::{limits, net};
use crate::handshakes::{Handshake, Handshakes};

/// Receive window of a channel, bytes: 2 MiB carry 40 MB/s over 50 ms.
const WINDOW: u32 = 2 * 1024 * 1024;
/// Messages of a channel that wait for its stream. The window bounds their
/// bytes; this bounds the cost of many small ones, and only a client that sends
/// thousands of them into a stalled stream ever waits for it.
const CHANNEL_MESSAGES: usize = 4096;
/// Time before a login's refusal: refusals of keys tell nothing by their time.
const REFUSAL_TIME: std::time::Duration = std::time::Duration::from_millis(100);

/// What every jump-host connection needs. Cheap to clone.
#[derive(Clone)]
pub(super) struct Jump {
    pub keys: Arc<Keys>,
    pub material: watch::Receiver<Option<Arc<Material>>>,
    pub control: Control,
    pub links: Links,
    pub quota: Quota,
    pub tasks: TaskTracker,
    pub cancel: CancellationToken,
}

impl Jump {
    /// Serves a listener until cancelled.
    pub async fn serve(self, listener: TcpListener) -> anyhow::Result<()> {
        let handshakes = Handshakes::new(limits::HANDSHAKES);
        let connections = Arc::new(Semaphore::new(limits::JUMP_CONNECTIONS));
        let configs = Configs::default();
        net::accept_all(
            "ssh",
            &self.cancel,
            || net::accept_tcp(&listener),
            |(stream, peer)| {
                if connections.available_permits() == 0 {
                    self.tasks.spawn(busy(stream, peer));
                    return;
                }
                let handshake = handshakes.enter(peer.ip());
                let connections = Arc::clone(&connections);
                let Some(material) = self.material.borrow().clone() else {
                    return;
                };
                let config = configs.get(&self.keys.ssh, &material);
                let jump = self.clone();
                let task = jump.connection(stream, peer, config, handshake, connections);
                self.tasks.spawn(task.instrument(info_span!("jump", %peer)));
            },
        )
        .await;
        Ok(())
    }

    /// One connection, to its end.
    async fn connection(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        config: Arc<Config>,
        handshake: Handshake,
        connections: Arc<Semaphore>,
    ) {
        let cut = self.cancel.child_token();
        let logged_in = CancellationToken::new();
        let handler = Handler::new(self, peer.ip(), logged_in.clone(), cut.clone());
        let login_ends = tokio::time::Instant::now() + limits::LOGIN_TIMEOUT;
        let begun = run_stream(config, Cut::new(stream, cut.clone()), handler);
        // Dropped, it has not begun.
        let begun = tokio::select! {
            () = handshake.cut() => return debug!("too many handshakes at once: one is cut"),
            begun = tokio::time::timeout_at(login_ends, begun) => begun,
        };
        let mut session = match begun {
            Ok(Ok(session)) => session,
            Ok(Err(error)) => return debug!(%error, "no SSH client"),
            Err(_) => return debug!("no SSH client: it said nothing in time"),
        };
        // The session runs in a task of its own; leaving here would not end it, cutting does.
        tokio::select! {
            ended = &mut session => return log_end(ended),
            () = logged_in.cancelled() => {}
            () = handshake.cut() => {
                debug!("too many handshakes at once: one is cut");
                cut.cancel();
            }
            () = tokio::time::sleep_until(login_ends) => {
                debug!("not logged in in time");
                cut.cancel();
            }
        }
        drop(handshake);
        let Ok(_place) = connections.try_acquire_owned() else {
            info!("too many connections: refused");
            cut.cancel();
            return log_end(session.await);
        };
        log_end(session.await);
        // Channels' streams end with their connection.
        cut.cancel();
    }
}

fn log_end(ended: Result<(), anyhow::Error>) {
    match ended {
        Ok(()) => debug!("connection ended"),
        Err(error) => debug!(error = format!("{error:#}"), "connection ended"),
    }
}

/// Tells a client that there is no room. RFC 4253, 4.2 allows lines before the version.
async fn busy(mut stream: TcpStream, peer: SocketAddr) {
    debug!(%peer, "too many connections: refused");
    let told = stream.write_all(b"carrel gateway: too many connections, try again\r\n");
    match tokio::time::timeout(limits::REFUSAL_LINGER, told).await {
        // It knows, or will see the end.
        Ok(_) | Err(_) => {}
    }
}

/// The server configuration for the current material, made once for each.
#[derive(Default)]
struct Configs(Mutex<Option<(Arc<Material>, Arc<Config>)>>);

impl Configs {
    fn get(&self, key: &PrivateKey, material: &Arc<Material>) -> Arc<Config> {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some((of, config)) if Arc::ptr_eq(of, material) => Arc::clone(config),
            Some(_) | None => {
                let config = Arc::new(config(key, material));
                *current = Some((Arc::clone(material), Arc::clone(&config)));
                config
            }
        }
    }
}

fn config(key: &PrivateKey, material: &Material) -> Config {
    Config {
        server_id: SshId::Standard(concat!("SSH-2.0-carrel_gateway_", env!("CARGO_PKG_VERSION")).into()),
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        auth_rejection_time: REFUSAL_TIME,
        // OpenSSH asks with "none" first, to learn the methods.
        auth_rejection_time_initial: Some(std::time::Duration::ZERO),
        keys: vec![key.clone()],
        certificates: material.host_certificate.iter().cloned().collect(),
        window_size: WINDOW,
        window_on_read: true,
        channel_buffer_size: CHANNEL_MESSAGES,
        max_auth_attempts: limits::LOGIN_ATTEMPTS,
        inactivity_timeout: None,
        keepalive_interval: Some(std::time::Duration::from_secs(30)),
        keepalive_max: 4,
        ..Config::default()
    }
}

/// Whether a key's signatures are made with SHA-1, which is no longer acceptable.
fn is_sha1(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::Rsa { hash: None })
}

/// A key as `AuthenticateKey` wants it.
fn key_text(key: &KeyData) -> String {
    crate::ca::ssh::canonical(key)
}
