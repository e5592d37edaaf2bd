//! The resumable stream, as a byte stream for russh.
//!
//! There is no task: whoever reads or writes moves frames as well. One task does both, so wakers
//! are never lost between two.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use carrel_core::stream::{Endpoint, Read, Transmit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// Reads of the transport in one go, before others get their turn.
const READS_AT_ONCE: usize = 8;

/// A framed stream over a socket.
pub struct Framed {
    socket: UnixStream,
    endpoint: Endpoint,
    /// Being written, from this byte on.
    sending: Option<(Transmit, usize)>,
    /// Read from the endpoint, and not yet taken.
    arrived: Bytes,
    socket_ended: bool,
}

impl Framed {
    /// The endpoint is attached and has heard the peer.
    pub fn new(socket: UnixStream, endpoint: Endpoint) -> Self {
        Self {
            socket,
            endpoint,
            sending: None,
            arrived: Bytes::new(),
            socket_ended: false,
        }
    }

    /// Moves frames both ways until neither goes on; the wakers are set then.
    fn poll_frames(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let mut reads = 0;
        while !self.socket_ended {
            let buffer = self.endpoint.receive_buffer();
            match tokio_util::io::poll_read_buf(Pin::new(&mut self.socket), context, buffer) {
                Poll::Ready(Ok(0)) => self.socket_ended = true,
                Poll::Ready(Ok(_)) => {
                    let handled = self.endpoint.handle_received();
                    if let Err(error) = handled {
                        // What is to be said of it goes out if it can.
                        let _ = self.poll_send(context);
                        return Err(io::Error::other(error));
                    }
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
            reads += 1;
            if reads == READS_AT_ONCE {
                context.waker().wake_by_ref();
                break;
            }
        }
        match self.poll_send(context) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }

    /// Ready when there is nothing more to send.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let Some((transmit, done)) = &mut self.sending else {
                match self.endpoint.poll_transmit() {
                    Some(transmit) => self.sending = Some((transmit, 0)),
                    None => return Poll::Ready(Ok(())),
                }
                continue;
            };
            let head = transmit.head().get(*done..).unwrap_or_default();
            let body = &transmit.body[done.saturating_sub(transmit.head().len())..];
            let total = transmit.head().len() + transmit.body.len();
            let parts = [IoSlice::new(head), IoSlice::new(body)];
            let parts = if head.is_empty() { &parts[1..] } else { &parts[..] };
            *done += ready!(Pin::new(&mut self.socket).poll_write_vectored(context, parts))?;
            if *done >= total {
                self.sending = None;
            }
        }
    }

    /// The next bytes for above; empty: the end.
    fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut moved = false;
        while self.arrived.is_empty() {
            match self.endpoint.read() {
                Read::Data(bytes) => self.arrived = bytes,
                Read::End => {
                    self.poll_frames(context)?;
                    return Poll::Ready(Ok(()));
                }
                Read::Pending if moved && self.socket_ended => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                Read::Pending if moved => return Poll::Pending,
                Read::Pending => {
                    self.poll_frames(context)?;
                    moved = true;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Framed {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_arrived(context))?;
        let length = this.arrived.len().min(out.remaining());
        out.put_slice(&this.arrived[..length]);
        this.arrived.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Framed {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.endpoint.writable() == 0 {
            // Acknowledgements make room; they are read here too.
            this.poll_frames(context)?;
            if this.socket_ended {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if this.endpoint.writable() == 0 {
                return Poll::Pending;
            }
        }
        let length = bytes.len().min(this.endpoint.writable());
        this.endpoint.write(Bytes::copy_from_slice(&bytes[..length]));
        this.poll_frames(context)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_frames(context)?;
        // What the peer's window holds back goes out while others read and write.
        if this.sending.is_some() {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.endpoint.finish();
        this.poll_frames(context)?;
        if this.socket_ended || (this.endpoint.is_flushed() && this.sending.is_none()) {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}
