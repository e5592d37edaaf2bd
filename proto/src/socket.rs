//! Sockets that byte streams run over, and the handshake's I/O on them.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use carrel_core::stream::StreamId;
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::stream::{
    self, Answer, Endpoint, HEADER_LEN, HandshakeError, Id, NONCE_LEN, Nonce, Secret, Ticket, frame_len,
    parse_answer,
};
use crate::v1::StreamRefusal;

/// Time for a TCP connection: three of its first packets may be lost.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);

/// A connected stream socket, TCP or Unix.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The connection failed or was cut.
    #[error("the connection to the gateway at {0} failed")]
    Connection(String, #[source] io::Error),
    /// The gateway's answer is not one.
    #[error("the gateway at {0} does not speak the stream handshake")]
    Protocol(String, #[source] HandshakeError),
    /// The gateway's reason, for people, and what to do.
    #[error("{1}")]
    Refused(StreamRefusal, String),
}

impl Socket {
    /// Connects to an endpoint.
    pub async fn dial(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
            Endpoint::Tcp(address) => {
                let connect = TcpStream::connect(address.as_str());
                let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect).await??;
                stream.set_nodelay(true)?;
                // A peer that vanished ends the connection, in the system's own time.
                setsockopt(&stream, sockopt::KeepAlive, &true)?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    /// Waits until the socket is ready in one of the ways asked for, or has failed.
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await?,
            Self::Unix(stream) => stream.ready(interest).await?,
        };
        Ok(())
    }

    /// Runs a non-blocking operation on the socket; `WouldBlock` clears its readiness.
    pub(crate) fn try_io<R>(&self, interest: Interest, io: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        match self {
            Self::Tcp(stream) => stream.try_io(interest, io),
            Self::Unix(stream) => stream.try_io(interest, io),
        }
    }

    /// Reads what is there; `WouldBlock` when nothing is.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(buffer),
            Self::Unix(stream) => stream.try_read(buffer),
        }
    }

    /// Writes what fits; `WouldBlock` when nothing does.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    /// Tells the peer that nothing more comes from here.
    pub fn finish(&self) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        match shutdown(self.as_fd().as_raw_fd(), Shutdown::Write) {
            // The peer is gone already: it needs no telling.
            Ok(()) | Err(nix::Error::ENOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Reads one frame of the handshake, and not a byte more.
///
/// A frame that is too long is an [`ErrorKind::InvalidData`] around its [`HandshakeError`].
pub async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut header = [0; HEADER_LEN];
    from.read_exact(&mut header).await?;
    let len = frame_len(header).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    let mut body = vec![0; len];
    from.read_exact(&mut body).await?;
    Ok(body)
}

async fn read_nonce(socket: &mut Socket) -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_LEN];
    socket.read_exact(&mut nonce).await?;
    Ok(nonce)
}

/// Opens a transport for a stream with a ticket, as a client: what follows is the session's bytes.
/// With it comes a ticket to go on with the stream after a cut, if the gateway hands out such.
/// The caller bounds the time: a gateway answers once the node has, or refuses.
pub async fn open_with_ticket(
    endpoint: &Endpoint,
    ticket: &Ticket,
    id: StreamId,
) -> Result<(Socket, Option<Ticket>), OpenError> {
    let cut = |error| OpenError::Connection(endpoint.to_string(), error);
    let strange = |error| OpenError::Protocol(endpoint.to_string(), error);
    let mut socket = Socket::dial(endpoint).await.map_err(cut)?;
    let nonce = read_nonce(&mut socket).await.map_err(cut)?;
    // A gateway that refuses before it has read the hello may close under the
    // write; its reason is still there to be read.
    let sent = socket.write_all(&stream::client_hello(ticket, &nonce, id)).await;
    let answer = match (read_frame(&mut socket).await, sent) {
        (Ok(answer), _) => answer,
        (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(cut(error)),
    };
    match parse_answer(&answer, &ticket.secret, &nonce).map_err(strange)? {
        Answer::Accepted(resumption) => Ok((socket, resumption)),
        Answer::Refused(refusal, reason) => Err(OpenError::Refused(refusal, reason)),
    }
}

/// Opens a stream that a gateway asked for, as an agent: what follows is the client's bytes.
/// A gateway that no longer wants the stream closes it.
pub async fn open_as_asked(endpoint: &Endpoint, stream_id: &Id, secret: &Secret) -> io::Result<Socket> {
    let mut socket = Socket::dial(endpoint).await?;
    let nonce = read_nonce(&mut socket).await?;
    socket
        .write_all(&stream::agent_hello(stream_id, secret, &nonce))
        .await?;
    Ok(socket)
}
