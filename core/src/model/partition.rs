//! Partitions: parts of the cluster with terms of their own.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::account::Limits;
use super::features::FeatureExpression;
use super::ids::{AccountName, NodeName, PartitionName, QosName};

/// Which nodes may be a job's, by name and feature. The default says: all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSet {
    /// These alone; none: any.
    pub only: Option<BTreeSet<NodeName>>,
    /// None of these.
    pub without: BTreeSet<NodeName>,
    /// Those with these features.
    pub features: Option<FeatureExpression>,
}

impl NodeSet {
    /// All nodes.
    pub fn is_all(&self) -> bool {
        self.only.is_none() && self.without.is_empty() && self.features.is_none()
    }
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Its name.
    pub name: PartitionName,
    /// What it is for, for people.
    #[serde(default)]
    pub description: String,
    /// Its nodes.
    #[serde(default)]
    pub nodes: NodeSet,
    /// Jobs that name none are in it.
    pub default: bool,
    /// Thousandths of the weight of partitions in a job's priority, up to [`MAX_PRIORITY`](super::qos::MAX_PRIORITY).
    pub priority: u32,
    /// Time limit of jobs that ask for none; none: the cluster's.
    #[serde(default)]
    pub default_time: Option<Duration>,
    /// Who may use it; none: everybody.
    #[serde(default)]
    pub accounts: BTreeSet<AccountName>,
    /// QOS of jobs that ask for none.
    #[serde(default)]
    pub qos: Option<QosName>,
    /// Of all its jobs together.
    #[serde(default)]
    pub limits: Limits,
    /// Of each user's jobs in it.
    #[serde(default)]
    pub per_user: Limits,
}

impl Partition {
    /// One of all nodes.
    pub fn new(name: PartitionName) -> Self {
        Self {
            name,
            description: String::new(),
            nodes: NodeSet::default(),
            default: false,
            priority: 0,
            default_time: None,
            accounts: BTreeSet::new(),
            qos: None,
            limits: Limits::default(),
            per_user: Limits::default(),
        }
    }
}
