//! Copies bytes between two sockets, both ways, as cheaply as the system lets it.
//!
//! A stream of keystrokes is read and written through a small buffer that
//! exists only while there is something to copy: an idle relay holds two
//! sockets and nothing else. When a direction turns out to carry bulk, its
//! bytes are moved with splice(2) through a pipe and never enter user space.

use std::io::{self, ErrorKind};

use tokio::io::Interest;

use crate::socket::Socket;

/// Buffer for small traffic. A read that fills it is taken for bulk.
const SMALL: usize = 16 * 1024;

/// How much a relay carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Bytes from the first socket to the second.
    pub forth: u64,
    /// Bytes from the second socket to the first.
    pub back: u64,
}

/// Relays until both directions have ended.
///
/// The end of one direction is passed on by shutting down that direction of
/// the other socket, while the opposite direction goes on. An error in either
/// direction ends both; the sockets are then to be dropped.
///
/// Safe to cancel, with the loss of the bytes under way.
pub async fn relay(first: &Socket, second: &Socket) -> io::Result<Relayed> {
    let (forth, back) = tokio::try_join!(pump(first, second), pump(second, first))?;
    Ok(Relayed { forth, back })
}

/// How a burst of bytes ended.
enum Burst {
    /// The source has nothing more at the moment.
    Dry,
    /// The source has ended.
    End,
    /// These sockets cannot be spliced, or no pipe is to be had.
    Unsupported,
}

/// One direction, to its end.
async fn pump(from: &Socket, to: &Socket) -> io::Result<u64> {
    let mut total = 0;
    let mut bulk = false;
    loop {
        from.ready(Interest::READABLE).await?;
        if bulk {
            let before = total;
            match splice::burst(from, to, &mut total).await? {
                Burst::Dry => {
                    bulk = total - before >= SMALL as u64;
                    continue;
                }
                Burst::End => break,
                Burst::Unsupported => {}
            }
        }
        match small(from, to).await? {
            Some(0) => break,
            Some(count) => {
                total += count as u64;
                bulk = count == SMALL;
            }
            None => {}
        }
        // A source that always has more must not keep its thread from other relays.
        tokio::task::coop::consume_budget().await;
    }
    to.finish()?;
    Ok(total)
}

/// Copies once through a buffer: the number of bytes, zero at the source's
/// end, none when nothing was there.
async fn small(from: &Socket, to: &Socket) -> io::Result<Option<usize>> {
    let mut buffer = vec![0; SMALL];
    let count = match from.try_read(&mut buffer) {
        Ok(count) => count,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut rest = &buffer[..count];
    while !rest.is_empty() {
        match to.try_write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => to.ready(Interest::WRITABLE).await?,
            Err(error) => return Err(error),
        }
    }
    Ok(Some(count))
}

#[cfg(target_os = "linux")]
mod splice {
    //! splice(2) from a socket into a pipe and on into a socket.

    use std::cell::RefCell;
    use std::io::{self, ErrorKind};
    use std::os::fd::OwnedFd;

    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
    use nix::unistd::pipe2;
    use tokio::io::Interest;

    use super::Burst;
    use crate::socket::Socket;

    /// Capacity asked of a pipe; a kernel that grants less is used with less.
    /// Larger ones measure no faster and leave the caches.
    const PIPE_BYTES: i32 = 256 * 1024;

    /// Empty pipes kept by each thread: making one costs three system calls,
    /// and a thread seldom has more bursts under way at one time.
    const SPARE_PIPES: usize = 8;

    thread_local! {
        static SPARE: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
    }

    struct Pipe {
        read: OwnedFd,
        write: OwnedFd,
    }

    impl Pipe {
        fn take() -> io::Result<Self> {
            if let Some(pipe) = SPARE.with_borrow_mut(Vec::pop) {
                return Ok(pipe);
            }
            let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
            // Fails when the user's pipes use much memory already: the default serves.
            fcntl(&write, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES)).ok();
            Ok(Self { read, write })
        }

