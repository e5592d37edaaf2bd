//! What comes in, and what is answered.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::edit::Edit;
use crate::model::array::{ArraySpec, JobRef};
use crate::model::audit::{AuditRecord, Origin};
use crate::model::batch::{Output, Place};
use crate::model::ids::{BadName, JobId, JobKey, NodeName, SessionId, SessionName, UserName};
use crate::model::job::Sent;
use crate::model::mail::{MailTypes, MailWish};
use crate::model::node::Observed;
use crate::model::resources::ResourceRequest;
use crate::model::session::{SessionSpec, Share};
use crate::model::start::{Conditions, StartWish};
use crate::model::time::Timestamp;
use crate::model::user::{ApiToken, NodeToken, Role, User};

/// Who asks: authenticated by the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub user: UserName,
    /// What they may do to the cluster, by this way in.
    pub role: Role,
    /// From where.
    pub origin: Origin,
}

impl Caller {
    /// The allocation from inside of which they ask; none: from outside. It confines them to what
    /// the table of rights lets a job do to itself.
    pub fn job(&self) -> Option<JobKey> {
        match self.origin {
            Origin::Job(_, key) => Some(key),
            Origin::Broker | Origin::Local(_) | Origin::Remote(_) | Origin::Node(_) => None,
        }
    }

    /// Whether a session's job is theirs to see, as far as it depends on where they ask from.
    pub fn sees_job(&self, id: JobId) -> bool {
        self.job().is_none_or(|own| own.job == id)
    }
}

/// Somebody has proved who they are and gets a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignIn {
    /// How: "SSH key SHA256:…".
    pub method: String,
    /// From where.
    pub origin: Origin,
    /// Their record, where the directory may not have one yet.
    pub newcomer: Option<User>,
    /// Their role from now on; none: as it is.
    pub role: Option<Role>,
    /// The token that they get.
    pub token: ApiToken,
}

/// A session as users name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionRef {
    /// "#17"
    Id(SessionId),
    /// "dev": the caller's own.
    Own(SessionName),
    /// "dev.alice"
    Of(SessionName, UserName),
}

impl FromStr for SessionRef {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        if let Some(id) = text.strip_prefix('#').and_then(|digits| digits.parse().ok()) {
            return Ok(Self::Id(SessionId(id)));
        }
        match text.split_once('.') {
            Some((name, user)) => Ok(Self::Of(name.parse()?, user.parse()?)),
            None => Ok(Self::Own(text.parse()?)),
        }
    }
}

/// A request for a session with a live job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// Its name; none: made up.
    pub name: Option<SessionName>,
    /// What it is to be; none: as it was last time. In the request, zero CPUs,
    /// memory or time and an empty image mean the cluster's defaults.
    pub spec: Option<SessionSpec>,
    /// Refuse when it has a live job.
    pub must_start: bool,
    /// Removed by itself when its job ends.
    pub ephemeral: bool,
    /// A repeated request with one key has one effect; empty: not repeated.
    pub request_key: String,
    /// When its job may start.
    pub start: StartWish,
}

/// A request for a batch job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitJob {
    /// Its name.
    pub name: String,
    /// What it runs on and in; zero CPUs, memory or time and an empty image mean the cluster's defaults.
    pub spec: SessionSpec,
    /// The command and its arguments; of a script, its arguments only.
    pub command: Vec<String>,
    /// A script with its interpreter in the first line.
    pub script: Option<String>,
    /// Where its output goes.
    pub output: Output,
    /// From where it is submitted.
    pub submitted_from: Place,
    /// What its user says of it; empty: nothing.
    pub comment: String,
    /// It is queued again when a node of it is lost.
    pub requeue: bool,
    /// When it may start.
    pub start: StartWish,
    /// What its user wants to be told by mail; none: nothing.
    pub mail: Option<MailWish>,
    /// The tasks of an array; none: it is one job.
    pub array: Option<ArraySpec>,
    /// A repeated request with one key has one effect; empty: not repeated.
    pub request_key: String,
}

/// What is to be changed of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobUpdate {
    /// Hold it (by its owner, or by an operator for another's), or let it go.
    pub hold: Option<bool>,
    /// Its owner's wish, in points.
    pub nice: Option<i32>,
    /// Before all others, or not any more; by operators.
    pub top: Option<bool>,
    /// Not before; the epoch: at once.
    pub begin: Option<Timestamp>,
    /// Its time limit, while it waits.
    pub time_limit: Option<Duration>,
    /// What it waits for.
    pub conditions: Option<Conditions>,
    /// Of an array: so many of it run at once at most, whether they wait or run; 0: as many as there is room for.
    pub throttle: Option<u32>,
    /// Of a batch job, whether it waits or runs: what mail is sent of it, and to whom.
    pub mail: Option<MailEdit>,
}

/// What is to be changed of a batch job's mail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailEdit {
    /// Of what it is sent.
    pub types: Option<MailTypes>,
    /// To whom; empty: the job's owner, by name.
    pub to: Option<String>,
}

