//! Forwards: the client's to places inside, and listeners inside for the client.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use russh::server::Handle;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tracing::{debug, info};

use super::relay::relay;

/// Longest wait for one address.
const CONNECT: Duration = Duration::from_secs(30);

/// Wait after an accept that failed, as it does when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections of one listener that are relayed at once.
const MAX_ACCEPTED: usize = 512;

/// Connects to a name or address inside. `localhost` needs no resolver and no /etc/hosts.
pub async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = if host.eq_ignore_ascii_case("localhost") {
        vec![
            (Ipv4Addr::LOCALHOST, port).into(),
            (Ipv6Addr::LOCALHOST, port).into(),
        ]
    } else {
        tokio::net::lookup_host((host, port)).await?.collect()
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Keystrokes and requests must not wait for each other.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

/// Listeners for a remote forward. `""` and `*` mean all addresses, `localhost` both loopbacks.
/// Gives the port, which the system chose if it was 0.
pub async fn listen_tcp(address: &str, port: u16) -> io::Result<(Vec<TcpListener>, u16)> {
    let hosts: Vec<String> = match address {
        "" | "*" => vec![
            Ipv6Addr::UNSPECIFIED.to_string(),
            Ipv4Addr::UNSPECIFIED.to_string(),
        ],
        name if name.eq_ignore_ascii_case("localhost") => {
            vec![Ipv4Addr::LOCALHOST.to_string(), Ipv6Addr::LOCALHOST.to_string()]
        }
        other => vec![other.to_owned()],
    };
    let mut listeners = Vec::new();
    let mut chosen = port;
    let mut last = None;
    for host in hosts {
        // One port for both families.
        match TcpListener::bind((host.as_str(), chosen)).await {
            Ok(listener) => {
                chosen = listener.local_addr()?.port();
                listeners.push(listener);
            }
            Err(error) => last = Some(error),
        }
    }
    match (listeners.is_empty(), last) {
        (true, Some(error)) => Err(error),
        _ => Ok((listeners, chosen)),
    }
}

/// Accepts for a remote forward until dropped. The client knows the forward by `address` and `port`.
pub async fn serve_tcp(listeners: Vec<TcpListener>, handle: Handle, address: String, port: u16) {
    let mut tasks = tokio::task::JoinSet::new();
    for listener in listeners {
        let (handle, address) = (handle.clone(), address.clone());
        tasks.spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let Some((stream, peer)) = next(&mut connections, listener.accept()).await else {
                    continue;
                };
                let _ = stream.set_nodelay(true);
                let (handle, address) = (handle.clone(), address.clone());
                connections.spawn(async move {
                    let opened = handle
                        .channel_open_forwarded_tcpip(
                            address,
                            port.into(),
                            peer.ip().to_string(),
                            peer.port().into(),
                        )
                        .await;
                    match opened {
                        Ok(channel) => relay(channel, stream, None).await,
                        Err(error) => debug!(%error, "the client does not take a forwarded connection"),
                    }
                });
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// Waits for the next connection, while those that ended are cleared away. `None`: try again.
async fn next<T>(
    connections: &mut tokio::task::JoinSet<()>,
    accept: impl Future<Output = io::Result<T>>,
) -> Option<T> {
    while connections.try_join_next().is_some() {}
    while connections.len() >= MAX_ACCEPTED {
        connections.join_next().await;
    }
    match accept.await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            info!(%error, "accepting for a forward");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// A listening socket file, removed at its end.
pub struct SocketFile {
    listener: UnixListener,
    path: PathBuf,
    /// A directory made for it alone.
    directory: Option<PathBuf>,
}

impl SocketFile {
    /// Listens at a path. A file that a dead listener left is replaced.
    pub async fn listen(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let connected = UnixStream::connect(path).await;
                if !connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
                    return Err(error);
                }
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        Ok(Self {
            listener,
            path: path.to_owned(),
            directory: None,
        })
    }

    /// Listens in a new directory that only the user can enter: for the forwarded agent.
    pub async fn listen_private() -> io::Result<Self> {
        let name = format!("carrel-agent-{:016x}", rand::random::<u64>());
        let directory = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
        match Self::listen(&directory.join("agent")).await {
            Ok(mut socket) => {
                socket.directory = Some(directory);
                Ok(socket)
            }
            Err(error) => {
                std::fs::remove_dir(&directory)?;
                Err(error)
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The user may have removed them.
        let _ = std::fs::remove_file(&self.path);
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// For whom a socket file listens.
#[derive(Clone)]
pub enum Purpose {
    /// A remote forward of this path.
    Forward(String),
    /// The client's agent.
    Agent,
}

/// Accepts on a socket file until dropped.
pub async fn serve_unix(socket: SocketFile, handle: Handle, purpose: Purpose) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Some((stream, _)) = next(&mut connections, socket.listener.accept()).await else {
            continue;
        };
        let (handle, purpose) = (handle.clone(), purpose.clone());
        connections.spawn(async move {
            let opened = match purpose {
                Purpose::Forward(path) => handle.channel_open_forwarded_streamlocal(path).await,
                Purpose::Agent => handle.channel_open_agent().await,
            };
            match opened {
                Ok(channel) => relay(channel, stream, None).await,
                Err(error) => debug!(%error, "the client does not take a forwarded connection"),
            }
        });
    }
}
