//! What is kept: entities, written whole.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::account::{Account, Person};
use crate::model::array::ArrayRecord;
use crate::model::audit::AuditRecord;
use crate::model::ids::{
    AccountName, ClusterId, Incarnation, JobKey, NodeName, PartitionName, QosName, ReservationName,
    SessionId, UserName,
};
use crate::model::job::Job;
use crate::model::node::NodeRecord;
use crate::model::partition::Partition;
use crate::model::qos::Qos;
use crate::model::reservation::Reservation;
use crate::model::session::Session;
use crate::model::time::Timestamp;
use crate::model::user::{ApiToken, NodeToken, User};
use crate::queue::headroom::Demand;
use crate::queue::past::PastUse;

/// The cluster itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Its id.
    pub id: ClusterId,
    /// The latest start.
    pub incarnation: Incarnation,
    /// The next job's id.
    pub next_job: u64,
    /// The next session's id.
    pub next_session: u64,
    /// Longest lease that a node may still hold, milliseconds.
    pub lease_ms: u64,
}

/// One entity, put or deleted. Applying all changes in order gives the state that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The cluster's only record.
    PutCluster(Box<ClusterRecord>),
    /// By name.
    PutUser(Arc<User>),
    /// By id.
    PutToken(Arc<ApiToken>),
    /// By id.
    DeleteToken(Arc<str>),
    /// By hash.
    PutNodeToken(Arc<NodeToken>),
    /// By hash.
    DeleteNodeToken([u8; 32]),
    /// By name.
    PutNode(Arc<NodeRecord>),
    /// By name.
    DeleteNode(NodeName),
    /// By id.
    PutSession(Arc<Session>),
    /// By id.
    DeleteSession(SessionId),
    /// By id.
    PutJob(Arc<Job>),
    /// A job that is over leaves the state, and goes into the history as it is here. Its record stays there.
    ForgetJob(Arc<Job>),
    /// What is kept of an array beside its jobs, by id.
    PutArray(Arc<ArrayRecord>),
    /// An array leaves the state, since none of its jobs is in it. Its record stays in the history.
    ForgetArray(Arc<ArrayRecord>),
    /// What was used by jobs that have left the state, by whom and on what terms.
    PutPastUse(Arc<PastUse>),
    /// What interactive jobs that have left the state held of a model of GPU.
    PutPastDemand(String, Box<Demand>),
    /// A session's kept changes are to be deleted on a node.
    PutRemoval(NodeName, SessionId),
    /// They are.
    DeleteRemoval(NodeName, SessionId),
    /// By name.
    DeleteUser(UserName),
    /// An operator wants something ended that a node runs and no record knows.
    PutTombstone(NodeName, JobKey),
    /// It has.
    DeleteTombstone(NodeName, JobKey),
    /// By name.
    PutAccount(Arc<Account>),
    /// By name.
    DeleteAccount(AccountName),
    /// By user.
    PutPerson(Arc<Person>),
    /// By name.
    PutQos(Arc<Qos>),
    /// By name.
    DeleteQos(QosName),
    /// By name.
    PutPartition(Arc<Partition>),
    /// By name.
    DeletePartition(PartitionName),
    /// By name.
    PutReservation(Arc<Reservation>),
    /// By name.
    DeleteReservation(ReservationName),
    /// Added to the audit log, which is not read back at a start.
    Audit(Box<AuditRecord>),
    /// Records of the audit log are dropped: those from before this, and of the rest all but the
    /// newest so many.
    TrimAudit(Timestamp, u64),
}
