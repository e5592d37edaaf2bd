//! Listeners of the gateway.

use std::fs::{self, Permissions};
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use carrel_proto::socket::Socket;
use carrel_proto::stream::Endpoint;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::limits;
use super::options::Bound;
use crate::handshakes::Source;

/// A silent peer is asked for a sign of life after this time …
const KEEPALIVE_IDLE: Duration = Duration::from_mins(1);
/// … every so often …
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// … and given up after this many without an answer.
const KEEPALIVE_PROBES: u32 = 8;
/// Unanswered bytes end a connection after this time: longer than a network's
/// usual hiccup, so that plain SSH survives it.
const UNANSWERED: Duration = Duration::from_mins(5);

/// A listening stream socket, TCP or Unix.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Binds. A Unix socket that nobody listens on any more is replaced.
    pub async fn bind(endpoint: &Endpoint) -> Result<Self> {
        match endpoint {
            Endpoint::Tcp(address) => Ok(Self::Tcp(bind_tcp(address).await?)),
            Endpoint::Unix(path) => {
                remove_stale(path)?;
                let listener = UnixListener::bind(path)
                    .with_context(|| format!("cannot listen on unix:{}", path.display()))?;
                // Whoever may use a stream shows it by a ticket, not by a file mode.
                fs::set_permissions(path, Permissions::from_mode(0o666))?;
                Ok(Self::Unix(listener, path.clone()))
            }
        }
    }

    pub fn bound(&self) -> Result<Bound> {
        match self {
            Self::Tcp(listener) => Ok(Bound::Tcp(listener.local_addr()?)),
            Self::Unix(_, path) => Ok(Bound::Unix(path.clone())),
        }
    }

    /// Accepts one connection; says where it comes from. Safe to cancel.
    pub async fn accept(&self) -> io::Result<(Socket, Source)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = accept_tcp(listener).await?;
                Ok((stream.into(), peer.ip().into()))
            }
            Self::Unix(listener, _) => Ok((listener.accept().await?.0.into(), Source::Local)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self
            && let Err(error) = fs::remove_file(&*path)
            && error.kind() != ErrorKind::NotFound
        {
            warn!(path = %path.display(), %error, "the socket was not removed");
        }
    }
}

fn remove_stale(path: &Path) -> Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        bail!(
            "{} is there and is no socket: remove it or choose another path",
            path.display()
        );
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        bail!("another process listens on unix:{}", path.display());
    }
    fs::remove_file(path).with_context(|| format!("cannot remove the stale socket {}", path.display()))
}

/// Binds a TCP listener.
pub(super) async fn bind_tcp(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))
}

/// Accepts a TCP connection that notices a dead peer. Safe to cancel.
pub(super) async fn accept_tcp(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    if let Err(error) = tune(&stream) {
        // The peer may be gone already, which the first read will tell.
        tracing::debug!(%peer, %error, "socket options were not set");
    }
    Ok((stream, peer))
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &(KEEPALIVE_IDLE.as_secs() as u32))?;
    setsockopt(
        stream,
        sockopt::TcpKeepInterval,
        &(KEEPALIVE_INTERVAL.as_secs() as u32),
    )?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &(UNANSWERED.as_millis() as u32))?;
    Ok(())
}

/// Accepts until cancelled, and hands each connection to `serve`.
pub(super) async fn accept_all<T, A>(
    what: &'static str,
    cancel: &CancellationToken,
    accept: impl Fn() -> A,
    mut serve: impl FnMut(T),
) where
    A: Future<Output = io::Result<T>>,
{
    loop {
        // Both arms are safe to cancel: an accept that is dropped has accepted nothing.
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            accepted = accept() => accepted,
        };
        match accepted {
            Ok(connection) => serve(connection),
            Err(error) => {
                warn!(listener = what, %error, "a connection was not accepted");
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep(limits::ACCEPT_PAUSE) => {}
                }
            }
        }
    }
}

/// Allows this process as many open files as it may have; returns how many
/// streams that leaves room for.
pub(super) fn streams_by_open_files() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, hard)| {
        match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            Ok(()) => hard,
            Err(_) => soft,
        }
    });
    // A small limit still leaves room for a few.
    let files = limit.unwrap_or(1024);
    let spare = files.saturating_sub(limits::FILES_RESERVED).max(files / 2);
    usize::try_from(spare / limits::FILES_PER_STREAM)
        .unwrap_or(usize::MAX)
        .min(limits::STREAMS)
}
