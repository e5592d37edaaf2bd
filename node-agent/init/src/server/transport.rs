//! What carries an SSH connection: the socket itself, or a framed stream over it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use carrel_core::stream::claim::{CLAIM_BYTES, CLAIM_MAGIC, Claim};
use carrel_core::stream::{CloseReason, Endpoint, Limits, MAGIC, PREFACE_BYTES, Preface};
use carrel_proto::claim::StreamKey;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::framed::Framed;
use super::streams::Streams;

/// A client that says nothing for so long waits for the server's first line: a raw one.
const SILENCE: Duration = Duration::from_secs(2);

/// Read from the socket at once: several of SSH's largest packets.
const READ: usize = 256 * 1024;

/// Reads this large go past the buffer.
const LARGE: usize = 64 * 1024;

/// Any of them.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// What a peer wants, by its first bytes.
pub enum Greeting {
    /// SSH, as through a jump host; these bytes of it were read.
    Raw(UnixStream, BytesMut),
    /// A new stream; these bytes were read, the preface first.
    New(UnixStream, Preface, BytesMut),
    /// To go on with a stream.
    Claim(UnixStream, Claim),
}

/// Finds out from the first bytes what the peer speaks: `SSH-…` is raw, the magics are framed.
pub async fn greet(mut stream: UnixStream) -> io::Result<Greeting> {
    let mut first = BytesMut::with_capacity(READ);
    let undecided = |first: &[u8]| MAGIC.starts_with(first) || CLAIM_MAGIC.starts_with(first);
    let sniff = async {
        while first.len() < MAGIC.len() && undecided(&first) {
            read_more(&mut stream, &mut first).await?;
        }
        Ok::<(), io::Error>(())
    };
    match tokio::time::timeout(SILENCE, sniff).await {
        Ok(result) => result?,
        Err(_) if first.is_empty() => {}
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    }
    if first.starts_with(&CLAIM_MAGIC) {
        while first.len() < CLAIM_BYTES {
            read_more(&mut stream, &mut first).await?;
        }
        // Who claims waits for the answer: more is no claim.
        let whole = first[..].try_into().map_err(io::Error::other)?;
        let claim = Claim::decode(&whole).map_err(io::Error::other)?;
        return Ok(Greeting::Claim(stream, claim));
    }
    if !first.starts_with(&MAGIC) {
        return Ok(Greeting::Raw(stream, first));
    }
    while first.len() < PREFACE_BYTES {
        read_more(&mut stream, &mut first).await?;
    }
    let head = first
        .first_chunk::<PREFACE_BYTES>()
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    let preface = Preface::decode(head).map_err(io::Error::other)?;
    Ok(Greeting::New(stream, preface, first))
}

async fn read_more(stream: &mut UnixStream, first: &mut BytesMut) -> io::Result<()> {
    match stream.read_buf(first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

impl Greeting {
    /// Says why the peer is not served, in its own language, and hangs up.
    pub async fn refuse(self, text: &str) -> io::Result<()> {
        match self {
            // A line before the version is for people (RFC 4253, 4.2).
            Self::Raw(mut stream, _) => stream.write_all(format!("{text}\r\n").as_bytes()).await,
            Self::New(mut stream, Preface { id, .. }, _) | Self::Claim(mut stream, Claim { id, .. }) => {
                let refusal = Endpoint::refuse(id, CloseReason::Refused, text);
                stream.write_all(&refusal).await
            }
        }
    }
}

/// Begins with a framed stream.
pub async fn begin(
    mut stream: UnixStream,
    preface: Preface,
    first: BytesMut,
    streams: &Arc<Streams>,
    ended: CancellationToken,
) -> io::Result<Transport> {
    let key = StreamKey::new(rand::random());
    let place = if preface.resume {
        None
    } else {
        key.accepted(preface.id, &preface.key)
            .and_then(|secret| streams.add(preface.id, secret))
    };
    let Some(place) = place else {
        let text = "a new stream begins with an id and a key of its own";
        let refusal = Endpoint::refuse(preface.id, CloseReason::Protocol, text);
        stream.write_all(&refusal).await?;
        return Err(io::Error::other(text));
    };
    let mut endpoint = Endpoint::new(preface.id, key.public(), Limits::default());
    endpoint.attach();
    endpoint.handle_bytes(&first).map_err(io::Error::other)?;
    let framed = Framed::new(stream, endpoint, place);
    Ok(Transport::new(Box::new(framed), BytesMut::new(), ended))
}

/// A transport with a read buffer, since russh reads each packet in two steps, and an end that
/// can be forced, since russh waits for a peer to hang up.
pub struct Transport {
    inner: Box<dyn Stream>,
    buffer: BytesMut,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Transport {
    /// `buffer` was read from `inner` already. Cancelling `ended` forces the end.
    pub fn new(inner: Box<dyn Stream>, buffer: BytesMut, ended: CancellationToken) -> Self {
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
