//! stdin and stdout without threads, where what they are allows it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// stdin: a pipe or a socket, as SSH gives a ProxyCommand, is read without a thread between.
pub fn input() -> Box<dyn AsyncRead + Unpin + Send> {
    if let Ok(pipe) = fd_of(&io::stdin()).and_then(|fd| {
        widen(&fd);
        pipe::Receiver::from_owned_fd(fd)
    }) {
        return Box::new(pipe);
    }
    if let Ok(socket) = socket_of(&io::stdin()) {
        return Box::new(socket);
    }
    Box::new(tokio::io::stdin())
}

/// stdout, likewise.
pub fn output() -> Box<dyn AsyncWrite + Unpin + Send> {
    if let Ok(pipe) = fd_of(&io::stdout()).and_then(|fd| {
        widen(&fd);
        pipe::Sender::from_owned_fd(fd)
    }) {
        return Box::new(pipe);
    }
    if let Ok(socket) = socket_of(&io::stdout()) {
        return Box::new(socket);
    }
    Box::new(tokio::io::stdout())
}

fn fd_of(of: &impl AsFd) -> io::Result<OwnedFd> {
    of.as_fd().try_clone_to_owned()
}

fn socket_of(of: &impl AsFd) -> io::Result<UnixStream> {
    let fd = fd_of(of)?;
    nix::sys::socket::getpeername::<nix::sys::socket::UnixAddr>(std::os::fd::AsRawFd::as_raw_fd(&fd))?;
    let socket = std::os::unix::net::UnixStream::from(fd);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// More fits into the pipe, so that bulk takes fewer turns; as it was where the system refuses.
#[cfg(target_os = "linux")]
fn widen(pipe: &OwnedFd) {
    const PIPE_BYTES: i32 = 256 * 1024;
    nix::fcntl::fcntl(pipe, nix::fcntl::FcntlArg::F_SETPIPE_SZ(PIPE_BYTES)).ok();
}

#[cfg(not(target_os = "linux"))]
fn widen(_pipe: &OwnedFd) {}
