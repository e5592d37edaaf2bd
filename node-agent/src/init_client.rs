//! The control wire to a container's carrel-init (`carrel/v1/init.proto`).
//!
//! [`keep_told`] keeps a connection to `ctl.sock`, sends the
//! whole [`Told`] at each connect and at each change, and hands on what
//! carrel-init says of itself. Either side may restart.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use carrel_proto::v1::{InitConfig, InitRequest, InitStatus};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::clock::boot_ms;

/// Longest status: a host key and some numbers.
const MAX_STATUS: usize = 64 * 1024;
/// Between attempts to connect: carrel-init is up within some milliseconds of its start.
const RETRY: Duration = Duration::from_millis(5);
/// Attempts at that pace; later ones are slower.
const QUICK_ATTEMPTS: u32 = 400;
/// The slower pace.
const SLOW_RETRY: Duration = Duration::from_millis(500);

/// Everything that a carrel-init is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// The whole configuration; none: what it has stays.
    pub config: Option<InitConfig>,
    /// When the lease ends, milliseconds of `CLOCK_BOOTTIME`; none: it holds none.
    pub lease_end_ms: Option<u64>,
    /// End everything, with this grace.
    pub stop_grace_ms: Option<u64>,
}

impl Told {
    fn request(&self) -> InitRequest {
        let now = boot_ms();
        InitRequest {
            config: self.config.clone(),
            lease_remaining_ms: self.lease_end_ms.map(|end| end.saturating_sub(now)),
            stop_grace_ms: self.stop_grace_ms,
        }
    }
}

/// Keeps a carrel-init told until `cancel`, handing each of its statuses to `heard`.
pub async fn keep_told(
    socket: PathBuf,
    mut told: watch::Receiver<Told>,
    mut heard: impl FnMut(InitStatus),
    cancel: CancellationToken,
) {
    let mut attempt = 0u32;
    loop {
        let talk = talk(&socket, &mut told, &mut heard, &mut attempt);
        tokio::select! {
            // A message cut half-way is followed by the end of its connection: carrel-init drops it.
            () = cancel.cancelled() => return,
            ended = talk => if let Err(error) = ended {
                debug!(error = %format!("{error:#}"), "not connected to carrel-init");
            },
        }
        attempt = attempt.saturating_add(1);
        let pause = if attempt < QUICK_ATTEMPTS {
            RETRY
        } else {
            SLOW_RETRY
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// What a carrel-init says of itself now.
///
/// # Errors
/// There is none, or it does not answer.
pub async fn status(socket: &std::path::Path) -> Result<InitStatus> {
    let stream = UnixStream::connect(socket).await.context("its control socket")?;
    // It says so to whoever comes; the other half stays open until it has.
    let (reader, _writer) = stream.into_split();
    let mut statuses = Statuses {
        reader,
        buffer: Vec::new(),
    };
    statuses.next().await
}

async fn talk(
    socket: &PathBuf,
    told: &mut watch::Receiver<Told>,
    heard: &mut impl FnMut(InitStatus),
    attempt: &mut u32,
) -> Result<()> {
    let stream = UnixStream::connect(socket).await.context("its control socket")?;
    let (reader, mut writer) = stream.into_split();
    let mut statuses = Statuses {
        reader,
        buffer: Vec::new(),
    };
    told.mark_changed();
    loop {
        tokio::select! {
            // Cancel-safe: marks the value as seen only when it completes.
            changed = told.changed() => {
                changed.context("nobody has anything to tell it any more")?;
                let request = told.borrow_and_update().request();
                let mut frame = (request.encoded_len() as u32).to_be_bytes().to_vec();
                request.encode(&mut frame)?;
                writer.write_all(&frame).await?;
            }
            // Cancel-safe: what was read is kept in the buffer.
            status = statuses.next() => {
                heard(status?);
                *attempt = 0;
            }
        }
    }
}

/// Statuses as they come, kept whole over a cancelled read.
struct Statuses {
    reader: OwnedReadHalf,
    buffer: Vec<u8>,
}

impl Statuses {
    async fn next(&mut self) -> Result<InitStatus> {
        loop {
            if let Some(header) = self.buffer.first_chunk::<4>() {
                let length = u32::from_be_bytes(*header) as usize;
                if length > MAX_STATUS {
                    bail!("it sent a status of {length} bytes");
                }
                if self.buffer.len() >= 4 + length {
                    let status = InitStatus::decode(&self.buffer[4..4 + length]).context("its status")?;
                    self.buffer.drain(..4 + length);
                    return Ok(status);
                }
            }
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                bail!("it closed its control socket");
            }
        }
    }
}
