//! Who may use how much: the tree of accounts, and the users in them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{AccountName, UserName};

/// Most shares of one account or user: what Slurm takes.
pub const MAX_SHARES: u32 = 1_000_000;
/// Accounts above each other: more is a mistake, and each is a step of every look at the tree.
pub const MAX_DEPTH: usize = 16;

/// What jobs may have at most, together or each. The default limits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// GPUs that running jobs hold together, in thousandths: slices and shares count as the part that they are.
    pub gpu_milli: Option<u64>,
    /// Jobs that run at once.
    pub running: Option<u32>,
    /// Jobs that wait or run.
    pub submitted: Option<u32>,
    /// Longest time limit of a job.
    pub time: Option<Duration>,
    /// GPU-minutes that jobs use in each period ([`Settings::usage_period`](crate::broker::Settings)).
    pub gpu_minutes: Option<u64>,
}

impl Limits {
    /// Nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A user in an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Shares beside the account's other users and accounts.
    pub shares: u32,
    /// Of the user's jobs in this account.
    #[serde(default)]
    pub limits: Limits,
}

impl Default for Member {
    fn default() -> Self {
        Self {
            shares: 1,
            limits: Limits::default(),
        }
    }
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its name.
    pub name: AccountName,
    /// The one above it; none: it is at the top.
    pub parent: Option<AccountName>,
    /// What it is for, for people.
    #[serde(default)]
    pub description: String,
    /// Shares beside its siblings.
    pub shares: u32,
    /// Of all jobs in it and below it, together.
    #[serde(default)]
    pub limits: Limits,
    /// Of each user's jobs in it.
    #[serde(default)]
    pub per_user: Limits,
    /// Its users.
    #[serde(default)]
    pub members: BTreeMap<UserName, Member>,
}

impl Account {
    /// An empty one at the top, with one share.
    pub fn new(name: AccountName) -> Self {
        Self {
            name,
            parent: None,
            description: String::new(),
            shares: 1,
            limits: Limits::default(),
            per_user: Limits::default(),
            members: BTreeMap::new(),
        }
    }
}

/// What operators have set for a user, whatever the account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// Whom.
    pub user: UserName,
    /// The account of jobs that name none; none: the first that the user is in.
    pub default_account: Option<AccountName>,
    /// Of all of the user's jobs.
    #[serde(default)]
    pub limits: Limits,
}

impl Person {
    /// Somebody for whom nothing is set.
    pub fn new(user: UserName) -> Self {
        Self {
            user,
            default_account: None,
            limits: Limits::default(),
        }
    }
}
