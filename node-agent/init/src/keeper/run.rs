//! The keeper's loop.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::time::{TimeSpec, TimeValLike};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};
use prost::Message;

use super::kept::Kept;
use super::main_command::Main;
use super::ranks::Ranks;
use super::say;
use super::setup::Prepared;
use super::spawn::{Inheritance, Program, Standard, spawn, spawn_server};
use super::stop::Stop;
use crate::clock::boot_ms;
use crate::files;
use crate::wire::{self, Event, Exited, Failed, FromKeeper, Request, ToKeeper};

/// Exit code: ended as asked.
const CODE_ASKED: u8 = 0;
/// Exit code: the lease ended.
const CODE_LEASE: u8 = 75;

/// Grace when somebody ends the keeper by a signal, and at the lease's end.
const DEFAULT_GRACE_MS: u64 = 10_000;
/// How often is looked whether all processes are gone, while stopping.
const STOP_TICK_MS: u64 = 20;

/// Wait before the second start of a server in a row; doubled from one to the next.
const FIRST_BACKOFF_MS: u64 = 100;
/// Longest wait between starts.
const LAST_BACKOFF_MS: u64 = 5000;
/// A server that lived so long was well: the next starts at once.
const WELL_MS: u64 = 10_000;

/// Messages that wait for a server that does not read; beyond this it is taken for dead.
const MAX_OUTBOX: usize = 65_536;
/// Processes through SSH at one time, whatever the container's own limit is.
const MAX_PROCESSES: usize = 16_384;

/// The server that runs.
#[derive(Debug)]
pub struct Server {
    pub(super) pid: Pid,
    pub(super) link: OwnedFd,
    outbox: VecDeque<Letter>,
    since: u64,
}

/// A message that waits, with the files beside it.
#[derive(Debug)]
struct Letter {
    message: Vec<u8>,
    files: Vec<OwnedFd>,
}

/// A process that was started through SSH. Only the server that asked for it is told of its end,
/// unless its terminal is kept.
#[derive(Debug)]
struct Started {
    id: u64,
    server: Pid,
    /// Number of the kept terminal that it runs in: of its end, any server is told.
    terminal: Option<u32>,
    /// A terminal was opened with it.
    shell: bool,
}

/// Process 1.
pub struct Keeper {
    pub(super) prepared: Prepared,
    pub(super) server: Option<Server>,
    restart_at: u64,
    backoff_ms: u64,
    starts: u32,
    started: BTreeMap<Pid, Started>,
    kept: Kept,
    lease_end: Option<u64>,
    pub(super) stop: Option<Stop>,
    /// The job's command, once it was started.
    pub(super) main: Option<Main>,
    /// Who keeps what tasks of steps write.
    pub(super) ranks: Ranks,
}

/// Runs until everything has ended; gives the exit code.
pub fn run(prepared: Prepared, lease_ms: Option<u64>) -> anyhow::Result<u8> {
    if getpid().as_raw() != 1 {
        prctl::set_child_subreaper(true).context("becoming the reaper of orphans")?;
    }
    let mut signals = SigSet::empty();
    for signal in [
        Signal::SIGCHLD,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        signals.add(signal);
    }
    signals.thread_block().context("blocking signals")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let timer = TimerFd::new(
        ClockId::CLOCK_BOOTTIME,
        TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
    )?;

    let mut keeper = Keeper {
        lease_end: lease_ms
            .map(|left| boot_ms().saturating_add(left))
            .or(prepared.lease_end),
        prepared,
        server: None,
        restart_at: 0,
        backoff_ms: 0,
        starts: 0,
        started: BTreeMap::new(),
        kept: Kept::default(),
        stop: None,
        main: None,
        ranks: Ranks::default(),
    };
    loop {
        keeper.act();
        if let Some(code) = keeper.finished() {
            return Ok(code);
        }
        if let Some(at) = keeper.next_time() {
            let at = TimeSpec::milliseconds(i64::try_from(at.max(1)).unwrap_or(i64::MAX));
            timer
                .set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
                .context("setting the timer")?;
        }
        keeper.wait(&signals, &timer)?;
    }
}

