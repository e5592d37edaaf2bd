//! Qualities of service: on what terms jobs wait and run.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::account::Limits;
use super::ids::{AccountName, QosName};

/// The highest priority of a QOS or a partition: they count in thousandths of their weight.
pub const MAX_PRIORITY: u32 = 1_000;

/// What becomes of a job whose GPUs another one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preemption {
    /// It is ended and waits again.
    Requeue,
    /// It is ended.
    Cancel,
}

/// A quality of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qos {
    /// Its name.
    pub name: QosName,
    /// What it is for, for people.
    #[serde(default)]
    pub description: String,
    /// Thousandths of the weight of QOS in a job's priority, up to [`MAX_PRIORITY`].
    pub priority: u32,
    /// Its jobs give way to others, and how; none: they never do.
    #[serde(default)]
    pub preemptible: Option<Preemption>,
    /// Between the terminate signal and the kill of a job that gives way; none: as for all jobs.
    #[serde(default)]
    pub grace: Option<Duration>,
    /// Its jobs may have preemptible ones of other QOS end; interactive jobs may, unless they are preemptible
    /// themselves.
    #[serde(default)]
    pub preempts: bool,
    /// Who may use it; none: everybody.
    #[serde(default)]
    pub accounts: BTreeSet<AccountName>,
    /// Of all its jobs together.
    #[serde(default)]
    pub limits: Limits,
    /// Of each user's jobs in it.
    #[serde(default)]
    pub per_user: Limits,
    /// How much of what is used counts for fair-share, thousandths.
    pub usage_milli: u32,
}

impl Qos {
    /// One without advantages or limits.
    pub fn new(name: QosName) -> Self {
        Self {
            name,
            description: String::new(),
            priority: 0,
            preemptible: None,
            grace: None,
            preempts: false,
            accounts: BTreeSet::new(),
            limits: Limits::default(),
            per_user: Limits::default(),
            usage_milli: 1_000,
        }
    }
}
