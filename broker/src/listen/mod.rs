//! The two listeners, and who is at the other end of a connection.

mod connection;
mod foreigners;
mod places;
mod tls;
mod unix;

use std::net::IpAddr;

use carrel_core::model::audit::Origin;
use tonic::Status;

use crate::ca::x509::NodePeer;

pub use connection::Connection;
pub use tls::TlsListener;
pub use unix::UnixListener;

/// Connections that were accepted and wait for the server to take them.
const ACCEPTED: usize = 64;

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// A process on this machine, on the Unix socket.
    Local {
        /// Its user id, from the kernel.
        uid: u32,
    },
    /// Somebody on TLS.
    Remote {
        /// Address.
        address: IpAddr,
        /// The node whose certificate TLS has verified, if it came with one.
        node: Option<NodePeer>,
    },
}

impl Peer {
    /// The peer of a request, as the listener noted it.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<&Self, Status> {
        request
            .extensions()
            .get()
            .ok_or_else(|| Status::internal("the connection's peer is not known"))
    }

    /// What the audit log says of it.
    pub fn origin(&self) -> Origin {
        match self {
            Self::Local { uid } => Origin::Local(*uid),
            Self::Remote { address, .. } => Origin::Remote(*address),
        }
    }
}
