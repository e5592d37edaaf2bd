//! The command that a batch job's container is there for, and the logger that takes what it writes.
//!
//! It is started once. When it ends by itself, how it did is written where the node's agent finds it, and the
//! container ends. Its output runs through pipes: their reading ends stay here, so that a logger that died has a
//! successor, and nobody who writes gets SIGPIPE.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use carrel_proto::v1::MainEnd;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, ftruncate, pipe2};
use prost::Message;

use super::run::Keeper;
use super::say;
use super::spawn::{Program, Standard, spawn, spawn_logger};
use crate::files;
use crate::logger::{KEPT, fds};
use crate::wire::{self, Exited};

/// Where the node's agent reads how the command ended.
const END: &str = "end.pb";
/// What processes that the command leaves behind have to end in.
const LEFT_BEHIND_MS: u64 = 2_000;
/// What the logger has to write its last after that; a file system that is stuck does not hold the job.
pub const LAST_WRITES_MS: u64 = 5_000;
/// Room in a pipe, bytes, where the system lets a user have so much.
const PIPE_BYTES: i32 = 1 << 20;
/// Exit code of a job whose command could not begin.
const CODE_NOT_BEGUN: u8 = 1;

/// What is made while there is still a right to.
#[derive(Debug)]
pub struct MainFiles {
    end: File,
    kept: [OwnedFd; 2],
}

impl MainFiles {
    /// In the run directory.
    pub fn make(run_dir: &Path) -> io::Result<Self> {
        let make = |name: &str| {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600);
            options.open(run_dir.join(name))
        };
        Ok(Self {
            end: make(END)?,
            kept: [make(KEPT[0])?.into(), make(KEPT[1])?.into()],
        })
    }
}

/// The command, and who takes its output.
#[derive(Debug)]
pub struct Main {
    files: MainFiles,
    /// None: it has ended, or never began.
    pid: Option<Pid>,
    /// It is a script.
    script: bool,
    logger: Logger,
}

#[derive(Debug)]
enum Logger {
    /// There is nothing to log.
    Done,
    /// It has to be started.
    Due(Copies),
    Runs(Pid, Copies),
}

/// What a logger reads and writes.
#[derive(Debug)]
struct Copies {
    stdout: (OwnedFd, OwnedFd),
    stderr: Option<(OwnedFd, OwnedFd)>,
}

impl Main {
    /// The logger's process.
    pub fn logger(&self) -> Option<Pid> {
        match &self.logger {
            Logger::Runs(pid, _) => Some(*pid),
            Logger::Due(_) | Logger::Done => None,
        }
    }

    /// Whether a process is the script that runs: a shell, to signals.
    pub fn is_script(&self, pid: Pid) -> bool {
        self.script && self.pid == Some(pid)
    }

    fn note_end(&mut self, end: &MainEnd) {
        let written = self.files.end.set_len(0);
        let written = written.and_then(|()| self.files.end.write_all(&end.encode_to_vec()));
        if let Err(error) = written {
            say(&format!("how the command ended is not noted: {error}"));
        }
    }
}

impl Keeper {
    /// Starts the command, the first time that it is asked for.
    pub fn start_main(&mut self, asked: &wire::Main, files: Vec<OwnedFd>) {
        if self.stop.is_some() {
            return;
        }
        let Some(own) = self.prepared.main.take() else {
            return;
        };
        let mut main = Main {
            files: own,
            pid: None,
            script: asked.script,
            logger: Logger::Done,
        };
        let failure = if asked.failure.is_empty() {
            begin(&mut main, asked, files).err().map(|error| {
                let why = error.desc();
                format!("its command could not be started: {why}")
            })
        } else {
            Some(asked.failure.clone())
        };
        if let Some(failure) = failure {
            say(&failure);
            main.note_end(&MainEnd {
                status: u32::from(CODE_NOT_BEGUN),
                signal: 0,
                failure,
            });
            self.main = Some(main);
            self.begin_stop(CODE_NOT_BEGUN, 0);
            return;
        }
        self.main = Some(main);
        self.see_to_logger();
    }

    /// Whether a process is the command or its logger.
    pub fn is_of_main(&self, pid: Pid) -> bool {
        let main = self.main.as_ref();
        main.is_some_and(|main| main.pid == Some(pid) || main.logger() == Some(pid))
    }

