//! What jobs leave behind that the state no longer holds: what was used, by whom, and on what terms.

use serde::{Deserialize, Serialize};

use super::usage::{Decay, Usage};
use crate::model::ids::{AccountName, PartitionName, QosName, UserName};
use crate::model::job::Job;

/// Whose jobs are counted together, once they have left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PastKey {
    /// Their user.
    pub user: UserName,
    /// Their account.
    pub account: AccountName,
    /// Their QOS.
    pub qos: QosName,
    /// Their partition.
    pub partition: PartitionName,
}

impl PastKey {
    /// A job's.
    pub fn of(job: &Job) -> Self {
        Self {
            user: job.owner.clone(),
            account: job.terms.account.clone(),
            qos: job.terms.qos.clone(),
            partition: job.terms.partition.clone(),
        }
    }
}

/// What they have used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastUse {
    /// Who they are.
    pub key: PastKey,
    /// Decayed, and of the period.
    pub usage: Usage,
}

impl PastUse {
    /// Counts a job that is over.
    pub fn count(&mut self, job: &Job, decay: Decay) {
        for run in super::tally::runs(job) {
            let Some(to) = run.to else { continue };
            self.usage.begin(run.from, run.billing_milli, decay);
            self.usage.end(to, run.billing_milli, decay);
        }
    }
}