impl Keeper {
    /// Does what is due by time.
    fn act(&mut self) {
        let now = boot_ms();
        if self.stop.is_none()
            && let Some(end) = self.lease_end.filter(|end| *end <= now)
        {
            say("the lease ended");
            // Counted from the lease's end: a host that slept through it grants none.
            self.begin_stop(CODE_LEASE, DEFAULT_GRACE_MS.saturating_sub(now - end));
        }
        if self.stop.is_none() && self.server.is_none() && self.restart_at <= now {
            self.start_server(now);
        }
        self.see_to_logger();
        self.see_to_ranks(now);
        self.continue_stop(now);
    }

    /// When [`act`](Self::act) has something to do next.
    fn next_time(&self) -> Option<u64> {
        if self.stop.is_some() {
            return Some(boot_ms() + STOP_TICK_MS);
        }
        let restart = self.server.is_none().then_some(self.restart_at);
        [self.lease_end, restart, self.ranks.next_time()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Waits for something to happen and takes it in.
    fn wait(&mut self, signals: &SignalFd, timer: &TimerFd) -> anyhow::Result<()> {
        let mut polled = vec![
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(timer.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(server) = &self.server {
            let mut interest = PollFlags::POLLIN;
            if !server.outbox.is_empty() {
                interest |= PollFlags::POLLOUT;
            }
            polled.push(PollFd::new(server.link.as_fd(), interest));
        }
        let server_polled = self.server.is_some();
        if let Some(listener) = self.ranks_listener(boot_ms()) {
            polled.push(PollFd::new(listener, PollFlags::POLLIN));
        }
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("waiting"),
        }
        let server_ready = server_polled && polled.get(2).is_some_and(|server| server.any().unwrap_or(true));
        drop(polled);
        match timer.wait() {
            Ok(()) | Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(error).context("reading the timer"),
        }
        // What the server asked before it died counts.
        if server_ready {
            self.hear_server();
        }
        while let Ok(Some(signal)) = signals.read_signal() {
            self.take_signal(signal.ssi_signo as i32);
        }
        self.flush_outbox();
        Ok(())
    }

    fn take_signal(&mut self, number: i32) {
        match Signal::try_from(number) {
            Ok(Signal::SIGCHLD) => self.reap(),
            Ok(Signal::SIGTERM | Signal::SIGINT) => self.begin_stop(CODE_ASKED, DEFAULT_GRACE_MS),
            // Of no meaning for process 1; without being taken they would end it.
            Ok(_) | Err(_) => {}
        }
    }

    // The server.

    fn start_server(&mut self, now: u64) {
        let pair = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        );
        let inheritance = Inheritance {
            restarts: self.starts,
            processes: self.started.len() as u32,
            terminals: self.kept.count() as u32,
            last_terminal: self.kept.last(),
        };
        let result = pair.and_then(|(link, theirs)| {
            let kept = self.kept.hand_on()?;
            let pid = spawn_server(&self.prepared, &theirs, &inheritance)?;
            let letter = |(kept, files)| Letter {
                message: self.message(Some(Event::Kept(kept))),
                files,
            };
            Ok(Server {
                pid,
                link,
                outbox: kept.into_iter().map(letter).collect(),
                since: now,
            })
        });
        match result {
            Ok(server) => {
                self.server = Some(server);
                self.starts = self.starts.saturating_add(1);
            }
            Err(error) => {
                say(&format!("cannot start the server: {}", error.desc()));
                self.back_off(now);
            }
        }
    }

    fn back_off(&mut self, now: u64) {
        self.backoff_ms = (self.backoff_ms * 2).clamp(FIRST_BACKOFF_MS, LAST_BACKOFF_MS);
        self.restart_at = now + self.backoff_ms;
    }

    fn server_died(&mut self, server: &Server, how: &str) {
        say(&format!("the server ended: {how}"));
        let now = boot_ms();
        if now.saturating_sub(server.since) >= WELL_MS {
            self.backoff_ms = 0;
            self.restart_at = now;
        } else if self.backoff_ms == 0 {
            // The first death in a row: nobody shall wait.
            self.backoff_ms = FIRST_BACKOFF_MS / 2;
            self.restart_at = now;
        } else {
            self.back_off(now);
        }
    }

    /// Takes all that the server says.
    fn hear_server(&mut self) {
        while let Some(server) = &self.server {
            match wire::receive(server.link.as_raw_fd()) {
                Ok(Some((message, files))) => match ToKeeper::decode(&message[..]) {
                    Ok(ToKeeper {
                        request: Some(request),
                    }) => self.take_request(request, files),
                    Ok(ToKeeper { request: None }) | Err(_) => {
                        self.distrust_server("it sends what is no request");
                    }
                },
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                // It hung up: without its keeper it must not go on. Its death is seen by waiting.
                Ok(None) => return self.distrust_server("it hung up"),
                Err(error) => return self.distrust_server(error.desc()),
            }
        }
    }

    fn distrust_server(&mut self, why: &str) {
        if let Some(server) = self.server.as_ref() {
            if self.stop.is_none() {
                say(&format!("killing the server: {why}"));
            }
            // It may be dead already.
            let _ = kill(server.pid, Signal::SIGKILL);
        }
        self.reap_server_now();
    }

    /// Waits for a server that was killed, so that its socket is not read any more.
    fn reap_server_now(&mut self) {
        let Some(server) = self.server.take() else { return };
        loop {
            match waitpid(server.pid, None) {
                Ok(WaitStatus::Exited(_, _) | WaitStatus::Signaled(_, _, _)) | Err(Errno::ECHILD) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => {
                    say(&format!("waiting for the server: {}", error.desc()));
                    break;
                }
            }
        }
        self.server_died(&server, "killed");
    }

    fn take_request(&mut self, request: Request, mut files: Vec<OwnedFd>) {
        match request {
            Request::Spawn(spawn) => self.start_process(&spawn, files),
            Request::Signal(signal) => {
                if let (Some(pid), Ok(signal)) = (self.signalled(&signal), Signal::try_from(signal.signal)) {
                    // The group's last member may be gone, though the leader was not yet waited for.
                    let _ = killpg(pid, signal);
                }
            }
            Request::Config(_) => {
                if let Some(file) = files.pop() {
                    self.prepared.config = file;
                }
            }
            Request::LeaseEnd(end) => self.lease_end = Some(end),
            Request::Stop(grace_ms) => self.begin_stop(CODE_ASKED, grace_ms),
            Request::Forget(number) => self.kept.forget(number),
            Request::SignalAll(all) => self.signal_all(all),
            Request::Main(main) => self.start_main(&main, files),
        }
    }

    fn message(&self, event: Option<Event>) -> Vec<u8> {
        let processes = Some(self.started.len() as u32);
        FromKeeper { event, processes }.encode_to_vec()
    }

    pub(super) fn tell_server(&mut self, event: Option<Event>) {
        let message = self.message(event);
        let Some(server) = self.server.as_mut() else {
            return;
        };
        server.outbox.push_back(Letter {
            message,
            files: Vec::new(),
        });
        if server.outbox.len() > MAX_OUTBOX {
            self.distrust_server("it does not read");
        }
    }

    pub(super) fn flush_outbox(&mut self) {
        let Some(server) = self.server.as_mut() else {
            return;
        };
        while let Some(letter) = server.outbox.front() {
            let files = wire::raw(&letter.files);
            match wire::send(server.link.as_raw_fd(), &letter.message, &files) {
                Ok(()) => drop(server.outbox.pop_front()),
                Err(Errno::EINTR) => {}
                // Full: later. Gone: its death is about to be seen.
                Err(Errno::EAGAIN | Errno::EPIPE | Errno::ECONNRESET) => return,
                // Too many files on their way, as another of the user's programs can bring about:
                // without its terminals a server is of no use, and the next one waits a while.
                Err(error) => return self.distrust_server(error.desc()),
            }
        }
    }

    // Processes.

    fn signal_all(&self, wire::SignalAll { signal, shells }: wire::SignalAll) {
        let Ok(signal) = Signal::try_from(signal) else {
            return;
        };
        let is_script = |pid: &Pid| self.main.as_ref().is_some_and(|main| main.is_script(*pid));
        let is_shell =
            |pid: &Pid| self.started.get(pid).is_some_and(|started| started.shell) || is_script(pid);
        let mut all = self.others();
        // What runs steps hands signals on: its tasks have this one already.
        all.retain(|pid| is_shell(pid) == shells && (shells || !super::processes::is_carrels(*pid)));
        super::processes::signal_all(&all, &[signal]);
    }

    /// The process that a signal is for.
    fn signalled(&self, signal: &wire::Signal) -> Option<Pid> {
        if let Some(number) = signal.kept {
            return self.kept.process(number);
        }
        let server = self.server.as_ref()?.pid;
        let mut all = self.started.iter();
        all.find(|(_, started)| started.id == signal.id && started.server == server)
            .map(|(pid, _)| *pid)
    }

    fn start_process(&mut self, asked: &wire::Spawn, files: Vec<OwnedFd>) {
        let id = asked.id;
        let result = self.try_start(asked, files);
        let server = self.server.as_ref().map(|server| server.pid);
        match (result, server) {
            (Ok(pid), Some(server)) => {
                let terminal = asked.keep;
                let shell = asked.terminal;
                self.started.insert(
                    pid,
                    Started {
                        id,
                        server,
                        terminal,
                        shell,
                    },
                );
                self.tell_server(Some(Event::Started(id)));
            }
            (Err(error), _) => self.tell_server(Some(Event::Failed(Failed {
                id,
                errno: error as i32,
            }))),
            (Ok(_), None) => {}
        }
    }

    fn try_start(&mut self, asked: &wire::Spawn, files: Vec<OwnedFd>) -> nix::Result<Pid> {
        if self.stop.is_some() {
            return Err(Errno::ESHUTDOWN);
        }
        if let Some(number) = asked.keep {
            self.kept.check(number)?;
        }
        if self.started.len() >= MAX_PROCESSES {
            return Err(Errno::EAGAIN);
        }
        let mut files = files.into_iter();
        let command = files.next().ok_or(Errno::EBADMSG)?;
        let command = files::read_all(&command, wire::MAX_COMMAND).map_err(|_| Errno::E2BIG)?;
        let command = wire::Command::decode(&command[..]).map_err(|_| Errno::EBADMSG)?;
        let program = Program::new(command).ok_or(Errno::EINVAL)?;
        if !asked.terminal {
            let rest: Vec<OwnedFd> = files.collect();
            let standard = Standard::Files(rest.try_into().map_err(|_| Errno::EBADMSG)?);
            return spawn(&program, &standard);
        }
        let standard = Standard::Terminal(files.next().ok_or(Errno::EBADMSG)?);
        let Some(number) = asked.keep else {
            return spawn(&program, &standard);
        };
        let master = files.next().ok_or(Errno::EBADMSG)?;
        let memory = files.next().ok_or(Errno::EBADMSG)?;
        let pid = spawn(&program, &standard)?;
        self.kept.insert(number, pid, master, memory);
        Ok(pid)
    }

    /// Collects every child that ended: ours, and the orphans that fell to us.
    pub(super) fn reap(&mut self) {
        loop {
            let (pid, exited, how) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, status)) => {
                    let exited = Exited {
                        id: 0,
                        status: status as u32,
                        signal: 0,
                        core_dumped: false,
                    };
                    (pid, exited, format!("status {status}"))
                }
                Ok(WaitStatus::Signaled(pid, signal, core_dumped)) => {
                    let exited = Exited {
                        id: 0,
                        status: 0,
                        signal: signal as i32,
                        core_dumped,
                    };
                    (pid, exited, signal.to_string())
                }
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(error) => {
                    say(&format!("waiting for children: {}", error.desc()));
                    return;
                }
            };
            if self.server.as_ref().is_some_and(|server| server.pid == pid) {
                if let Some(server) = self.server.take() {
                    self.server_died(&server, &how);
                }
            } else if self.is_of_main(pid) {
                self.reaped_main(pid, &exited);
            } else if self.ranks.pid() == Some(pid) {
                self.ranks.reaped(&exited, boot_ms());
            } else if let Some(Started {
                terminal: Some(number),
                ..
            }) = self.started.get(&pid)
            {
                let exited = Exited {
                    id: u64::from(*number),
                    ..exited
                };
                self.kept.ended(*number, &exited);
                self.started.remove(&pid);
                self.tell_server(Some(Event::Ended(exited)));
            } else if let Some(started) = self.started.remove(&pid) {
                let current = self
                    .server
                    .as_ref()
                    .is_some_and(|server| server.pid == started.server);
                self.tell_server(current.then_some(Event::Exited(Exited {
                    id: started.id,
                    ..exited
                })));
            }
        }
    }
}
