//! Fork and exec.
//!
//! The keeper has one thread, so a forked child may do anything; still, all that can fail is
//! prepared before the fork.

use std::convert::Infallible;
use std::ffi::{CString, c_int};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, FcntlArg, fcntl};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::{
    ForkResult, Pid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, execve, execveat, fork, setsid,
};

use super::setup::Prepared;
use crate::wire::{self, fds};

/// Exit status of a child whose program cannot be executed, as a shell has it.
const STATUS_CANNOT_EXECUTE: c_int = 126;
/// Exit status of a child whose program does not exist.
const STATUS_NOT_FOUND: c_int = 127;

/// A command whose strings are as `execve` wants them.
#[derive(Debug)]
pub struct Program {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    directories: Vec<CString>,
}

impl Program {
    /// `None`: a string with a zero byte in it, or no zeroth argument.
    pub fn new(command: wire::Command) -> Option<Self> {
        let strings = |list: Vec<Vec<u8>>| {
            list.into_iter()
                .map(CString::new)
                .collect::<Result<Vec<_>, _>>()
                .ok()
        };
        let program = Self {
            path: CString::new(command.program).ok()?,
            arguments: strings(command.arguments)?,
            environment: strings(command.environment)?,
            directories: strings(command.directories)?,
        };
        (!program.arguments.is_empty()).then_some(program)
    }
}

/// A child's standard files.
#[derive(Debug)]
pub enum Standard {
    /// stdin, stdout, stderr.
    Files([OwnedFd; 3]),
    /// A terminal, which becomes the controlling one.
    Terminal(OwnedFd),
}

/// Starts a program in a session and process group of its own.
pub fn spawn(program: &Program, standard: &Standard) -> nix::Result<Pid> {
    spawn_with(|| {
        let error = become_program(program, standard);
        let status = if error == Errno::ENOENT {
            STATUS_NOT_FOUND
        } else {
            STATUS_CANNOT_EXECUTE
        };
        let text = format!(
            "carrel: cannot run {}: {}\n",
            program.path.to_string_lossy(),
            error.desc()
        );
        // To the user, who is the reader of this stderr; there is nobody else to tell.
        let _ = std::io::stderr().write_all(text.as_bytes());
        status
    })
}

