//! Containers that are there: after a start of the agent, and whenever what happens to them was not seen.

use std::collections::{BTreeMap, btree_map};

use super::end::ProcessEnd;
use super::entry::{Entry, Phase};
use super::{Action, Agent, DEFAULT_GRACE_MS, Found, FoundState, KILL_MARGIN_MS, Now};
use crate::model::ids::JobKey;
use crate::model::node::EndCause;

impl Agent {
    pub(super) fn on_world(&mut self, now: Now, found: Vec<Found>) {
        self.adopted = true;
        let mut states: BTreeMap<JobKey, FoundState> = BTreeMap::new();
        for Found { key, holding, state } in found {
            states.insert(key, state);
            if let btree_map::Entry::Vacant(vacant) = self.entries.entry(key) {
                vacant.insert(Entry::new(holding, Phase::Held { retry_at: 0 }));
                self.changed();
            }
        }
        self.note_places();
        let keys: Vec<JobKey> = self.entries.keys().copied().collect();
        for key in keys {
            match states.get(&key) {
                Some(FoundState::Running) => self.found_running(now, key),
                Some(FoundState::Ended {
                    code,
                    out_of_memory,
                    command,
                }) => {
                    self.found_again(now, key);
                    if let Some(entry) = self.entries.get_mut(&key) {
                        // It ran: its end is no failed start.
                        entry.was_ready |= matches!(entry.phase, Phase::Held { .. });
                    }
                    let how = ProcessEnd {
                        code: *code,
                        out_of_memory: *out_of_memory,
                        command: *command,
                    };
                    self.exited(now, key, how, "");
                }
                Some(FoundState::Lost) => {
                    self.found_again(now, key);
                    self.gone(now, key);
                }
                Some(FoundState::Unstarted) => self.found_again(now, key),
                None => self.missing(now, key),
            }
        }
        if self.rebooted {
            self.rebooted = false;
            self.persist(true);
        }
    }

    fn found_running(&mut self, now: Now, key: JobKey) {
        self.found_again(now, key);
        let fenced = self.is_fenced(key);
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        match entry.phase {
            Phase::Held { .. } if fenced && entry.holding.cluster == self.myself.cluster => {
                self.remove(now, key, EndCause::Tombstone, "");
            }
            Phase::Held { .. } => {
                entry.phase = Phase::Starting;
                entry.was_ready = true;
                self.out.report = true;
                self.act(Action::Adopt(key));
            }
            // From the ledger: the grace begins anew, since nobody knows how much of it has passed.
            Phase::Stopping { kill_at: 0 } => {
                entry.phase = Phase::Stopping {
                    kill_at: now.boot_ms + DEFAULT_GRACE_MS + KILL_MARGIN_MS,
                };
                self.act(Action::Stop {
                    key,
                    grace_ms: DEFAULT_GRACE_MS,
                });
            }
            Phase::Waiting
            | Phase::Starting
            | Phase::Ready
            | Phase::Stopping { .. }
            | Phase::Removing { .. }
            | Phase::Released => {}
        }
    }

    /// A container that is there belongs to a job that holds.
    fn found_again(&mut self, now: Now, key: JobKey) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        match entry.phase {
            Phase::Released => {
                entry.phase = Phase::Removing {
                    since: now.boot_ms,
                    retry_at: Some(now.boot_ms),
                };
                self.changed();
            }
            Phase::Waiting => entry.phase = Phase::Held { retry_at: 0 },
            Phase::Held { .. }
            | Phase::Starting
            | Phase::Ready
            | Phase::Stopping { .. }
            | Phase::Removing { .. } => {}
        }
    }

    fn missing(&mut self, now: Now, key: JobKey) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        match entry.phase {
            Phase::Held { .. } if self.rebooted || entry.was_ready => self.gone(now, key),
            Phase::Ready => self.gone(now, key),
            // From the ledger, and gone meanwhile: only to be verified. The cause is known.
            Phase::Stopping { kill_at: 0 } => self.remove(now, key, EndCause::Exited, ""),
            // A start of which nothing was made; or one, or an end, that is under way.
            Phase::Held { .. }
            | Phase::Waiting
            | Phase::Starting
            | Phase::Stopping { .. }
            | Phase::Removing { .. }
            | Phase::Released => {}
        }
    }

    /// It ran, and nothing says how it ended.
    fn gone(&mut self, now: Now, key: JobKey) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        if !entry.phase.lives() {
            return;
        }
        if self.rebooted {
            self.remove(now, key, EndCause::NodeRestarted, "");
        } else {
            self.remove(now, key, EndCause::Exited, "its container is gone");
        }
    }
}
