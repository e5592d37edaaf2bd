//! Time passed.

use std::time::Duration;

use crate::broker::change::Change;
use crate::broker::desired::held_on;
use crate::broker::{Broker, Effect, IdleEnd, Reject, Reply};
use crate::model::ids::{JobId, NodeName};
use crate::model::job::{Ending, JobState};
use crate::model::time::Timestamp;

/// Between two trims of the audit log: often enough that what is due hardly outlives its time.
pub(crate) const AUDIT_TRIM: Duration = Duration::from_hours(1);
/// Records that the audit log keeps at most, whatever their age: some 400 MB of the broker's disk.
const MAX_AUDIT: u64 = 1_000_000;

impl Broker {
    #[expect(clippy::unnecessary_wraps, reason = "as every input's handler")]
    pub(super) fn on_tick(&mut self, now: Timestamp) -> Result<Reply, Reject> {
        if self.state.audit_trimmed.after(AUDIT_TRIM) <= now {
            self.trim_audit(now);
        }
        self.mail_time_parts(now);
        self.end_overdue(now);
        self.end_patience(now);
        let (room, over) = self.state.let_begin(now);
        self.end_reservations(now);
        self.output.room |= room || self.state.next_pass.is_some_and(|at| at <= now);
        for id in over {
            self.give_up(now, id);
        }
        self.give_up_lost_nodes(now);
        self.forget_expired_tokens(now);
        self.forget_ended(now);
        Ok(Reply::Done)
    }

    /// Nodes count their leases on a clock that nobody sets.
    pub(super) fn on_clock_stepped(&mut self, by: Duration) -> Reply {
        let nodes: Vec<NodeName> = self.state.links.keys().cloned().collect();
        for node in nodes {
            self.state.update_link(&node, |link| {
                link.lease_until = link.lease_until.after(by);
                link.last_contact = link.last_contact.after(by);
            });
        }
        self.step_idle(by);
        Reply::Done
    }

    /// What was promised to sessions that are about to end as idle is a length of time as well.
    fn step_idle(&mut self, by: Duration) {
        let warned: Vec<_> = self.state.idle.iter().map(|(id, about)| (*id, *about)).collect();
        for (id, about) in warned {
            let stepped = IdleEnd {
                ends: about.ends.after(by),
                told: about.told.map(|told| told.after(by)),
            };
            self.state.idle.insert(id, stepped);
        }
    }

    /// Drops what the audit log need not keep any longer.
    pub(crate) fn trim_audit(&mut self, now: Timestamp) {
        self.state.audit_trimmed = now;
        let retention = u64::try_from(self.state.settings.audit_retention.as_millis()).unwrap_or(u64::MAX);
        let before = Timestamp(now.0.saturating_sub(retention));
        self.record(Change::TrimAudit(before, MAX_AUDIT));
    }

    fn end_overdue(&mut self, now: Timestamp) {
        let due = self.state.deadlines.iter().take_while(|(at, _)| *at <= now);
        let due: Vec<JobId> = due.map(|(_, id)| *id).collect();
        for id in due {
            let job = self.state.jobs.get(&id);
            let with = job.and_then(|job| self.state.ended_with(job));
            let reason = with.map_or_else(
                || "reached its time limit".to_owned(),
                |name| format!("its reservation {name} has ended"),
            );
            self.end_job(
                now,
                id,
                Ending {
                    state: JobState::Timeout,
                    reason,
                    exit_code: None,
                },
            );
        }
    }

    /// A job that was to start by now or not at all.
    fn give_up(&mut self, now: Timestamp, id: JobId) {
        if !self.state.pending.contains(id) {
            return;
        }
        let reason = "it could not start in the time that its user gave it (--immediate)".to_owned();
        self.end_job(
            now,
            id,
            Ending {
                state: JobState::Cancelled,
                reason,
                exit_code: None,
            },
        );
    }

    /// Pending jobs that ask for less from now on may start.
    pub(crate) fn end_patience(&mut self, now: Timestamp) {
        let due = self.state.patience.iter().take_while(|(at, _)| *at <= now);
        let due: Vec<_> = due.copied().collect();
        self.output.room |= !due.is_empty();
        for entry in due {
            self.state.patience.remove(&entry);
        }
    }

    /// Nodes that are silent get no more jobs; once the last lease that they may
    /// hold is past, their jobs are over.
    fn give_up_lost_nodes(&mut self, now: Timestamp) {
        let settings = &self.state.settings;
        let silent: Vec<NodeName> = self
            .state
            .links
            .iter()
            .filter(|(_, link)| link.connected && link.last_contact.after(settings.contact_timeout) <= now)
            .map(|(node, _)| node.clone())
            .collect();
        let lost: Vec<NodeName> = self
            .state
            .links
            .iter()
            .filter(|(_, link)| link.lease_until.after(settings.lease_margin) <= now)
            .map(|(node, _)| node.clone())
            .collect();
        self.output.room |= !silent.is_empty();
        for node in silent {
            self.state.update_link(&node, |link| link.connected = false);
            // A half-open connection would never say so by itself.
            self.output.effects.insert(Effect::Disconnect(node));
        }
        for node in lost {
            for id in held_on(&self.state, &node) {
                let reason = format!("node {node} was lost: not heard of for longer than its lease");
                self.end_job(
                    now,
                    id,
                    Ending {
                        state: JobState::NodeFail,
                        reason,
                        exit_code: None,
                    },
                );
                self.release(now, id, &node);
            }
        }
    }

    fn forget_expired_tokens(&mut self, now: Timestamp) {
        let hashes: Vec<_> = self
            .state
            .node_tokens
            .values()
            .filter(|token| token.expires <= now)
            .map(|token| token.hash)
            .collect();
        for hash in hashes {
            self.state.node_tokens.remove(&hash);
            self.record(Change::DeleteNodeToken(hash));
        }
        let ids: Vec<_> = self
            .state
            .tokens
            .values()
            .filter(|token| token.expires <= now)
            .map(|token| token.id.clone())
            .collect();
        for id in ids {
            self.delete_token(&id);
        }
    }
}
