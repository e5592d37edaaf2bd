//! Bytes between a channel and a socket, each way at its reader's pace.

use std::io;

use bytes::BytesMut;
use russh::server::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::shared::Shared;

/// Read from a socket at once; also what waits, at most, for a channel's window.
const CHUNK: usize = 128 * 1024;

/// Room below which another chunk is taken.
const LEAST_ROOM: usize = 16 * 1024;

/// Relays until both directions have ended or the channel is closed, then closes it. The caller
/// drops it to end it early. What comes in is counted for whoever wants to know how much that is.
pub async fn relay<S: AsyncRead + AsyncWrite>(channel: Channel<Msg>, stream: S, counts: Option<&Shared>) {
    let (mut from_channel, to_channel) = channel.split();
    let (mut from_stream, mut to_stream) = tokio::io::split(stream);
    let inward = inward(&mut from_channel, &mut to_stream, counts);
    let outward = outward(&to_channel, &mut from_stream);
    tokio::pin!(inward, outward);
    tokio::select! {
        // Safe to cancel: either way the channel is over.
        end = &mut inward => match end {
            Inward::Ended => { outward.await; }
            Inward::Closed => return,
        },
        () = &mut outward => { inward.await; }
    }
    // Gone with its connection: then it is closed.
    let _ = to_channel.close().await;
}

/// How the way inward ended.
enum Inward {
    /// The client has no more to say.
    Ended,
    /// The channel is closed.
    Closed,
}

async fn inward(
    from: &mut ChannelReadHalf,
    to: &mut (impl AsyncWrite + Unpin),
    counts: Option<&Shared>,
) -> Inward {
    // A reader that is gone does not end the other direction; what comes for it is dropped.
    let mut open = true;
    loop {
        match from.wait().await {
            Some(ChannelMsg::Data { data }) if open => {
                if let Some(shared) = counts {
                    shared.carried(data.len());
                }
                open = to.write_all(&data).await.is_ok();
            }
            Some(ChannelMsg::Eof) => {
                // A socket that is closed needs no end.
                let _ = to.shutdown().await;
                return Inward::Ended;
            }
            Some(ChannelMsg::Close) | None => return Inward::Closed,
            Some(_) => {}
        }
    }
}

async fn outward(to: &ChannelWriteHalf<Msg>, from: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = BytesMut::new();
    loop {
        if buffer.capacity() - buffer.len() < LEAST_ROOM {
            buffer.reserve(CHUNK);
        }
        let read: io::Result<usize> = from.read_buf(&mut buffer).await;
        if !matches!(read, Ok(length) if length > 0) {
            // The connection may be gone.
            let _ = to.eof().await;
            return;
        }
        if to.data_bytes(buffer.split().freeze()).await.is_err() {
            return;
        }
    }
}
