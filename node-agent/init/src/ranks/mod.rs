//! The ranks' keeper: takes what tasks of steps write, from the steps' nodes, and keeps the newest of each.
//!
//! What comes is checked as a stranger's would be: the job's user can say what he likes to this socket. He decides what is
//! kept of his own job, and never more than [`rings::LIMITS`] of it. Whoever sends nonsense is cut off.

mod rings;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;

use carrel_proto::v1::{RanksBegin, RanksSays, ranks_says::What};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::socket::{SockFlag, accept4};
use nix::unistd::read;
use prost::Message;

use self::rings::{LIMITS, Rings, Step};
use crate::logger::ignore_signals;
use crate::wire;

/// Longest message: all that a step holds back of one task, and some.
const MAX_MESSAGE: usize = 2 << 20;
/// Bytes of the length before it.
const LENGTH: usize = 4;
/// Read at a time.
const BUFFER: usize = 256 << 10;
/// Steps at a time; more wait.
const MAX_CONNECTIONS: usize = 64;
/// Without any for so long it ends; the next one is started with the next step.
const IDLE_MS: u16 = 10_000;

/// Descriptors that it is started with.
pub mod fds {
    /// The listening socket.
    pub const SOCKET: i32 = 3;
    /// The directory of what is kept.
    pub const DIR: i32 = 4;
}

/// Runs until nobody has anything to say.
pub fn main() -> ExitCode {
    // Executing the binary made the process traceable again.
    if prctl::set_dumpable(false).is_err() {
        return ExitCode::from(1);
    }
    let _ = prctl::set_name(c"carrel-ranks");
    ignore_signals();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("carrel-init ranks: {error}");
            ExitCode::from(1)
        }
    }
}

fn run() -> io::Result<()> {
    let listener = wire::inherited(fds::SOCKET)?;
    let mut rings = Rings::open(wire::inherited(fds::DIR)?, LIMITS)?;
    let mut sayers: Vec<Sayer> = Vec::new();
    let mut buffer = vec![0; BUFFER];
    let mut closed = false;
    loop {
        if closed && sayers.is_empty() {
            return Ok(());
        }
        let listens = !closed && sayers.len() < MAX_CONNECTIONS;
        let mut polled: Vec<PollFd> = sayers
            .iter()
            .map(|sayer| PollFd::new(sayer.socket.as_fd(), PollFlags::POLLIN))
            .collect();
        if listens {
            polled.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
        }
        let patience = if sayers.is_empty() {
            PollTimeout::from(IDLE_MS)
        } else {
            PollTimeout::NONE
        };
        match poll(&mut polled, patience) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let events: Vec<PollFlags> = polled
            .iter()
            .map(|one| one.revents().unwrap_or(PollFlags::POLLHUP))
            .collect();
        let mut ready = events.iter();
        sayers.retain_mut(|sayer| {
            let is_ready = ready.next().is_some_and(|events| !events.is_empty());
            !is_ready || sayer.hear(&mut buffer, &mut rings)
        });
        if let Some(events) = events.last().filter(|_| listens) {
            if events.contains(PollFlags::POLLIN) {
                accept_all(&listener, &mut sayers);
            }
            // The container ends: who waits was let in, and nobody else comes.
            closed = events.contains(PollFlags::POLLHUP);
        }
    }
}

fn accept_all(listener: &OwnedFd, sayers: &mut Vec<Sayer>) {
    while sayers.len() < MAX_CONNECTIONS {
        match accept4(
            listener.as_raw_fd(),
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        ) {
            Ok(raw) => sayers.push(Sayer {
                socket: wire::own(raw),
                said: Vec::new(),
                step: None,
            }),
            Err(Errno::EINTR | Errno::ECONNABORTED) => {}
            // No more wait, or none can be let in now.
            Err(_) => return,
        }
    }
}

/// One step's node.
struct Sayer {
    socket: OwnedFd,
    /// What is not a whole message yet.
    said: Vec<u8>,
    /// None: it has not said who it is.
    step: Option<Step>,
}