    /// The command, or its logger, has ended.
    pub fn reaped_main(&mut self, pid: Pid, exited: &Exited) {
        let Some(main) = &mut self.main else { return };
        if main.pid != Some(pid) {
            let is_done = exited.signal == 0 && exited.status == 0;
            if let Logger::Runs(_, copies) = std::mem::replace(&mut main.logger, Logger::Done)
                && !is_done
            {
                say("the logger ended early: another one goes on");
                main.logger = Logger::Due(copies);
            }
            return;
        }
        main.pid = None;
        if self.stop.is_some() {
            // It was asked to end: that is what the job's end is.
            return;
        }
        main.note_end(&MainEnd {
            status: exited.status,
            signal: exited.signal,
            failure: String::new(),
        });
        let code = match exited.signal {
            0 => exited.status,
            signal => 128 + signal as u32,
        };
        self.begin_stop(code as u8, LEFT_BEHIND_MS);
    }

    /// Has a logger there while there is something to log.
    pub fn see_to_logger(&mut self) {
        let Some(main) = &mut self.main else { return };
        let copies = match std::mem::replace(&mut main.logger, Logger::Done) {
            Logger::Due(copies) => copies,
            other @ (Logger::Done | Logger::Runs(..)) => {
                main.logger = other;
                return;
            }
        };
        let [first, second] = &main.files.kept;
        let mut files = vec![
            (copies.stdout.0.as_fd(), fds::OUT_PIPE),
            (copies.stdout.1.as_fd(), fds::OUT_FILE),
            (first.as_fd(), fds::KEPT),
            (second.as_fd(), fds::KEPT + 1),
        ];
        if let Some((pipe, file)) = &copies.stderr {
            files.push((pipe.as_fd(), fds::ERR_PIPE));
            files.push((file.as_fd(), fds::ERR_FILE));
        }
        match spawn_logger(&self.prepared.program, &files) {
            Ok(pid) => main.logger = Logger::Runs(pid, copies),
            // Tried again with the next thing that happens; until then what is written waits in the pipe.
            Err(error) => {
                say(&format!("cannot start the logger: {}", error.desc()));
                main.logger = Logger::Due(copies);
            }
        }
    }

    /// Whether the logger still has something to write, once everything else has ended; it has some time for that.
    pub fn is_logging(&mut self, now: u64, kill_at: u64) -> bool {
        let Some(main) = &mut self.main else { return false };
        let Some(pid) = main.logger() else { return false };
        if now < kill_at + LAST_WRITES_MS {
            return true;
        }
        say("the logger does not come to an end");
        // A process that hangs in a dead file system dies when that lets it.
        let _ = kill(pid, Signal::SIGKILL);
        main.logger = Logger::Done;
        false
    }
}

/// Starts the command, with its output into pipes.
fn begin(main: &mut Main, asked: &wire::Main, files: Vec<OwnedFd>) -> nix::Result<()> {
    let mut files = files.into_iter();
    let command = files.next().ok_or(Errno::EBADMSG)?;
    let command = files::read_all(&command, wire::MAX_COMMAND).map_err(|_| Errno::E2BIG)?;
    let command = wire::Command::decode(&command[..]).map_err(|_| Errno::EBADMSG)?;
    let program = Program::new(command).ok_or(Errno::EINVAL)?;
    let (stdout, stderr) = (files.next().ok_or(Errno::EBADMSG)?, files.next());
    for file in [&stdout].into_iter().chain(&stderr).filter(|_| !asked.append) {
        // What is no plain file has nothing to lose.
        let _ = ftruncate(file, 0);
    }
    let input = open("/dev/null", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let (out, to_out) = wide_pipe()?;
    if !asked.note.is_empty() {
        // It fits: the pipe is empty, and a note is a line.
        nix::unistd::write(&to_out, asked.note.as_bytes())?;
    }
    let (copies, to_err) = match stderr {
        None => (None, copy(&to_out)?),
        Some(file) => {
            let (err, to_err) = wide_pipe()?;
            (Some((err, file)), to_err)
        }
    };
    main.pid = Some(spawn(&program, &Standard::Files([input, to_out, to_err]))?);
    main.logger = Logger::Due(Copies {
        stdout: (out, stdout),
        stderr: copies,
    });
    Ok(())
}

fn wide_pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (from, to) = pipe2(OFlag::O_CLOEXEC)?;
    // As wide as the system lets it be.
    let _ = fcntl(&from, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
    Ok((from, to))
}

fn copy(file: &OwnedFd) -> nix::Result<OwnedFd> {
    file.try_clone()
        .map_err(|error| error.raw_os_error().map_or(Errno::EMFILE, Errno::from_raw))
}