fn become_program(program: &Program, standard: &Standard) -> Errno {
    let result = (|| -> nix::Result<Infallible> {
        setsid()?;
        let [input, output, error] = match standard {
            Standard::Files(files) => files.each_ref().map(AsFd::as_fd),
            Standard::Terminal(terminal) => [terminal.as_fd(); 3],
        };
        dup2_stdin(input)?;
        dup2_stdout(output)?;
        dup2_stderr(error)?;
        if matches!(standard, Standard::Terminal(_)) {
            make_controlling()?;
        }
        close_on_exec_from(3);
        if !program
            .directories
            .iter()
            .any(|directory| chdir(directory.as_c_str()).is_ok())
        {
            chdir("/")?;
        }
        execve(&program.path, &program.arguments, &program.environment)
    })();
    match result {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// What a server is told at its start.
#[derive(Debug)]
pub struct Inheritance {
    /// Servers before it.
    pub restarts: u32,
    /// Live processes that they started.
    pub processes: u32,
    /// Kept terminals: its first messages are so many.
    pub terminals: u32,
    /// Highest number that a terminal was ever given.
    pub last_terminal: u32,
}

/// Starts this program again, as the server.
pub fn spawn_server(prepared: &Prepared, link: &OwnedFd, told: &Inheritance) -> nix::Result<Pid> {
    let fence = prepared.fence.map(|fence| [fence.checks, fence.micros]);
    let numbers = [told.restarts, told.processes, told.terminals, told.last_terminal]
        .into_iter()
        .chain(fence.into_iter().flatten());
    let numbers = numbers.map(|number| CString::new(number.to_string()).unwrap_or_default());
    let arguments: Vec<CString> = [c"carrel-init".to_owned(), c"serve".to_owned()]
        .into_iter()
        .chain(numbers)
        .collect();
    let environment: Vec<CString> = ["RUST_LOG", "RUST_BACKTRACE"]
        .iter()
        .filter_map(|name| {
            let value = std::env::var_os(name)?;
            CString::new([name.as_bytes(), b"=", value.as_encoded_bytes()].concat()).ok()
        })
        .collect();
    let inherited = [
        (link.as_fd(), fds::KEEPER),
        (prepared.ssh.as_fd(), fds::SSH),
        (prepared.ctl.as_fd(), fds::CTL),
        (prepared.seed.as_fd(), fds::SEED),
        (prepared.config.as_fd(), fds::CONFIG),
    ];
    spawn_self(&prepared.program, &arguments, &environment, &inherited)
}

/// Starts this program again, as the logger. The descriptors have the numbers of [`crate::logger::fds`].
pub fn spawn_logger(program: &OwnedFd, files: &[(BorrowedFd<'_>, c_int)]) -> nix::Result<Pid> {
    let arguments = [c"carrel-init".to_owned(), c"log".to_owned()];
    spawn_self(program, &arguments, &[], files)
}

/// Starts this program again, as the ranks' keeper. The descriptors have the numbers of [`crate::ranks::fds`].
pub fn spawn_ranks(program: &OwnedFd, files: &[(BorrowedFd<'_>, c_int)]) -> nix::Result<Pid> {
    let arguments = [c"carrel-init".to_owned(), c"ranks".to_owned()];
    spawn_self(program, &arguments, &[], files)
}

/// Starts this program again, with these descriptors at these numbers. It dies with process 1.
fn spawn_self(
    program: &OwnedFd,
    arguments: &[CString],
    environment: &[CString],
    inherited: &[(BorrowedFd<'_>, c_int)],
) -> nix::Result<Pid> {
    spawn_with(|| {
        let result = (|| -> nix::Result<Infallible> {
            // First out of the way of the numbers that they are to get.
            let highest = inherited.iter().map(|(_, number)| *number).max();
            let above = highest.unwrap_or(2) + 1;
            let moved = inherited
                .iter()
                .map(|(fd, number)| Ok((fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(above))?, *number)))
                .collect::<nix::Result<Vec<_>>>()?;
            let program = fcntl(program, FcntlArg::F_DUPFD_CLOEXEC(above))?;
            for (fd, number) in moved {
                place(fd, number)?;
            }
            prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
            execveat(
                borrow(&program),
                c"",
                arguments,
                environment,
                AtFlags::AT_EMPTY_PATH,
            )
        })();
        let Err(error) = result;
        super::say(&format!("cannot start itself anew: {}", error.desc()));
        STATUS_CANNOT_EXECUTE
    })
}

/// Forks; `child` runs in the child with fresh signals and gives its exit status, should it return.
#[allow(unsafe_code)]
fn spawn_with(child: impl FnOnce() -> c_int) -> nix::Result<Pid> {
    // SAFETY: this process has one thread, so the child may allocate and lock.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            reset_signals();
            let status = child();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(status) }
        }
    }
}

/// Default dispositions and an empty mask: Rust ignores SIGPIPE, and ignored signals survive exec.
#[allow(unsafe_code)]
fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: sets a default disposition; numbers that cannot be set fail without effect.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // A mask that cannot be emptied has no cure here.
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
}

#[allow(unsafe_code)]
fn make_controlling() -> nix::Result<()> {
    // SAFETY: stdin is the terminal, and the argument is a number.
    Errno::result(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }).map(drop)
}

/// Everything here is opened close-on-exec; this is for what a container runtime left open.
#[allow(unsafe_code)]
fn close_on_exec_from(first: c_int) {
    // SAFETY: takes numbers; kernels without it (before 5.11) refuse.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            c_int::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
}

/// Puts a descriptor on a fixed number, open across exec.
#[allow(unsafe_code)]
fn place(fd: c_int, number: c_int) -> nix::Result<()> {
    // SAFETY: the number belongs to nobody: this child is about to execute another program.
    Errno::result(unsafe { libc::dup2(fd, number) }).map(drop)
}

#[allow(unsafe_code)]
fn borrow(fd: &c_int) -> BorrowedFd<'_> {
    // SAFETY: made in this child, and open until it executes another program.
    unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) }
}