impl Sayer {
    /// Takes what is there; whether there may be more.
    fn hear(&mut self, buffer: &mut [u8], rings: &mut Rings) -> bool {
        match read(&self.socket, buffer) {
            Ok(0) => false,
            Ok(length) => {
                self.said.extend_from_slice(&buffer[..length]);
                match self.take(rings) {
                    Ok(()) => true,
                    Err(why) => {
                        eprintln!("carrel-init ranks: a step is not listened to any more: {why}");
                        false
                    }
                }
            }
            Err(Errno::EINTR | Errno::EAGAIN) => true,
            Err(_) => false,
        }
    }

    /// Does what all whole messages say.
    fn take(&mut self, rings: &mut Rings) -> Result<(), String> {
        let mut rest = &self.said[..];
        while let Some(length) = rest.first_chunk::<LENGTH>() {
            let length = u32::from_be_bytes(*length) as usize;
            if length > MAX_MESSAGE {
                return Err(format!("a message of {length} bytes"));
            }
            let Some(message) = rest.get(LENGTH..LENGTH + length) else {
                break;
            };
            let said = RanksSays::decode(message).map_err(|error| error.to_string())?;
            rest = &rest[LENGTH + length..];
            match (said.what, &self.step) {
                (Some(What::Begin(RanksBegin { step, command, ranks })), None) => {
                    rings.begin(&ranks).map_err(|error| error.to_string())?;
                    self.step = Some(Step::new(step, &command));
                }
                (Some(What::Output(output)), Some(step)) => {
                    rings.write(step, &output).map_err(|error| error.to_string())?;
                }
                // What a later version says more is left alone.
                (None, _) => {}
                (Some(What::Begin(_)), Some(_)) | (Some(What::Output(_)), None) => {
                    return Err("it speaks out of turn".to_owned());
                }
            }
        }
        let taken = self.said.len() - rest.len();
        self.said.drain(..taken);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use carrel_proto::v1::RankOutput;

    use super::*;

    fn frame(what: What) -> Vec<u8> {
        let message = RanksSays { what: Some(what) }.encode_to_vec();
        [&(message.len() as u32).to_be_bytes()[..], &message].concat()
    }

    fn begin(ranks: &[u32]) -> Vec<u8> {
        frame(What::Begin(RanksBegin {
            step: 0,
            command: "true".into(),
            ranks: ranks.to_vec(),
        }))
    }

    fn output(rank: u32, data: &[u8]) -> Vec<u8> {
        frame(What::Output(RankOutput {
            rank,
            left_out: 0,
            data: data.to_vec(),
        }))
    }

    /// Whether one who says this, in pieces of this size, is listened to until its end.
    fn is_heard(dir: &Path, bytes: &[u8], piece: usize) -> bool {
        let mut rings = Rings::open(std::fs::File::open(dir).unwrap().into(), LIMITS).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut sayer = Sayer {
            socket: ours.into(),
            said: Vec::new(),
            step: None,
        };
        let mut buffer = vec![0; BUFFER];
        for part in bytes.chunks(piece) {
            io::Write::write_all(&mut &theirs, part).unwrap();
            if !sayer.hear(&mut buffer, &mut rings) {
                return false;
            }
        }
        true
    }

    #[test]
    fn what_is_no_message_is_cut_off_and_leaves_the_rest_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let good = [begin(&[0, 1]), output(0, b"one\n"), output(1, b"two\n")].concat();
        for piece in [1, 5, good.len()] {
            assert!(is_heard(path, &good, piece));
        }
        let text = |name: &str| std::fs::read(path.join(name)).unwrap()[8..].to_vec();
        let (first, second) = (text("0.0"), text("1.0"));
        assert!(first.starts_with(b"one\n") && second.starts_with(b"two\n"));
        for bad in [
            &b"\xff\xff\xff\xff"[..],
            b"GET / HTTP/1.1\r\n\r\n",
            &[0, 0, 0, 3, 0xff, 0xff, 0xff],
            &output(0, b"who is this?"),
            &[begin(&[5]), begin(&[6])].concat(),
        ] {
            assert!(!is_heard(path, bad, bad.len()), "{bad:?}");
        }
        // Cut in the middle: nobody waits for the rest.
        assert!(is_heard(path, &good[..good.len() - 2], good.len()));
        assert_eq!(text("1.0"), second);
    }
}