        /// Keeps the pipe for the next burst. It must be empty.
        fn give_back(self) {
            SPARE.with_borrow_mut(|spare| {
                if spare.len() < SPARE_PIPES {
                    spare.push(self);
                }
            });
        }
    }

    fn flags() -> SpliceFFlags {
        SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK
    }

    /// Moves bytes until the source has none, and adds their number to `total`.
    pub(super) async fn burst(from: &Socket, to: &Socket, total: &mut u64) -> io::Result<Burst> {
        let Ok(pipe) = Pipe::take() else {
            return Ok(Burst::Unsupported);
        };
        loop {
            let fill = || {
                Ok(splice(
                    from,
                    None,
                    &pipe.write,
                    None,
                    PIPE_BYTES as usize,
                    flags(),
                )?)
            };
            let mut held = match from.try_io(Interest::READABLE, fill) {
                Ok(0) => {
                    pipe.give_back();
                    return Ok(Burst::End);
                }
                Ok(held) => held,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    pipe.give_back();
                    return Ok(Burst::Dry);
                }
                Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => {
                    return Ok(Burst::Unsupported);
                }
                Err(error) => return Err(error),
            };
            while held > 0 {
                let drain = || Ok(splice(&pipe.read, None, to, None, held, flags())?);
                match to.try_io(Interest::WRITABLE, drain) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(moved) => {
                        held -= moved;
                        *total += moved as u64;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        to.ready(Interest::WRITABLE).await?;
                    }
                    Err(error) => return Err(error),
                }
            }
            tokio::task::coop::consume_budget().await;
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod splice {
    //! Other systems copy.

    use std::io;

    use super::Burst;
    use crate::socket::Socket;

    pub(super) async fn burst(_: &Socket, _: &Socket, _: &mut u64) -> io::Result<Burst> {
        Ok(Burst::Unsupported)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    async fn tcp_pair() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (
            near.expect("a connection").into(),
            far.expect("a connection").0.into(),
        )
    }

    fn unix_pair() -> (Socket, Socket) {
        let (near, far) = UnixStream::pair().expect("a pair");
        (near.into(), far.into())
    }

    /// Bytes that repeat with a period prime to every buffer size.
    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    /// Bulk one way, then an answer after the half-close: nothing is lost,
    /// reordered, or cut by the end of the other direction.
    async fn bytes_pass((mut client, a): (Socket, Socket), (b, mut server): (Socket, Socket)) {
        const LEN: usize = 5_000_003;
        let relayed = tokio::spawn(async move { relay(&a, &b).await });
        let server = tokio::spawn(async move {
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.expect("bytes");
            server.write_all(b"thank you").await.expect("room");
            server.shutdown().await.expect("an end");
            got
        });
        client.write_all(b"small first").await.expect("room");
        client.write_all(&pattern(LEN)).await.expect("room");
        client.finish().expect("an end");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("an answer");
        let got = server.await.expect("a server");
        assert_eq!(answer, "thank you");
        assert_eq!(&got[..11], b"small first");
        assert!(got[11..] == pattern(LEN), "the bytes differ");
        let relayed = relayed.await.expect("a relay").expect("no error");
        assert_eq!(
            relayed,
            Relayed {
                forth: 11 + LEN as u64,
                back: 9
            }
        );
    }

    #[tokio::test]
    async fn bytes_pass_between_tcp_and_unix() {
        bytes_pass(tcp_pair().await, unix_pair()).await;
        bytes_pass(unix_pair(), tcp_pair().await).await;
    }

    #[tokio::test]
    async fn bytes_pass_between_sockets_of_one_kind() {
        bytes_pass(tcp_pair().await, tcp_pair().await).await;
        bytes_pass(unix_pair(), unix_pair()).await;
    }

    /// A peer that vanishes ends the relay, though the other side never closes.
    #[tokio::test]
    async fn an_error_on_one_side_ends_both_directions() {
        let (mut client, a) = unix_pair();
        let (b, server) = unix_pair();
        drop(server);
        client.write_all(b"into the void").await.expect("room");
        assert!(relay(&a, &b).await.is_err());
    }
}
