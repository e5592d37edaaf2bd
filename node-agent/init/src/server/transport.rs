//! What carries an SSH connection: the socket itself, or a framed stream over it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use carrel_core::stream::{CloseReason, Endpoint, Limits, MAGIC, PREFACE_BYTES, Preface};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::framed::Framed;

/// A client that says nothing for so long waits for the server's first line: a raw one.
const SILENCE: Duration = Duration::from_secs(2);

/// Read from the socket at once: several of SSH's largest packets.
const READ: usize = 256 * 1024;

/// Reads this large go past the buffer.
const LARGE: usize = 64 * 1024;

/// Any of them.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Finds out from the first bytes what the peer speaks: `SSH-…` is raw, the magic is framed.
pub async fn open(mut stream: UnixStream, ended: CancellationToken) -> io::Result<Transport> {
    let mut first = BytesMut::with_capacity(READ);
    let sniff = async {
        while first.len() < MAGIC.len() && MAGIC.starts_with(&first) {
            if stream.read_buf(&mut first).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
        }
        Ok(())
    };
    match tokio::time::timeout(SILENCE, sniff).await {
        Ok(result) => result?,
        Err(_) if first.is_empty() => {}
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    }
    if !first.starts_with(&MAGIC) {
        return Ok(Transport::new(Box::new(stream), first, ended));
    }
    while first.len() < PREFACE_BYTES {
        if stream.read_buf(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let head = first
        .first_chunk::<PREFACE_BYTES>()
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    let preface = Preface::decode(head).map_err(io::Error::other)?;
    if preface.resume {
        let refusal = Endpoint::refuse(
            preface.id,
            CloseReason::UnknownStream,
            "this connection is not known here",
        );
        stream.write_all(&refusal).await?;
        return Err(io::Error::other(
            "a stream that is not known here was to be resumed",
        ));
    }
    let mut endpoint = Endpoint::new(preface.id, Limits::default());
    endpoint.attach();
    endpoint.handle_bytes(&first).map_err(io::Error::other)?;
    Ok(Transport::new(
        Box::new(Framed::new(stream, endpoint)),
        BytesMut::new(),
        ended,
    ))
}

/// A transport with a read buffer, since russh reads each packet in two steps, and an end that
/// can be forced, since russh waits for a peer to hang up.
pub struct Transport {
    inner: Box<dyn Stream>,
    buffer: BytesMut,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Transport {
    fn new(inner: Box<dyn Stream>, buffer: BytesMut, ended: CancellationToken) -> Self {
        Self {
            inner,
            buffer,
            ended: Box::pin(ended.cancelled_owned()),
        }
    }

    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffer.capacity() < LARGE {
            self.buffer.reserve(READ);
        }
        tokio_util::io::poll_read_buf(Pin::new(&mut self.inner), context, &mut self.buffer).map_ok(drop)
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.buffer.is_empty() {
            let polled = if out.remaining() >= LARGE {
                Pin::new(&mut this.inner).poll_read(context, out)
            } else {
                this.poll_fill(context)
            };
            if polled.is_pending() {
                // Ended: reads as the peer's end.
                return this.ended.as_mut().poll(context).map(Ok);
            }
            ready!(polled)?;
        }
        let length = this.buffer.len().min(out.remaining());
        out.put_slice(&this.buffer[..length]);
        this.buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write(context, bytes);
        if polled.is_pending() && this.ended.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_flush(context);
        if polled.is_pending() && this.ended.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        polled
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_shutdown(context);
        if polled.is_pending() && this.ended.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        polled
    }
}
