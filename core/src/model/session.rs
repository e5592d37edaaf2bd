//! Sessions: named records with at most one live job.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{JobId, NodeName, SessionId, SessionName, UserName};
use super::resources::ResourceRequest;
use super::time::Timestamp;

/// States of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SessionState {
    /// No live job.
    Stopped,
    /// Its job waits.
    Pending,
    /// Its containers are being made.
    Starting,
    /// Open.
    Running,
    /// Open, without its GPUs.
    Parked,
    /// Being ended.
    Stopping,
}

/// What a session is to be at its next start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// What its job asks for.
    pub request: ResourceRequest,
    /// Image reference.
    pub image: String,
    /// How long a start may run.
    pub time_limit: Duration,
    /// Variables for every process, besides the allocation's own.
    pub env: BTreeMap<String, String>,
    /// Working directory; empty: the home.
    pub workdir: String,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Its name, unique for its owner.
    pub name: SessionName,
    /// Whose it is.
    pub owner: UserName,
    /// What it is to be.
    pub spec: SessionSpec,
    /// When it was created.
    pub created: Timestamp,
    /// Removed by itself when its job ends.
    pub ephemeral: bool,
    /// To be removed as soon as its job has ended.
    pub removing: bool,
    /// The live job, or the last one.
    pub job: Option<JobId>,
    /// Nodes that may keep changes of its container.
    pub kept_on: Vec<NodeName>,
    /// The client's key of the request that last started it.
    pub request_key: String,
}
