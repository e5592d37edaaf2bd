//! Pieces on their way to the far side.

use std::io;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use carrel_core::stream::Transmit;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// How long a last piece may take: nothing depends on it.
const FAREWELL: Duration = Duration::from_millis(200);

/// A piece that is partly sent.
pub struct Outgoing {
    head: Bytes,
    body: Bytes,
}

impl Outgoing {
    /// A body of up to this is copied behind its head, so that a keystroke is one packet.
    const SMALL: usize = 4096;

    /// All of it is still to be sent.
    pub fn new(transmit: Transmit) -> Self {
        if transmit.body.len() <= Self::SMALL {
            let mut whole = BytesMut::with_capacity(transmit.head().len() + transmit.body.len());
            whole.extend_from_slice(transmit.head());
            whole.extend_from_slice(&transmit.body);
            return Self {
                head: whole.freeze(),
                body: Bytes::new(),
            };
        }
        Self {
            head: Bytes::copy_from_slice(transmit.head()),
            body: transmit.body,
        }
    }
}

/// Writes some of what is pending, and clears it at its end. Safe to cancel.
pub async fn send(pending: &mut Option<Outgoing>, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let Some(outgoing) = pending else { return Ok(()) };
    let part = if outgoing.head.is_empty() {
        &mut outgoing.body
    } else {
        &mut outgoing.head
    };
    let written = to.write(part).await?;
    if written == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    part.advance(written);
    if outgoing.head.is_empty() && outgoing.body.is_empty() {
        *pending = None;
    }
    Ok(())
}

/// Writes a last piece, if the far side still takes it.
pub async fn farewell(last: Outgoing, to: &mut (impl AsyncWrite + Unpin)) {
    let mut last = Some(last);
    let all = async { while last.is_some() && send(&mut last, to).await.is_ok() {} };
    tokio::time::timeout(FAREWELL, all).await.ok();
}
