//! What an agent must not forget.

use serde::{Deserialize, Serialize};

use super::entry::{Entry, Phase};
use super::{Agent, Holding};
use crate::model::ids::{ClusterId, Generation, Incarnation, JobId, JobKey};
use crate::model::node::EndCause;

/// What an agent must not forget: written before it acts, read at its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The cluster that it is of.
    pub cluster: ClusterId,
    /// Highest incarnation obeyed.
    pub accepted: Option<Incarnation>,
    /// The kernel's boot id when it was written.
    pub boot_id: String,
    /// End of the lease, milliseconds on that boot's clock.
    pub lease_end_ms: Option<u64>,
    /// Ended: these allocations are not started.
    pub fences: Vec<(JobId, Generation)>,
    /// Jobs that hold something, or are still to be reported.
    pub entries: Vec<LedgerEntry>,
}

/// One job of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Job and generation.
    pub key: JobKey,
    /// What it holds, and whose it is.
    pub holding: Holding,
    /// How far it is.
    pub stage: Stage,
    /// Why it ends.
    pub cause: Option<EndCause>,
    /// For people.
    pub detail: String,
    /// Exit code of process 1, or 128 + signal.
    pub exit_code: Option<i32>,
    /// Its carrel-init was up once: its end is no failed start.
    #[serde(default)]
    pub was_ready: bool,
    /// The exit code is that of the job's command, which ended by itself.
    #[serde(default)]
    pub by_command: bool,
    /// Of one that was being ended: it has ended, or its time of grace was over.
    #[serde(default)]
    pub removing: bool,
}

/// How far a job is, as far as it matters after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Its container was to be made.
    Starting,
    /// Its carrel-init was up.
    Ready,
    /// It was being ended.
    Ending,
    /// Nothing of it is left.
    Released,
}

impl Agent {
    /// What must be written before the actions of the last [`Agent::handle`] are done.
    pub fn ledger(&self) -> Ledger {
        let entries = self.entries.iter().filter_map(|(key, entry)| {
            let stage = match entry.phase {
                // The broker says it again.
                Phase::Waiting => return None,
                Phase::Ready => Stage::Ready,
                Phase::Starting if entry.was_ready => Stage::Ready,
                Phase::Held { .. } | Phase::Starting => Stage::Starting,
                Phase::Stopping { .. } | Phase::Removing { .. } => Stage::Ending,
                Phase::Released => Stage::Released,
            };
            Some(LedgerEntry {
                key: *key,
                holding: entry.holding.clone(),
                stage,
                cause: entry.cause,
                detail: entry.detail.clone(),
                exit_code: entry.exit_code,
                was_ready: entry.was_ready,
                by_command: entry.by_command,
                removing: matches!(entry.phase, Phase::Removing { .. }),
            })
        });
        Ledger {
            cluster: self.myself.cluster.clone(),
            accepted: self.accepted,
            boot_id: self.myself.boot_id.clone(),
            lease_end_ms: self.lease.end,
            fences: self
                .fences
                .iter()
                .map(|(generation, job)| (*job, *generation))
                .collect(),
            entries: entries.collect(),
        }
    }

    pub(super) fn load(&mut self, ledger: Ledger, boot_ms: u64) {
        self.rebooted = ledger.boot_id != self.myself.boot_id;
        if !self.rebooted {
            self.lease.end = ledger.lease_end_ms;
        }
        if ledger.cluster == self.myself.cluster {
            self.accepted = ledger.accepted;
            self.fences = ledger
                .fences
                .into_iter()
                .map(|(job, generation)| (generation, job))
                .collect();
        }
        for LedgerEntry {
            key,
            holding,
            stage,
            cause,
            detail,
            exit_code,
            was_ready,
            by_command,
            removing,
        } in ledger.entries
        {
            let phase = match stage {
                Stage::Starting | Stage::Ready => Phase::Held { retry_at: 0 },
                // No grace anew: nobody in it may work on.
                Stage::Ending if removing => Phase::Removing {
                    since: boot_ms,
                    retry_at: Some(boot_ms),
                },
                Stage::Ending => Phase::Stopping { kill_at: 0 },
                Stage::Released => Phase::Released,
            };
            let mut entry = Entry::new(holding, phase);
            entry.was_ready = was_ready || stage == Stage::Ready;
            entry.cause = cause;
            entry.exit_code = exit_code;
            entry.by_command = by_command;
            entry.detail = detail;
            self.entries.insert(key, entry);
        }
    }
}
