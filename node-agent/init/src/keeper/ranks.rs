//! Who keeps what tasks of steps write: a child that is started when somebody connects, and ends when nobody does.
//!
//! The listening socket stays here, so that one that died has a successor and a step finds somebody at any time.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use carrel_proto::inside::RANKS_DIR;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::Pid;

use super::main_command::LAST_WRITES_MS;
use super::run::Keeper;
use super::say;
use super::spawn::spawn_ranks;
use crate::ranks::fds;
use crate::wire::Exited;

/// After one that died, or could not be started, the next waits so long.
const BACKOFF_MS: u64 = 1_000;

/// What is made while there is still a right to.
#[derive(Debug)]
pub struct RanksFiles {
    dir: OwnedFd,
    socket: OwnedFd,
}

impl RanksFiles {
    /// A directory in the run directory, to which nothing but this descriptor leads the user, and the socket.
    pub fn make(run_dir: &Path, socket: &Path) -> io::Result<Self> {
        let dir = run_dir.join(RANKS_DIR);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // The user makes files in it by the descriptor; the way to it is shut by the run directory.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777))?;
        let dir = File::open(&dir)?;
        match fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        fs::set_permissions(socket, fs::Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            dir: dir.into(),
            socket: listener.into(),
        })
    }
}

/// The child.
#[derive(Debug, Default)]
pub struct Ranks {
    pid: Option<Pid>,
    /// None is started before this time of `CLOCK_BOOTTIME`, ms.
    not_before: u64,
    /// Nobody else connects: the container ends.
    closed: bool,
}

impl Ranks {
    /// Its process.
    pub fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// When there is something to do that only time brings.
    pub fn next_time(&self) -> Option<u64> {
        (self.pid.is_none() && self.not_before > 0).then_some(self.not_before)
    }

    /// It has ended.
    pub fn reaped(&mut self, exited: &Exited, now: u64) {
        self.pid = None;
        if exited.signal != 0 || exited.status != 0 {
            say("who keeps the output of ranks ended early");
            self.not_before = now + BACKOFF_MS;
        }
    }
}

impl Keeper {
    /// Where somebody may connect for whom nobody is there.
    pub fn ranks_listener(&self, now: u64) -> Option<BorrowedFd<'_>> {
        let wanted = self.ranks.pid.is_none() && !self.ranks.closed && self.ranks.not_before <= now;
        let files = self.prepared.ranks.as_ref().filter(|_| wanted)?;
        Some(files.socket.as_fd())
    }

    /// Starts the child where somebody waits for it.
    pub fn see_to_ranks(&mut self, now: u64) {
        let Some(files) = self.prepared.ranks.as_ref() else {
            return;
        };
        let Some(listener) = self.ranks_listener(now) else {
            return;
        };
        let mut polled = [PollFd::new(listener, PollFlags::POLLIN)];
        if !matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..)) {
            // Seen: it was waited for.
            self.ranks.not_before = 0;
            return;
        }
        let inherited = [(files.socket.as_fd(), fds::SOCKET), (files.dir.as_fd(), fds::DIR)];
        match spawn_ranks(&self.prepared.program, &inherited) {
            Ok(pid) => (self.ranks.pid, self.ranks.not_before) = (Some(pid), 0),
            Err(error) => {
                say(&format!(
                    "cannot start who keeps the output of ranks: {}",
                    error.desc()
                ));
                self.ranks.not_before = now + BACKOFF_MS;
            }
        }
    }

    /// Whether there is still something to write, once everything else has ended; it has some time for that.
    pub fn is_keeping_ranks(&mut self, now: u64, kill_at: u64) -> bool {
        let (Some(files), Some(pid)) = (self.prepared.ranks.as_ref(), self.ranks.pid) else {
            return false;
        };
        if !self.ranks.closed {
            // Who is in it reads what has come, and ends.
            let _ = shutdown(files.socket.as_raw_fd(), Shutdown::Both);
            self.ranks.closed = true;
        }
        if now < kill_at + LAST_WRITES_MS {
            return true;
        }
        say("who keeps the output of ranks does not come to an end");
        let _ = kill(pid, Signal::SIGKILL);
        self.ranks.pid = None;
        false
    }
}
