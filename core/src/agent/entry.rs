//! One job of the ledger.

use super::meter::Meter;
use super::{Holding, cut};
use crate::model::activity::HostUse;
use crate::model::job::Containment;
use crate::model::node::{DesiredJob, EndCause};
use crate::model::time::Timestamp;

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Wanted, and holds nothing: others hold what it needs.
    Waiting,
    /// Holds what it needs, but nothing of it runs: its start was cut off, or was blocked
    /// by a process of no job. Tried again at this time, boot milliseconds.
    Held { retry_at: u64 },
    /// Its container is being made, or was found running and is being asked.
    Starting,
    /// carrel-init is up.
    Ready,
    /// Asked to end; killed at this time, boot milliseconds.
    Stopping { kill_at: u64 },
    /// Being removed since this time; tried again at that time, none while a try is under way.
    /// Boot milliseconds.
    Removing { since: u64, retry_at: Option<u64> },
    /// Nothing of it is left.
    Released,
}

impl Phase {
    /// It holds GPUs, CPUs and memory.
    pub(super) fn holds(self) -> bool {
        match self {
            Self::Waiting | Self::Released => false,
            Self::Held { .. }
            | Self::Starting
            | Self::Ready
            | Self::Stopping { .. }
            | Self::Removing { .. } => true,
        }
    }

    /// It is not being ended.
    pub(super) fn lives(self) -> bool {
        match self {
            Self::Waiting | Self::Held { .. } | Self::Starting | Self::Ready => true,
            Self::Stopping { .. } | Self::Removing { .. } | Self::Released => false,
        }
    }
}

/// One job of the ledger.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) holding: Holding,
    pub(super) phase: Phase,
    /// As the broker last wanted it; none: not heard of since the agent was started.
    pub(super) job: Option<DesiredJob>,
    /// carrel-init was up once, or its container was found running.
    pub(super) was_ready: bool,
    /// Its start is blocked by a process of no job since this time, boot milliseconds.
    pub(super) blocked_since: Option<u64>,
    /// For people.
    pub(super) detail: String,
    pub(super) host_key: String,
    pub(super) connections: u32,
    pub(super) containment: Containment,
    pub(super) cause: Option<EndCause>,
    pub(super) exit_code: Option<i32>,
    /// The exit code is that of the job's command, which ended by itself.
    pub(super) by_command: bool,
    /// What is done in it; none: nobody has looked yet.
    pub(super) meter: Option<Meter>,
    /// What it has used of CPUs and memory, as far as this agent has seen.
    pub(super) host: HostUse,
}

impl Entry {
    pub(super) fn new(holding: Holding, phase: Phase) -> Self {
        Self {
            holding,
            phase,
            job: None,
            was_ready: false,
            blocked_since: None,
            detail: String::new(),
            host_key: String::new(),
            connections: 0,
            containment: Containment::default(),
            cause: None,
            exit_code: None,
            by_command: false,
            meter: None,
            host: HostUse::default(),
        }
    }

    pub(super) fn is_over(&self, wall: Timestamp) -> bool {
        self.holding.deadline <= wall
    }

    /// Sets the detail; whether it is another one.
    pub(super) fn say(&mut self, detail: impl Into<String>) -> bool {
        let detail = cut(detail.into());
        let other = self.detail != detail;
        self.detail = detail;
        other
    }
}
