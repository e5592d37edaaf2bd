//! Terminals that outlive the server: our side of each, and the memory with its scrollback.
//!
//! They are held and handed on, never read or written: nothing that a terminal does concerns
//! process 1.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::unistd::Pid;

use crate::wire::{self, Exited};

/// One terminal.
#[derive(Debug)]
struct Terminal {
    master: OwnedFd,
    memory: OwnedFd,
    pid: Pid,
    exited: Option<Exited>,
}

/// All of them, by number.
#[derive(Debug, Default)]
pub struct Kept {
    terminals: BTreeMap<u32, Terminal>,
    last: u32,
}

impl Kept {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.terminals.len()
    }

    /// The highest number that was ever given.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// Whether one more may be kept by this number.
    pub fn check(&self, number: u32) -> nix::Result<()> {
        if self.terminals.len() >= wire::MAX_TERMINALS {
            return Err(Errno::ENOSPC);
        }
        if number <= self.last {
            return Err(Errno::EEXIST);
        }
        Ok(())
    }

    /// Keeps the terminal of a process.
    pub fn insert(&mut self, number: u32, pid: Pid, master: OwnedFd, memory: OwnedFd) {
        self.last = self.last.max(number);
        let terminal = Terminal {
            master,
            memory,
            pid,
            exited: None,
        };
        self.terminals.insert(number, terminal);
    }

    /// The process of a terminal, if it lives.
    pub fn process(&self, number: u32) -> Option<Pid> {
        let terminal = self.terminals.get(&number)?;
        terminal.exited.is_none().then_some(terminal.pid)
    }

    /// Remembers how a terminal's process ended.
    pub fn ended(&mut self, number: u32, exited: &Exited) {
        if let Some(terminal) = self.terminals.get_mut(&number) {
            terminal.exited = Some(exited.clone());
        }
    }

    /// Closes a terminal that has ended; one that lives stays.
    pub fn forget(&mut self, number: u32) {
        if self.process(number).is_none() {
            self.terminals.remove(&number);
        }
    }

    /// All that the next server is told, with copies of the files that go with it.
    pub fn hand_on(&self) -> nix::Result<Vec<(wire::Kept, Vec<OwnedFd>)>> {
        let copy = |file: &OwnedFd| {
            file.try_clone()
                .map_err(|error| error.raw_os_error().map_or(Errno::EMFILE, Errno::from_raw))
        };
        let one = |(number, terminal): (&u32, &Terminal)| {
            let kept = wire::Kept {
                number: *number,
                exited: terminal.exited.clone(),
            };
            Ok((kept, vec![copy(&terminal.master)?, copy(&terminal.memory)?]))
        };
        self.terminals.iter().map(one).collect()
    }
}
