//! The end: everything is asked to go, then killed, and the server goes last.

use std::os::fd::AsRawFd;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::Pid;

use super::main_command::Main;
use super::run::Keeper;
use super::{processes, say};
use crate::clock::boot_ms;
use crate::wire::Event;

/// Longest grace that is granted.
const MAX_GRACE_MS: u64 = 3_600_000;
/// After the grace, kills go to single processes for so long; then to the whole namespace.
const SINGLE_KILLS_MS: u64 = 1000;
/// What the server gets to say goodbye in, once everything else has ended.
const GOODBYE_MS: u64 = 2000;

/// An end that was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    code: u8,
    kill_at: u64,
    goodbye_until: Option<u64>,
}

impl Keeper {
    /// Begins to end everything; asked again, the shorter grace counts.
    pub fn begin_stop(&mut self, code: u8, grace_ms: u64) {
        let kill_at = boot_ms() + grace_ms.min(MAX_GRACE_MS);
        if let Some(stop) = &mut self.stop {
            // Asked again: the shorter grace counts.
            stop.kill_at = stop.kill_at.min(kill_at);
            return;
        }
        say(&format!("stopping, {} ms of grace", grace_ms.min(MAX_GRACE_MS)));
        self.stop = Some(Stop {
            code,
            kill_at,
            goodbye_until: None,
        });
        self.tell_server(Some(Event::Stopping(true)));
        let all = self.others();
        // A hangup tells shells that nobody is there. A job's command would only die of it.
        let signals: &[Signal] = if self.main.is_some() {
            &[Signal::SIGCONT, Signal::SIGTERM]
        } else {
            &[Signal::SIGHUP, Signal::SIGCONT, Signal::SIGTERM]
        };
        processes::signal_all(&all, signals);
    }

    /// All but the server, and those that still have something to write: the logger, and who keeps ranks' output.
    pub(super) fn others(&self) -> Vec<Pid> {
        let server = self.server.as_ref().map(|server| server.pid);
        let logger = self.main.as_ref().and_then(Main::logger);
        let spared: Vec<Pid> = server.into_iter().chain(logger).chain(self.ranks.pid()).collect();
        processes::below(&spared)
    }

    /// Goes on with the end, if one was asked for.
    pub fn continue_stop(&mut self, now: u64) {
        let Some(mut stop) = self.stop else { return };
        let others = self.others();
        if !others.is_empty() {
            if now >= stop.kill_at {
                processes::signal_all(&others, &[Signal::SIGKILL]);
            }
            if now >= stop.kill_at + SINGLE_KILLS_MS {
                processes::kill_namespace();
            }
        } else if self.is_logging(now, stop.kill_at) {
            // The last of what was written.
        } else if self.is_keeping_ranks(now, stop.kill_at) {
            // And of what tasks wrote.
        } else if let Some(until) = stop.goodbye_until {
            if now >= until
                && let Some(server) = &self.server
            {
                // It had its time.
                let _ = kill(server.pid, Signal::SIGKILL);
            }
        } else {
            stop.goodbye_until = Some(now + GOODBYE_MS);
            self.reap();
            self.flush_outbox();
            if let Some(server) = &self.server {
                // The server reads to the end, says goodbye and exits.
                let _ = shutdown(server.link.as_raw_fd(), Shutdown::Write);
            }
        }
        self.stop = Some(stop);
    }

    /// The exit code, once everything has ended.
    pub fn finished(&self) -> Option<u8> {
        let stop = self.stop.as_ref()?;
        (stop.goodbye_until.is_some() && self.server.is_none()).then_some(stop.code)
    }
}
