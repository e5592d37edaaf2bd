//! What administrators change of accounts, QOS and partitions: what is not named stays as it is.

// None: nothing is said of it; none inside: it is taken away.
#![allow(clippy::option_option)]

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::account::Limits;
use crate::model::features::FeatureExpression;
use crate::model::ids::{AccountName, NodeName, PartitionName, QosName, ReservationName, UserName};
use crate::model::qos::Preemption;
use crate::model::reservation::Every;
use crate::model::time::Timestamp;
use crate::queue::Limit;

/// One change to who may use how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Makes or changes an account.
    Account(AccountName, Way, AccountEdit),
    /// Forgets an account without users, accounts below it, and jobs.
    DeleteAccount(AccountName),
    /// Puts users into an account, or changes those that are in it.
    Members(AccountName, Way, BTreeSet<UserName>, MemberEdit),
    /// Takes users without jobs in it out of an account.
    RemoveMembers(AccountName, BTreeSet<UserName>),
    /// Changes what is set for a user, whatever the account.
    Person(UserName, PersonEdit),
    /// Makes or changes a QOS.
    Qos(QosName, Way, QosEdit),
    /// Forgets a QOS that nothing uses.
    DeleteQos(QosName),
    /// Makes or changes a partition.
    Partition(PartitionName, Way, PartitionEdit),
    /// Forgets a partition without jobs.
    DeletePartition(PartitionName),
    /// Makes or changes a reservation.
    Reservation(ReservationName, Way, ReservationEdit),
    /// Takes a reservation back.
    DeleteReservation(ReservationName),
}

/// Whether something is to be made or to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is not there yet.
    Add,
    /// It is there.
    Set,
}

/// What is set, and taken away, of limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitsEdit {
    /// Those that are something here become that.
    pub set: Limits,
    /// These limit nothing any more.
    pub clear: Vec<Limit>,
}

/// What is to be changed of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountEdit {
    /// The one above it; none inside: it is at the top.
    pub parent: Option<Option<AccountName>>,
    /// What it is for.
    pub description: Option<String>,
    /// Shares beside its siblings.
    pub shares: Option<u32>,
    /// Of all jobs in it and below it, together.
    pub limits: LimitsEdit,
    /// Of each user's jobs in it.
    pub per_user: LimitsEdit,
}

/// What is to be changed of users in an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberEdit {
    /// Shares beside the account's other users and accounts.
    pub shares: Option<u32>,
    /// Of each one's jobs in this account.
    pub limits: LimitsEdit,
}

/// What is to be changed of a user, whatever the account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PersonEdit {
    /// The account of jobs that name none; none inside: the first that the user is in.
    pub default_account: Option<Option<AccountName>>,
    /// Of all of the user's jobs.
    pub limits: LimitsEdit,
}

/// What is to be changed of a QOS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QosEdit {
    /// What it is for.
    pub description: Option<String>,
    /// Thousandths of the weight of QOS.
    pub priority: Option<u32>,
    /// How its jobs give way; none inside: they never do.
    pub preemptible: Option<Option<Preemption>>,
    /// Between the terminate signal and the kill of a job that gives way; none inside: as for all jobs.
    pub grace: Option<Option<Duration>>,
    /// Whether its jobs may have preemptible ones end.
    pub preempts: Option<bool>,
    /// Who may use it; empty: everybody.
    pub accounts: Option<BTreeSet<AccountName>>,
    /// Of all its jobs together.
    pub limits: LimitsEdit,
    /// Of each user's jobs in it.
    pub per_user: LimitsEdit,
    /// How much of what is used counts for fair-share, thousandths.
    pub usage_milli: Option<u32>,
}

/// What is to be changed of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionEdit {
    /// What it is for.
    pub description: Option<String>,
    /// These nodes alone; none inside: any.
    pub only: Option<Option<BTreeSet<NodeName>>>,
    /// None of these.
    pub without: Option<BTreeSet<NodeName>>,
    /// Those with these features; none inside: whatever they have.
    pub features: Option<Option<FeatureExpression>>,
    /// Jobs that name none are in it, and in no other.
    pub default: Option<bool>,
    /// Thousandths of the weight of partitions.
    pub priority: Option<u32>,
    /// Time limit of jobs that ask for none; none inside: the cluster's.
    pub default_time: Option<Option<Duration>>,
    /// Who may use it; empty: everybody.
    pub accounts: Option<BTreeSet<AccountName>>,
    /// QOS of jobs that ask for none; none inside: the usual one.
    pub qos: Option<Option<QosName>>,
    /// Of all its jobs together.
    pub limits: LimitsEdit,
    /// Of each user's jobs in it.
    pub per_user: LimitsEdit,
}

/// What a reservation is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// These nodes.
    Nodes(BTreeSet<NodeName>),
    /// So many nodes.
    Count(u32),
    /// So many GPUs, on as few nodes as it takes.
    Gpus {
        /// How many.
        count: u32,
        /// Of these models, as requests name them; empty: of any.
        model: String,
    },
}

/// What is to be changed of a reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationEdit {
    /// What it is for.
    pub description: Option<String>,
    /// From when on, the first time; in a new one none is now.
    pub start: Option<Timestamp>,
    /// Until when, the first or the next time.
    pub end: Option<Timestamp>,
    /// For how long, instead of `end`.
    pub duration: Option<Duration>,
    /// When again; none inside: never.
    pub every: Option<Option<Every>>,
    /// What it holds.
    pub wanted: Option<Wanted>,
    /// Where that is looked for; none: everywhere.
    pub partition: Option<PartitionName>,
    /// Accounts whose jobs may run in it; empty: of any.
    pub accounts: Option<BTreeSet<AccountName>>,
    /// Users whose jobs may run in it; empty: of any.
    pub users: Option<BTreeSet<UserName>>,
    /// No job may.
    pub maintenance: Option<bool>,
    /// Others may hold the same.
    pub overlap: Option<bool>,
    /// Jobs that will still run when it begins do not matter.
    pub ignore_jobs: bool,
}
