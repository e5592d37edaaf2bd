//! On what terms a job waits and runs.

use serde::{Deserialize, Serialize};

use super::ids::{AccountName, PartitionName, QosName, ReservationName};

/// The most that a job can be put back by its owner, or forward by an operator: what Slurm takes.
pub const MAX_NICE: i32 = 1_000_000;

/// What is asked for; what is none is chosen for whoever asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TermsRequest {
    /// On whose account.
    pub account: Option<AccountName>,
    /// With which QOS.
    pub qos: Option<QosName>,
    /// In which part of the cluster.
    pub partition: Option<PartitionName>,
    /// In which reservation; none: in none.
    pub reservation: Option<ReservationName>,
    /// Taken from the priority.
    pub nice: i32,
}

/// What a job has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Terms {
    /// On whose account.
    pub account: AccountName,
    /// With which QOS.
    pub qos: QosName,
    /// In which part of the cluster.
    pub partition: PartitionName,
    /// In which reservation it runs; none: outside of all.
    #[serde(default)]
    pub reservation: Option<ReservationName>,
    /// Taken from the priority.
    pub nice: i32,
    /// Put before all others by an operator; of several the one with the lowest number comes first.
    #[serde(default)]
    pub top: Option<i64>,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            account: AccountName::default_account(),
            qos: QosName::normal(),
            partition: PartitionName::all(),
            reservation: None,
            nice: 0,
            top: None,
        }
    }
}
