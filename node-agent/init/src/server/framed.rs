//! The resumable stream, as a byte stream for russh, which notices nothing of its transports.
//!
//! There is no task: whoever reads or writes moves frames as well. One task does both, so wakers
//! are never lost between two.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use carrel_core::stream::{Beat, Endpoint, Pulse, Read, Transmit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Instant, Sleep};
use tracing::info;

use super::streams::{KEEP_MS, Place, Word};
use crate::clock::boot_ms;

/// Reads of the transport in one go, before others get their turn.
const READS_AT_ONCE: usize = 8;

/// Longest pause between looks at the clock, since timers stand still while a machine is suspended.
const LOOK_MS: u64 = 60_000;

/// Until the next look after a heartbeat was asked for.
const BEAT_MS: u64 = 1_000;

/// A framed stream over one transport after another.
pub struct Framed {
    transport: Option<Transport>,
    endpoint: Endpoint,
    /// Being written, from this byte on.
    sending: Option<(Transmit, usize)>,
    /// Read from the endpoint, and not yet taken.
    arrived: Bytes,
    place: Place,
    /// Boot time in ms; counts without a transport.
    lost_at: u64,
    timer: Pin<Box<Sleep>>,
}

struct Transport {
    socket: UnixStream,
    pulse: Pulse,
    /// Writes went well so far. After a failure there may still be something to be read.
    writes: bool,
}

impl Transport {
    fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            pulse: Pulse::begin(boot_ms()),
            writes: true,
        }
    }
}

impl Framed {
    /// The endpoint is attached and has heard the peer.
    pub fn new(socket: UnixStream, endpoint: Endpoint, place: Place) -> Self {
        Self {
            transport: Some(Transport::new(socket)),
            endpoint,
            sending: None,
            arrived: Bytes::new(),
            place,
            lost_at: 0,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }

    /// Moves frames both ways until neither goes on; the wakers are set then. An error is the
    /// stream's end.
    fn poll_frames(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while let Poll::Ready(word) = self.place.poll(context) {
            match word {
                Word::Transport(socket) => self.attach(socket),
                Word::GiveUp if self.transport.is_none() => return Err(io::ErrorKind::TimedOut.into()),
                Word::GiveUp => {}
            }
        }
        self.poll_receive(context)?;
        self.poll_timer(context)?;
        if let Poll::Ready(Err(_)) = self.poll_send(context) {
            // What was received before says more, if only that the peer hung up.
            self.sending = None;
            if let Some(transport) = &mut self.transport {
                transport.writes = false;
            }
            self.poll_receive(context)?;
        }
        Ok(())
    }

    fn attach(&mut self, socket: UnixStream) {
        let lost_ms = match self.transport {
            Some(_) => 0,
            None => boot_ms().saturating_sub(self.lost_at),
        };
        info!(lost_ms, "the client is back");
        self.transport = Some(Transport::new(socket));
        self.sending = None;
        self.endpoint.attach();
        self.place.attach();
        self.look_after(0);
    }

    /// The transport is gone. A client that has ended its direction does not come back.
    fn cut(&mut self) {
        self.transport = None;
        self.sending = None;
        self.endpoint.detach();
        if !self.endpoint.has_peer_finished() {
            info!("the connection was cut; waiting for the client");
            self.lost_at = boot_ms();
            self.place.detach(self.lost_at);
            self.look_after(0);
        }
    }

    fn look_after(&mut self, pause_ms: u64) {
        self.timer
            .as_mut()
            .reset(Instant::now() + Duration::from_millis(pause_ms));
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let mut reads = 0;
        while let Some(transport) = &mut self.transport {
            let buffer = self.endpoint.receive_buffer();
            match tokio_util::io::poll_read_buf(Pin::new(&mut transport.socket), context, buffer) {
                Poll::Ready(Ok(0) | Err(_)) => self.cut(),
                Poll::Ready(Ok(_)) => {
                    transport.pulse.heard(boot_ms());
                    let handled = self.endpoint.handle_received();
                    if let Err(error) = handled {
                        // What is to be said of it goes out if it can.
                        let _ = self.poll_send(context);
                        return Err(io::Error::other(error));
                    }
                }
                Poll::Pending => return Ok(()),
            }
            reads += 1;
            if reads == READS_AT_ONCE {
                context.waker().wake_by_ref();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Keeps the transport alive, notices that it is dead, and ends a wait that was too long.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.timer.as_mut().poll(context).is_ready() {
            let now = boot_ms();
            let pause = match &self.transport {
                Some(transport) => match transport.pulse.look(now) {
                    Beat::Rest(pause) => pause,
                    Beat::Due => {
                        self.endpoint.beat();
                        BEAT_MS
                    }
                    Beat::Dead => {
                        self.cut();
                        continue;
                    }
                },
                None => match KEEP_MS.saturating_sub(now.saturating_sub(self.lost_at)) {
                    0 => return Err(io::ErrorKind::TimedOut.into()),
                    left => left,
                },
            };
            self.look_after(pause.clamp(1, LOOK_MS));
        }
        Ok(())
    }

    /// Ready when there is nothing more to send.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(transport) = self.transport.as_mut().filter(|transport| transport.writes) else {
            return Poll::Ready(Ok(()));
        };
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
            *done += ready!(Pin::new(&mut transport.socket).poll_write_vectored(context, parts))?;
            transport.pulse.said(boot_ms());
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
                Read::Pending if moved => return Poll::Pending,
                Read::Pending => {
                    self.poll_frames(context)?;
                    moved = true;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Nobody will take what is written.
    fn is_over(&self) -> bool {
        self.transport.is_none() && self.endpoint.has_peer_finished()
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
            if this.is_over() {
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
        // Without a transport there is nobody to say goodbye to.
        if this.transport.is_none() || (this.endpoint.is_flushed() && this.sending.is_none()) {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}
