//! SFTP version 3 (draft-ietf-secsh-filexfer-02) with OpenSSH's extensions, with the user's rights.
//!
//! Own code, not russh-sftp: that one replaces what is not UTF-8 in names, so that such files
//! cannot be reached, and tells FIFOs and sockets as regular files.
//!
//! Requests are taken as they come, whole batches at a time, to a thread where files may block;
//! the next batch waits for its answers to be taken, so that nothing piles up.

mod attributes;
mod handler;
mod wire;

use bytes::{Buf, BytesMut};
use russh::server::{Handle, Msg};
use russh::{Channel, ChannelMsg, ChannelReadHalf};
use tracing::{debug, info};

use self::handler::Files;

/// Longest packet, as OpenSSH's.
const MAX_PACKET: usize = 256 * 1024;
/// Answers of one batch: what waits, at most, for the channel's window.
const MAX_ANSWERS: usize = 1 << 20;

/// Serves SFTP on a channel until its end, and closes it.
pub async fn serve(channel: Channel<Msg>, handle: Handle, home: String) {
    let (mut from, to) = channel.split();
    let id = to.id();
    let mut files = Files::new(home.into());
    let mut input = BytesMut::new();
    let status = loop {
        match complete(&input) {
            Ok(true) => {}
            Ok(false) if receive(&mut from, &mut input).await => continue,
            Ok(false) => break 0,
            Err(length) => {
                info!(length, "an SFTP packet is too long");
                break 1;
            }
        }
        let batch = tokio::task::spawn_blocking(move || {
            let mut answers = BytesMut::new();
            while answers.len() < MAX_ANSWERS && complete(&input) == Ok(true) {
                let length = input.get_u32() as usize;
                let packet = input.split_to(length);
                files.handle(&packet, &mut answers);
            }
            (files, input, answers)
        });
        let answers;
        match batch.await {
            Ok(done) => (files, input, answers) = done,
            Err(error) => {
                info!(%error, "an SFTP request");
                break 1;
            }
        }
        if let Err(error) = to.data_bytes(answers.freeze()).await {
            debug!(%error, "SFTP");
            return;
        }
    };
    // The channel may be gone.
    let _ = handle.exit_status_request(id, status).await;
    let _ = handle.eof(id).await;
    let _ = handle.close(id).await;
}

/// Whether a whole packet is there; an error is the length of one that is too long.
fn complete(input: &[u8]) -> Result<bool, usize> {
    let Some(length) = input.first_chunk::<4>() else {
        return Ok(false);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_PACKET {
        return Err(length);
    }
    Ok(input.len() >= 4 + length)
}

/// Waits for more; `false`: nothing more will come.
async fn receive(from: &mut ChannelReadHalf, input: &mut BytesMut) -> bool {
    loop {
        match from.wait().await {
            Some(ChannelMsg::Data { data }) => {
                input.extend_from_slice(&data);
                return true;
            }
            Some(ChannelMsg::Eof | ChannelMsg::Close) | None => return false,
            Some(_) => {}
        }
    }
}
