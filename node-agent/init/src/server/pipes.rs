//! A child's standard files, on the server's side.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytes::BytesMut;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::unix::pipe;

use super::pty::Master;

/// Read at once; also the size that a pipe is asked to have.
const CHUNK: usize = 256 * 1024;

/// Terminals give no more at once.
const TERMINAL_CHUNK: usize = 4096;

/// Room below which another chunk is taken.
const LEAST_ROOM: usize = 32 * 1024;

/// Where a child's output comes from.
pub enum Source {
    Pipe(pipe::Receiver),
    Terminal(Arc<AsyncFd<Master>>),
}

impl Source {
    /// Appends what there is; 0: the end.
    pub async fn read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => {
                if buffer.capacity() - buffer.len() < LEAST_ROOM {
                    buffer.reserve(CHUNK);
                }
                pipe.read_buf(buffer).await
            }
            Self::Terminal(master) => {
                let start = buffer.len();
                buffer.resize(start + TERMINAL_CHUNK, 0);
                let read = master
                    .async_io(Interest::READABLE, |master| {
                        Ok(nix::unistd::read(master, &mut buffer[start..])?)
                    })
                    .await;
                let length = match read {
                    Ok(length) => length,
                    // No process has the terminal open any more.
                    Err(error) if error.raw_os_error() == Some(libc::EIO) => 0,
                    Err(error) => {
                        buffer.truncate(start);
                        return Err(error);
                    }
                };
                buffer.truncate(start + length);
                Ok(length)
            }
        }
    }
}

/// Where a child's input goes.
pub enum Sink {
    Pipe(pipe::Sender),
    Terminal(Arc<AsyncFd<Master>>),
}

impl Sink {
    /// Writes all. An error: the child does not read any more.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.write_all(bytes).await,
            Self::Terminal(master) => {
                while !bytes.is_empty() {
                    let written = master
                        .async_io(Interest::WRITABLE, |master| {
                            Ok(nix::unistd::write(master.as_fd(), bytes)?)
                        })
                        .await?;
                    bytes = &bytes[written..];
                }
                Ok(())
            }
        }
    }
}

/// A pipe that a child writes: our end, and the child's.
pub fn output_pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
    widen(&ours);
    Ok((pipe::Receiver::from_owned_fd(ours)?, theirs))
}

/// A pipe that a child reads: our end, and the child's.
pub fn input_pipe() -> io::Result<(pipe::Sender, OwnedFd)> {
    let (theirs, ours) = pipe2(OFlag::O_CLOEXEC)?;
    widen(&ours);
    Ok((pipe::Sender::from_owned_fd(ours)?, theirs))
}

/// Fewer switches between reader and writer. A user's share of pipe memory may be used up: then
/// the pipe stays as it is.
fn widen(pipe: &OwnedFd) {
    let _ = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(CHUNK as i32));
}
