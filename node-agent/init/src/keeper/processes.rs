//! Which processes there are, and signals to all of them.

use std::collections::BTreeMap;
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};

/// Where the agent mounts Carrel's own programs.
const OWN_PROGRAMS: &str = "/.carrel/bin";

/// Every living process below this one, except those `spared` and what is below them.
pub fn below(spared: &[Pid]) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    for entry in entries.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        if let Some(parent) = living_parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut waiting = vec![getpid().as_raw()];
    while let Some(parent) = waiting.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            if !spared.contains(&Pid::from_raw(child)) {
                found.push(Pid::from_raw(child));
                waiting.push(child);
            }
        }
    }
    found
}

/// The parent of a process that is not a zombie: the fourth field of its stat, counted after the
/// name, which may hold anything but is closed by the last parenthesis.
fn living_parent(pid: i32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.next()?.parse().ok()
}

/// Whether a process runs one of Carrel's own programs.
pub fn is_carrels(pid: Pid) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program.starts_with(OWN_PROGRAMS))
}

/// Signals them all. That one is gone by now is no matter.
pub fn signal_all(pids: &[Pid], signals: &[Signal]) {
    for pid in pids {
        for signal in signals {
            let _ = kill(*pid, *signal);
        }
    }
}

/// Kills all other processes of the PID namespace at once, so that none can fork away. Only as its
/// process 1: anywhere else, "all" would be the whole machine.
pub fn kill_namespace() {
    if getpid().as_raw() == 1 {
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    }
}
