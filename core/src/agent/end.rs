//! Ends: asked for, due, or by itself; and what containers tell.

use std::collections::BTreeMap;

use super::entry::{Entry, Phase};
use super::{
    Action, Agent, ContainerEvent, DEFAULT_GRACE_MS, DRAIN_AFTER_MS, EXIT_KILLED, EXIT_LEASE, KILL_MARGIN_MS,
    Now, RETRY_MS,
};
use crate::model::ids::{GpuUuid, JobKey};
use crate::model::node::EndCause;

/// How process 1 ended.
#[derive(Clone, Copy)]
pub(super) struct ProcessEnd {
    pub(super) code: Option<i32>,
    pub(super) out_of_memory: bool,
    pub(super) command: bool,
}

impl Entry {
    /// What is known first stays.
    fn note_end(&mut self, how: ProcessEnd) {
        if self.exit_code.is_none() {
            self.exit_code = how.code;
            self.by_command = how.command;
        }
    }
}

impl Agent {
    /// Ends a job with grace; the first cause stays. Of an end that is under way the grace can only become shorter.
    pub(super) fn stop(&mut self, now: Now, key: JobKey, cause: EndCause, grace_ms: u64, why: &str) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let last = now
            .boot_ms
            .saturating_add(grace_ms)
            .saturating_add(KILL_MARGIN_MS);
        match &mut entry.phase {
            Phase::Waiting | Phase::Held { .. } => self.remove(now, key, cause, why),
            // Nobody works in it yet.
            Phase::Starting if !entry.was_ready => self.remove(now, key, cause, why),
            Phase::Starting | Phase::Ready => {
                entry.phase = Phase::Stopping { kill_at: last };
                entry.cause = Some(cause);
                entry.say(why);
                self.act(Action::Stop { key, grace_ms });
                self.changed();
            }
            Phase::Stopping { kill_at } if *kill_at > last => {
                *kill_at = last;
                self.act(Action::Stop { key, grace_ms });
            }
            Phase::Stopping { .. } | Phase::Removing { .. } | Phase::Released => {}
        }
    }

    /// Ends a job now. One that holds nothing is released by that.
    pub(super) fn remove(&mut self, now: Now, key: JobKey, cause: EndCause, why: &str) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        match entry.phase {
            Phase::Removing { .. } | Phase::Released => return,
            Phase::Waiting => entry.phase = Phase::Released,
            Phase::Held { .. } | Phase::Starting | Phase::Ready | Phase::Stopping { .. } => {
                entry.phase = Phase::Removing {
                    since: now.boot_ms,
                    retry_at: None,
                };
                self.out.actions.push(Action::Remove(key));
            }
        }
        entry.cause.get_or_insert(cause);
        if !why.is_empty() {
            entry.say(why);
        }
        if entry.holding.cluster == self.myself.cluster {
            self.fence(key);
        }
        self.changed();
    }

    pub(super) fn end_what_is_due(&mut self, now: Now) {
        let lease_over = self.lease.end.filter(|end| *end <= now.boot_ms);
        // Counted from the lease's end: a host that slept through it grants none.
        let lease_grace =
            lease_over.map(|end| DEFAULT_GRACE_MS.saturating_sub(now.boot_ms.saturating_sub(end)));
        let keys: Vec<JobKey> = self.entries.keys().copied().collect();
        for key in keys {
            let entry = &self.entries[&key];
            if entry.phase.lives() && entry.is_over(now.wall) {
                self.stop(now, key, EndCause::Deadline, DEFAULT_GRACE_MS, "");
            } else if let Some(grace_ms) = lease_grace
                && entry.phase.lives()
                && entry.phase.holds()
            {
                self.stop(now, key, EndCause::Lease, grace_ms, "");
            }
            self.go_on_ending(now, key);
        }
    }

    fn go_on_ending(&mut self, now: Now, key: JobKey) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        match &mut entry.phase {
            Phase::Stopping { kill_at } if *kill_at <= now.boot_ms => {
                // The cause is known since the stop.
                self.remove(now, key, EndCause::Exited, "");
            }
            Phase::Removing { retry_at, .. } if retry_at.is_some_and(|at| at <= now.boot_ms) => {
                *retry_at = None;
                self.act(Action::Remove(key));
            }
            Phase::Waiting
            | Phase::Held { .. }
            | Phase::Starting
            | Phase::Ready
            | Phase::Stopping { .. }
            | Phase::Removing { .. }
            | Phase::Released => {}
        }
    }

    /// Milliseconds until time alone brings something about for a job.
    pub(super) fn entry_is_due(&self, entry: &Entry, now: Now) -> Option<u64> {
        let boot = |at: u64| at.saturating_sub(now.boot_ms);
        let ends = || {
            let deadline = entry.holding.deadline.0.saturating_sub(now.wall.0);
            let lease = self.lease.end.filter(|_| entry.phase.holds()).map(boot);
            lease.map_or(deadline, |lease| lease.min(deadline))
        };
        let drains = |since: u64| {
            let at = since.saturating_add(DRAIN_AFTER_MS);
            (at > now.boot_ms).then(|| boot(at))
        };
        let times = match entry.phase {
            Phase::Waiting | Phase::Starting | Phase::Ready => [Some(ends()), None],
            Phase::Held { retry_at } => [Some(ends()), entry.job.is_some().then(|| boot(retry_at))],
            Phase::Stopping { kill_at } => [Some(boot(kill_at)), None],
            Phase::Removing { since, retry_at } => [retry_at.map(boot), drains(since)],
            Phase::Released => [None, None],
        };
        times.into_iter().flatten().min()
    }

    /// GPUs that somebody does not let go of, and those that stand where jobs hold others, are not offered, and it is
    /// said why.
    pub(super) fn drain(&mut self, now: Now) {
        let mut drained: BTreeMap<GpuUuid, String> = BTreeMap::new();
        for (key, entry) in &self.entries {
            let stuck = match entry.phase {
                Phase::Removing { since, .. } => Some((
                    since,
                    format!("draining, job {} does not release it: {}", key.job, entry.detail),
                )),
                Phase::Held { .. } | Phase::Starting => {
                    entry.blocked_since.map(|since| (since, entry.detail.clone()))
                }
                Phase::Waiting | Phase::Ready | Phase::Stopping { .. } | Phase::Released => None,
            };
            if let Some((since, why)) = stuck
                && now.boot_ms.saturating_sub(since) >= DRAIN_AFTER_MS
            {
                drained.extend(
                    entry
                        .holding
                        .gpus
                        .iter()
                        .map(|unit| (unit.gpu.clone(), why.clone())),
                );
            }
        }
        for (gpu, why) in self.in_held_places() {
            drained.entry(gpu).or_insert(why);
        }
        if self.drained != drained {
            self.drained = drained;
            self.out.report = true;
        }
    }

    pub(super) fn on_container(&mut self, now: Now, key: JobKey, event: ContainerEvent) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        match event {
            ContainerEvent::Progress(text) => {
                if entry.phase == Phase::Starting {
                    self.out.report |= entry.say(text);
                }
            }
            ContainerEvent::Ready { host_key, fence } => {
                entry.containment.fence = Some(fence);
                if entry.phase == Phase::Starting {
                    entry.phase = Phase::Ready;
                    entry.was_ready = true;
                    entry.blocked_since = None;
                    entry.say("");
                    self.out.report = true;
                    self.out.persist.get_or_insert(false);
                }
                if entry.host_key != host_key {
                    entry.host_key = host_key;
                    self.out.report = true;
                }
            }
            ContainerEvent::Trouble(text) => {
                if entry.phase == Phase::Ready {
                    self.out.report |= entry.say(text);
                }
            }
            ContainerEvent::Connections(count) => {
                self.out.report |= entry.connections != count;
                entry.connections = count;
            }
            ContainerEvent::Blocked(why) => {
                if entry.phase == Phase::Starting {
                    entry.phase = Phase::Held {
                        retry_at: now.boot_ms + RETRY_MS,
                    };
                    entry.blocked_since.get_or_insert(now.boot_ms);
                    self.out.report |= entry.say(why);
                }
            }
            ContainerEvent::StartFailed(why) => {
                if entry.phase.lives() {
                    self.remove(now, key, EndCause::StartFailed, &why);
                }
            }
            // Told with the next report: a job that lives at its limit would cause one after the other.
            ContainerEvent::OutOfMemory { kills } => {
                let known = &mut entry.containment.oom_kills;
                *known = kills.max(*known);
            }
            ContainerEvent::Used(host) => self.on_host_use(key, host),
            ContainerEvent::Exited {
                code,
                out_of_memory,
                command,
                detail,
            } => {
                let how = ProcessEnd {
                    code,
                    out_of_memory,
                    command,
                };
                self.exited(now, key, how, &detail);
            }
            ContainerEvent::Released {
                code,
                out_of_memory,
                command,
            } => self.released(
                key,
                ProcessEnd {
                    code,
                    out_of_memory,
                    command,
                },
            ),
            ContainerEvent::NotReleased(why) => {
                if let Phase::Removing { retry_at, .. } = &mut entry.phase {
                    *retry_at = Some(now.boot_ms + RETRY_MS);
                    self.out.report |= entry.say(why);
                }
            }
        }
    }

    /// Process 1 ended.
    pub(super) fn exited(&mut self, now: Now, key: JobKey, how: ProcessEnd, detail: &str) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        match entry.phase {
            Phase::Waiting | Phase::Released => return,
            Phase::Held { .. }
            | Phase::Starting
            | Phase::Ready
            | Phase::Stopping { .. }
            | Phase::Removing { .. } => {}
        }
        entry.note_end(how);
        let cause = own_end(entry, how.out_of_memory);
        let why = match (cause, how.code) {
            (EndCause::StartFailed, Some(code)) => {
                format!("carrel-init ended with exit code {code}: {detail}")
            }
            _ => detail.to_owned(),
        };
        self.remove(now, key, cause, &why);
    }

    fn released(&mut self, key: JobKey, how: ProcessEnd) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let Phase::Removing { .. } = entry.phase else {
            return;
        };
        entry.phase = Phase::Released;
        entry.connections = 0;
        entry.note_end(how);
        if entry.cause == Some(EndCause::Exited) {
            entry.cause = Some(own_end(entry, how.out_of_memory));
        }
        self.changed();
    }
}

/// Why a container ended that nobody asked to.
fn own_end(entry: &Entry, out_of_memory: bool) -> EndCause {
    match entry.exit_code {
        // Whatever number it chose, it is its own. The kernel may have ended what it needed, and not it.
        Some(code) if entry.by_command => match code {
            0 => EndCause::Exited,
            _ if out_of_memory => EndCause::OutOfMemory,
            _ => EndCause::Exited,
        },
        Some(EXIT_LEASE) => EndCause::Lease,
        Some(EXIT_KILLED) if out_of_memory => EndCause::OutOfMemory,
        _ if !entry.was_ready => EndCause::StartFailed,
        _ => EndCause::Exited,
    }
}
