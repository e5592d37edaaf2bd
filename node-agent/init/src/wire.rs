//! What keeper and server say to each other, over a `SOCK_SEQPACKET` pair.
//!
//! Both are the same binary, so this wire has no versions. Messages are small; what may be large
//! (a command, a configuration) travels as a file in memory beside the message.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use prost::Message;

/// Longest message.
const MAX_MESSAGE: usize = 4096;

/// Most files beside a message: a command and its three standard files.
const MAX_FILES: usize = 4;

/// Terminals of one container, those that have ended included: each holds its scrollback in the
/// job's memory, and two descriptors of process 1.
pub const MAX_TERMINALS: usize = 32;

/// Longest command with its environment, as a file: what `execve` takes, and some.
pub const MAX_COMMAND: usize = 8 << 20;

/// Longest configuration.
pub const MAX_CONFIG: usize = 4 << 20;

/// Descriptors that the server is started with.
pub mod fds {
    /// The socket to the keeper.
    pub const KEEPER: i32 = 3;
    /// The listening `ssh.sock`.
    pub const SSH: i32 = 4;
    /// The listening `ctl.sock`.
    pub const CTL: i32 = 5;
    /// 32 bytes: the seed of the host key.
    pub const SEED: i32 = 6;
    /// The configuration, an `InitConfig`.
    pub const CONFIG: i32 = 7;
}

/// Server to keeper.
#[derive(Clone, PartialEq, Message)]
pub struct ToKeeper {
    /// What is asked.
    #[prost(oneof = "Request", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub request: Option<Request>,
}

/// What the server asks.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Request {
    /// Start a process.
    #[prost(message, tag = "1")]
    Spawn(Spawn),
    /// Signal a process group that was started.
    #[prost(message, tag = "2")]
    Signal(Signal),
    /// Keep the configuration in the file beside this for the next server.
    #[prost(bool, tag = "3")]
    Config(bool),
    /// End everything at this time of `CLOCK_BOOTTIME`, ms.
    #[prost(uint64, tag = "4")]
    LeaseEnd(u64),
    /// End everything: hangup and terminate now, kill after this many ms.
    #[prost(uint64, tag = "5")]
    Stop(u64),
    /// Close the terminal of this number, which has ended.
    #[prost(uint32, tag = "6")]
    Forget(u32),
    /// Signal all of the user's processes of a kind.
    #[prost(message, tag = "7")]
    SignalAll(SignalAll),
    /// Start the job's command, unless it was started before.
    #[prost(message, tag = "8")]
    Main(Main),
}

/// Signal all of the user's processes of a kind.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SignalAll {
    /// Signal number.
    #[prost(int32, tag = "1")]
    pub signal: i32,
    /// Those that terminals were opened with; else all but these.
    #[prost(bool, tag = "2")]
    pub shells: bool,
}

/// Start the job's command. Beside it: a [`Command`], then the file of standard output, and that of standard error
/// where it is another one.
#[derive(Clone, PartialEq, Message)]
pub struct Main {
    /// It cannot be started, for this reason: nothing is beside this.
    #[prost(string, tag = "1")]
    pub failure: String,
    /// What its user is to know of its start, as the first of its output; may be empty.
    #[prost(string, tag = "2")]
    pub note: String,
    /// What the files hold stays.
    #[prost(bool, tag = "3")]
    pub append: bool,
    /// It is a script: what signals are for shells is for it.
    #[prost(bool, tag = "4")]
    pub script: bool,
}

/// Start a process. Beside it: a [`Command`], then either stdin, stdout and stderr, or the terminal.
/// One that is to be kept has our side of it and its memory besides.
#[derive(Clone, PartialEq, Message)]
pub struct Spawn {
    /// Chosen by the server; never used twice by one server.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The one file is a terminal, to become the controlling one.
    #[prost(bool, tag = "2")]
    pub terminal: bool,
    /// The terminal is kept by this number, for this server and those after it.
    #[prost(uint32, optional, tag = "3")]
    pub keep: Option<u32>,
}

/// What to execute.
#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// Path of the program.
    #[prost(bytes = "vec", tag = "1")]
    pub program: Vec<u8>,
    /// Arguments, with the zeroth.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub arguments: Vec<Vec<u8>>,
    /// `NAME=value` each.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub environment: Vec<Vec<u8>>,
    /// Working directory: the first of these that can be entered; else the root.
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub directories: Vec<Vec<u8>>,
}

