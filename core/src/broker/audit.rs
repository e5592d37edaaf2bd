//! What the core itself writes into the audit log: in the transaction of what it tells of.

use std::fmt::Write as _;

use super::Broker;
use super::change::Change;
use super::input::Caller;
use crate::model::audit::{Action, AuditRecord, Origin};
use crate::model::ids::UserName;
use crate::model::job::{Job, Placed};
use crate::model::session::Session;

/// What a job on one node holds is told in so many bytes, mostly.
const TYPICAL: usize = 128;

impl Broker {
    /// Notes what a caller has done.
    pub(super) fn audit(
        &mut self,
        by: &Caller,
        action: Action,
        subject: impl Into<String>,
        detail: impl Into<String>,
    ) {
        let record = AuditRecord::new(Some(by.user.clone()), by.origin.clone(), action, subject, detail);
        self.note(record);
    }

    /// Notes what the broker has done by itself, for a user or for none.
    pub(super) fn audit_own(
        &mut self,
        user: Option<UserName>,
        action: Action,
        subject: impl Into<String>,
        detail: impl Into<String>,
    ) {
        self.note(AuditRecord::new(user, Origin::Broker, action, subject, detail));
    }

    /// Notes a record, as of now.
    pub(super) fn note(&mut self, record: AuditRecord) {
        let at = self.output.now;
        self.record(Change::Audit(Box::new(AuditRecord { at, ..record })));
    }
}

/// How the log calls a session.
pub(super) fn session_subject(session: &Session) -> String {
    format!("session {}.{}", session.name, session.owner)
}

/// What a job holds, node by node: "n0: GPU-1 GPU-2, 8 CPUs, 4096 MiB".
pub(super) fn units(placed: &Placed) -> String {
    let mut text = String::with_capacity(TYPICAL);
    for part in &placed.allocation.nodes {
        let between = if text.is_empty() { "" } else { "; " };
        let node = [between, part.node.as_str(), ": "];
        text.extend(node);
        for unit in &part.gpus {
            // Into a text nothing fails.
            let _ = write!(text, "{unit} ");
        }
        let _ = write!(text, "{} CPUs {} MiB", part.cpus, part.memory_bytes >> 20);
    }
    text
}

/// How the log calls a job: "job 17 (dev)".
pub(super) fn job_subject(job: &Job) -> String {
    format!("job {} ({})", job.label(), job.name)
}
