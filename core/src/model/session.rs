//! Sessions: named records with at most one live job.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{JobId, NodeName, SessionId, SessionName, UserName};
use super::resources::ResourceRequest;
use super::shared::Shared;
use super::terms::TermsRequest;
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
    pub request: Shared<ResourceRequest>,
    /// Image reference.
    pub image: String,
    /// How long a start may run.
    pub time_limit: Duration,
    /// Variables for every process, besides the allocation's own.
    pub env: BTreeMap<String, String>,
    /// Working directory; empty: the home.
    pub workdir: String,
    /// On what terms its jobs wait and run.
    #[serde(default)]
    pub terms: TermsRequest,
    /// What else its containers are to be.
    #[serde(default)]
    pub container: ContainerOptions,
}

/// What a container is to be beside its image and resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerOptions {
    /// Directories of the host.
    pub mounts: Vec<Mount>,
    /// Its user is root in it, and stays who he is outside.
    pub root: bool,
    /// What is sent before the deadline.
    #[serde(default)]
    pub end_signal: Option<EndSignal>,
    /// Its session is ended when nobody and nothing has used it for so long; the cluster may say less.
    #[serde(default)]
    pub idle: Option<Duration>,
}

/// A signal before the end, as Slurm's `--signal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndSignal {
    /// Its number.
    pub signal: i32,
    /// So long before the deadline, seconds.
    pub before_s: u32,
    /// To the shells of terminals alone; else to everything but these.
    pub shells: bool,
}

impl EndSignal {
    /// Linux's highest that has a name of its own.
    const MAX_SIGNAL: i32 = 31;
    /// Slurm's longest time.
    pub const MAX_BEFORE: u32 = 65_535;

    /// There is such a signal, and Slurm would take it.
    pub fn is_valid(self) -> bool {
        (1..=Self::MAX_SIGNAL).contains(&self.signal) && self.before_s <= Self::MAX_BEFORE
    }
}

/// A directory of the host in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// On the host; absolute.
    pub source: String,
    /// In the container; absolute.
    pub target: String,
    /// Nothing can be written through it.
    pub read_only: bool,
}

/// How far a session is shared with somebody; the second includes the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// To look at: its record, and its terminals without typing.
    ReadOnly,
    /// To enter as its owner's user.
    Full,
}

impl Share {
    /// For people, and as it is written: "bob:ro".
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::Full => "full",
        }
    }
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
    /// With whom it is shared, and how far.
    pub shares: BTreeMap<UserName, Share>,
}

impl Session {
    /// One that is only thought of: the run of a job that may never be submitted.
    pub(crate) fn of_nobody(id: SessionId, owner: &UserName, spec: SessionSpec, job: JobId) -> Self {
        Self {
            id,
            name: SessionName::first(),
            owner: owner.clone(),
            spec,
            created: Timestamp(0),
            ephemeral: true,
            removing: false,
            job: Some(job),
            kept_on: Vec::new(),
            request_key: String::new(),
            shares: BTreeMap::new(),
        }
    }
}