/// Signal a process group.
#[derive(Clone, PartialEq, Message)]
pub struct Signal {
    /// As in [`Spawn::id`].
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Signal number.
    #[prost(int32, tag = "2")]
    pub signal: i32,
    /// The process of this kept terminal, in place of an id.
    #[prost(uint32, optional, tag = "3")]
    pub kept: Option<u32>,
}

/// Keeper to server.
#[derive(Clone, PartialEq, Message)]
pub struct FromKeeper {
    /// What happened.
    #[prost(oneof = "Event", tags = "1, 2, 3, 4, 5, 6")]
    pub event: Option<Event>,
    /// Live processes that were started through SSH, by this server or one before it. Always
    /// there, so that no message is empty: an empty one would read as the end.
    #[prost(uint32, optional, tag = "15")]
    pub processes: Option<u32>,
}

/// What happened.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Event {
    /// The process of this id runs.
    #[prost(uint64, tag = "1")]
    Started(u64),
    /// The process of this id could not be forked.
    #[prost(message, tag = "2")]
    Failed(Failed),
    /// The process of this id is gone.
    #[prost(message, tag = "3")]
    Exited(Exited),
    /// Everything is being ended.
    #[prost(bool, tag = "4")]
    Stopping(bool),
    /// A kept terminal, with our side of it and its memory. A server's first messages are these.
    #[prost(message, tag = "5")]
    Kept(Kept),
    /// The process of a kept terminal, whose number is the id, is gone.
    #[prost(message, tag = "6")]
    Ended(Exited),
}

/// A terminal that is kept.
#[derive(Clone, PartialEq, Message)]
pub struct Kept {
    /// As in [`Spawn::keep`].
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// How its process ended; absent: it lives.
    #[prost(message, optional, tag = "2")]
    pub exited: Option<Exited>,
}

/// A fork that failed.
#[derive(Clone, PartialEq, Message)]
pub struct Failed {
    /// As in [`Spawn::id`].
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// `errno`.
    #[prost(int32, tag = "2")]
    pub errno: i32,
}

/// How a process ended.
#[derive(Clone, PartialEq, Message)]
pub struct Exited {
    /// As in [`Spawn::id`]; of a kept terminal, its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Exit status, if it exited.
    #[prost(uint32, tag = "2")]
    pub status: u32,
    /// Signal that killed it; 0: none.
    #[prost(int32, tag = "3")]
    pub signal: i32,
    /// It left a core dump.
    #[prost(bool, tag = "4")]
    pub core_dumped: bool,
}

/// Sends one message. `EAGAIN` on a socket that does not block.
pub fn send(socket: RawFd, message: &[u8], files: &[RawFd]) -> nix::Result<()> {
    let rights = [ControlMessage::ScmRights(files)];
    let control = if files.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(
        socket,
        &[IoSlice::new(message)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
    .map(drop)
}

/// Receives one message and its files. `None`: the other side is gone. `EAGAIN` as in [`send`].
pub fn receive(socket: RawFd) -> nix::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_MESSAGE];
    let mut control = nix::cmsg_space!([RawFd; MAX_FILES]);
    let (length, raw, flags) = {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let got = recvmsg::<()>(socket, &mut parts, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
        let mut raw = Vec::new();
        for message in got.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = message {
                raw.extend(fds);
            }
        }
        (got.bytes, raw, got.flags)
    };
    let files = raw.into_iter().map(own).collect();
    if flags.contains(MsgFlags::MSG_TRUNC) || flags.contains(MsgFlags::MSG_CTRUNC) {
        return Err(Errno::EMSGSIZE);
    }
    if length == 0 {
        return Ok(None);
    }
    buffer.truncate(length);
    Ok(Some((buffer, files)))
}

/// Takes a descriptor that this process has just been given.
#[allow(unsafe_code)]
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel installed the descriptor in `recvmsg`, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Takes one of the descriptors in [`fds`], of which the server's start is the only user.
#[allow(unsafe_code)]
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    nix::fcntl::fcntl(
        // SAFETY: borrowed for this call only; a descriptor that is not open gives EBADF.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) },
        nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC),
    )?;
    Ok(own(fd))
}

/// Raw numbers of some descriptors, as `sendmsg` wants them.
pub fn raw(files: &[OwnedFd]) -> Vec<RawFd> {
    files.iter().map(AsRawFd::as_raw_fd).collect()
}
