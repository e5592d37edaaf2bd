//! The TLS listener: users come with tokens, nodes with certificates.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::foreigners::Foreigners;
use super::places::{Places, Who};
use super::{ACCEPTED, Connection, Peer};
use crate::ca::tls::CurrentTls;
use crate::ca::x509::node_of;
use crate::handshakes::{Handshake, Handshakes};
use crate::limits::{HANDSHAKE_TIMEOUT, MAX_HANDSHAKES};

/// After an error that concerns this process (out of descriptors), before the next accept.
const PAUSE: Duration = Duration::from_millis(100);

type Accepted = std::io::Result<Connection<TlsStream<TcpStream>>>;

/// A bound TLS listener.
#[derive(Debug)]
pub struct TlsListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl TlsListener {
    /// Binds.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let what = || format!("cannot listen on {address}: is another broker using it?");
        let listener = TcpListener::bind(address).await.with_context(what)?;
        let address = listener.local_addr().with_context(what)?;
        Ok(Self { listener, address })
    }

    /// The address that was bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until cancelled.
    pub fn serve(
        self,
        tls: CurrentTls,
        cancel: CancellationToken,
        tasks: &TaskTracker,
    ) -> ReceiverStream<Accepted> {
        let (sender, receiver) = mpsc::channel(ACCEPTED);
        tasks.spawn(async move {
            cancel.run_until_cancelled(self.accept(tls, sender)).await;
        });
        ReceiverStream::new(receiver)
    }

    async fn accept(&self, tls: CurrentTls, sender: mpsc::Sender<Accepted>) {
        let places = Places::default();
        let room = Handshakes::new(MAX_HANDSHAKES);
        let foreigners = Arc::new(Foreigners::default());
        // As many as there is room for; they end with this future.
        let mut handshakes = JoinSet::new();
        loop {
            // Both arms only wait: cancelled, they have taken nothing.
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(ended) = handshakes.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a handshake ended badly");
                    }
                    continue;
                }
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a TLS connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let handshake = room.enter(address.ip());
            handshakes.spawn(greet(
                tls.clone(),
                stream,
                address,
                (handshake, places.clone()),
                (sender.clone(), Arc::clone(&foreigners)),
            ));
        }
    }
}

async fn greet(
    tls: CurrentTls,
    stream: TcpStream,
    address: SocketAddr,
    (handshake, places): (Handshake, Places),
    (sender, foreigners): (mpsc::Sender<Accepted>, Arc<Foreigners>),
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    // Both arms only wait: a handshake that is dropped closes its connection.
    let greeted = tokio::select! {
        () = handshake.cut() => {
            tracing::debug!(%address, "too many handshakes at once: one is cut");
            return;
        }
        greeted = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.acceptor().accept(stream)) => greeted,
    };
    drop(handshake);
    let Some(place) = places.take(Who::Address(address.ip())) else {
        return;
    };
    let stream = match greeted {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            foreigners.note(address.ip(), &error);
            return;
        }
        Err(_) => {
            tracing::debug!(%address, "TLS handshake took too long");
            return;
        }
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let node = match certificate.map(|certificate| node_of(certificate)).transpose() {
        Ok(node) => node,
        Err(error) => {
            tracing::warn!(%address, %error, "a client's certificate is of no use here");
            None
        }
    };
    let connection = Connection::new(
        stream,
        Peer::Remote {
            address: address.ip(),
            node,
        },
        place,
    );
    // Who is not taken any more meets a closed connection.
    sender.send(Ok(connection)).await.ok();
}