/// Everything that can happen to a broker.
#[derive(Clone, Debug)]
pub enum Input {
    /// Find or create a session and see that it has a live job.
    OpenSession(Caller, OpenSession),
    /// Queue a batch job.
    SubmitJob(Caller, Box<SubmitJob>),
    /// End what runs of a batch job, or of an array, and queue it again.
    RequeueJob(Caller, JobRef),
    /// End a batch job, an array or tasks of one, waiting or not.
    CancelJob(Caller, JobRef),
    /// Send a signal to what runs of a batch job, or of an array.
    SignalJob(Caller, JobRef, Sent),
    /// Change a job that waits, or what waits of an array.
    UpdateJob(Caller, JobRef, JobUpdate),
    /// Move a live job's deadline.
    ExtendSession(Caller, SessionRef, Duration),
    /// End a session's live job, if it is this one.
    StopSession(Caller, SessionRef, Option<JobId>),
    /// End a session's live job, if it is this one: the command that it was there for has ended with this exit code.
    EndSession(Caller, SessionRef, JobId, u8),
    /// End a session's live job, and forget the session.
    RemoveSession(Caller, SessionRef),
    /// Share a session with a user, or change how far.
    ShareSession(Caller, SessionRef, UserName, Share),
    /// Take that back.
    UnshareSession(Caller, SessionRef, UserName),
    /// A node spoke.
    Observed(Arc<Observed>),
    /// The same, while nothing can be written: it keeps its lease, and everything else waits for
    /// its next report.
    Contact(Arc<Observed>),
    /// A node's link broke.
    Disconnected(NodeName),
    /// Time passed.
    Tick,
    /// The wall clock was set forward by so much: leases are lengths of time and move with it.
    ClockStepped(Duration),
    /// A one-time token for a node was made.
    CreateNodeToken(Caller, NodeToken),
    /// A host comes with a one-time token (its hash) and is to have a certificate.
    JoinNode {
        /// SHA-256 of the token.
        token: [u8; 32],
        /// The name that it wants.
        node: NodeName,
        /// Serial of the certificate that it is to get, hexadecimal.
        certificate: String,
        /// From where.
        origin: Origin,
    },
    /// A node gets a new certificate in place of its old one.
    RenewNode {
        /// The node.
        node: NodeName,
        /// Serial of the certificate that it came with.
        old: String,
        /// Serial of the one that it is to get.
        certificate: String,
    },
    /// A host came with a certificate of this cluster (its serial) that the store does not know.
    FindNode {
        /// The node that it is for.
        node: NodeName,
        /// Serial of the certificate.
        certificate: String,
    },
    /// Take a found node into service.
    AdoptNode(Caller, NodeName),
    /// Make a record of a found job: from now on it is its user's as any other.
    AdoptJob(Caller, JobKey),
    /// End a found job.
    EndFound(Caller, JobKey),
    /// Take a node out of service: no new jobs.
    DrainNode(Caller, NodeName, String),
    /// Take it back.
    ResumeNode(Caller, NodeName),
    /// Give it features, or take them from it.
    ChangeFeatures(Caller, NodeName, FeatureChange),
    /// Revoke its certificates and forget it.
    RemoveNode(Caller, NodeName),
    /// Create or change a user of the directory. By administrators, or by the
    /// shell (no caller) for a user that the name service knows.
    PutUser(Option<Caller>, User),
    /// Change a user's role.
    SetUserRole(Caller, UserName, Role),
    /// Change accounts, QOS or partitions.
    Edit(Caller, Box<Edit>),
    /// Register a plain SSH key for the caller.
    AddSshKey(Caller, Arc<str>),
    /// Take one back.
    RemoveSshKey(Caller, Arc<str>),
    /// An API token was made.
    CreateToken(Caller, ApiToken),
    /// By its id.
    RevokeToken(Caller, Arc<str>),
    /// A token was used: its id, and from where. Kept now and then only.
    UseToken(Arc<str>, Origin),
    /// Somebody signed in.
    SignIn(Box<SignIn>),
    /// Something happened that the shell decided, and that the audit log is to hold.
    Note(Box<AuditRecord>),
}

/// What is answered after the commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    #[default]
    Done,
    /// Done; and what whoever asked should know of it, a sentence each.
    Told(Vec<String>),
    /// This session; and whether this input submitted a job.
    Session(SessionId, bool),
    /// This job was submitted.
    Job(JobId),
    /// Until when a deadline now runs.
    Deadline(Timestamp),
}

impl ResourceRequest {
    /// GPUs over all nodes.
    pub fn gpus(&self) -> u64 {
        let of = |one: &Self| u64::from(one.nodes) * u64::from(one.gpus_per_node);
        self.components().map(of).sum()
    }
}

/// Features that a node gets and loses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureChange {
    /// Those that it gets.
    pub add: BTreeSet<String>,
    /// Those that it loses.
    pub remove: BTreeSet<String>,
}
