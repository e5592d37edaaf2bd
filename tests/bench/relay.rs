//! Plain relays, and the two ways in which OpenSSH's client reaches a socket.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use carrel_tests::process::Cmd;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// As much as one read takes; OpenSSH's own packets are smaller.
const BUFFER: usize = 256 << 10;

/// Connects to `socket` and sends the connection to whoever reads standard output.
pub fn pass_socket(socket: &Path) -> anyhow::Result<()> {
    let stream =
        UnixStream::connect(socket).with_context(|| format!("connecting to {}", socket.display()))?;
    let fds = [stream.as_raw_fd()];
    let byte = [IoSlice::new(b"\0")];
    let stdout = io::stdout().as_raw_fd();
    sendmsg::<()>(
        stdout,
        &byte,
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::empty(),
        None,
    )
    .context("passing the connection on")?;
    Ok(())
}

/// Copies between the standard streams and `socket` until both directions have ended.
pub fn pipe(socket: &Path) -> anyhow::Result<()> {
    let stream =
        UnixStream::connect(socket).with_context(|| format!("connecting to {}", socket.display()))?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            copy(&mut io::stdin().lock(), &mut &stream);
            // The other direction may be over.
            stream.shutdown(Shutdown::Write).ok();
        });
        copy(&mut &stream, &mut RawStdout);
        // The client is gone with its socket: standard input has nobody left to read for.
        std::process::exit(0);
    })
}

/// Standard output without a buffer.
struct RawStdout;

impl Write for RawStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn copy(from: &mut impl Read, to: &mut impl Write) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}

/// Accepts at `at` and relays each connection to `to`, for as long as this process lives.
pub fn relay(at: PathBuf, to: PathBuf) -> anyhow::Result<()> {
    let listener = UnixListener::bind(&at).with_context(|| format!("listening at {}", at.display()))?;
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            match UnixStream::connect(&to) {
                Ok(far) => both_ways(near, far),
                Err(error) => eprintln!("relay to {}: {error}", to.display()),
            }
        }
    });
    Ok(())
}

fn both_ways(near: UnixStream, far: UnixStream) {
    for (mut from, mut to) in [clones(&near, &far), clones(&far, &near)] {
        std::thread::spawn(move || {
            copy(&mut from, &mut to);
            // Its other end may have closed already.
            to.shutdown(Shutdown::Write).ok();
        });
    }
}

fn clones(from: &UnixStream, to: &UnixStream) -> (UnixStream, UnixStream) {
    let clone = |stream: &UnixStream| stream.try_clone().expect("descriptors are left");
    (clone(from), clone(to))
}

/// Accepts at `at` and starts `server` with each connection as its standard streams, as inetd does.
pub fn serve(at: PathBuf, server: Cmd) -> anyhow::Result<()> {
    let listener = UnixListener::bind(&at).with_context(|| format!("listening at {}", at.display()))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let stdin: Stdio = stream.try_clone().map_or_else(
                |_| Stdio::null(),
                |clone| std::os::fd::OwnedFd::from(clone).into(),
            );
            let stdout: Stdio = std::os::fd::OwnedFd::from(stream).into();
            let started = Command::new(&server.argv()[0])
                .args(&server.argv()[1..])
                .stdin(stdin)
                .stdout(stdout)
                .spawn();
            match started {
                Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
                Err(error) => eprintln!("{server}: {error}"),
            }
        }
    });
    Ok(())
}
