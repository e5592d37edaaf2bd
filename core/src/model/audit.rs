//! The audit log: who did what to the cluster, from where, and whether it was done.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::ids::{JobKey, NodeName, UserName};
use super::time::Timestamp;

/// Longest detail, bytes: the units of a grant over a few hundred nodes. What is longer is cut.
const MAX_DETAIL: usize = 16 << 10;

/// Where something came from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The broker's own doing: a placement, a time limit.
    Broker,
    /// The Unix socket: a user id of the broker's machine.
    Local(u32),
    /// TLS: an address.
    Remote(IpAddr),
    /// A node, by its certificate.
    Node(NodeName),
    /// The inside of a job, through the agent of the node that it runs on.
    Job(NodeName, JobKey),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broker => f.write_str("broker"),
            Self::Local(uid) => write!(f, "uid {uid}"),
            Self::Remote(address) => write!(f, "{address}"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Job(node, key) => write!(f, "job {key} on node {node}"),
        }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// A broker started.
    BrokerStart,
    /// A job was given what it holds.
    JobStart,
    /// A job is over.
    JobEnd,
    /// Somebody signed in, or tried to.
    SignIn,
    /// A call was refused: the role or the token does not reach so far.
    Denied,
    /// An API token was made.
    TokenCreate,
    /// An API token was ended before its time.
    TokenRevoke,
    /// A plain SSH key was registered.
    KeyAdd,
    /// It was taken back.
    KeyRemove,
    /// A user's SSH key was certified.
    SshCertificate,
    /// A one-time token for a node was made.
    NodeToken,
    /// A node was certified: it joined, or renewed its certificate.
    NodeCertificate,
    /// A gateway was certified.
    GatewayCertificate,
    /// A container's SSH host key was certified.
    HostCertificate,
    /// A node was taken out of service.
    NodeDrain,
    /// It was taken back.
    NodeResume,
    /// Its features were changed.
    NodeFeature,
    /// It was forgotten, and its certificates with it.
    NodeRemove,
    /// One that the store had lost was taken back.
    NodeAdopt,
    /// A job that no record knew was given one.
    FoundAdopt,
    /// A job that no record knew was ended.
    FoundEnd,
    /// A user was put into the directory, or changed.
    UserPut,
    /// A user's role was changed.
    UserRole,
    /// An account was made or changed.
    AccountPut,
    /// An account was forgotten.
    AccountDelete,
    /// Users were put into an account, or changed there.
    MemberPut,
    /// Users were taken out of an account.
    MemberRemove,
    /// What is set for a user, whatever the account, was changed.
    UserTerms,
    /// A QOS was made or changed.
    QosPut,
    /// A QOS was forgotten.
    QosDelete,
    /// A partition was made or changed.
    PartitionPut,
    /// A partition was forgotten.
    PartitionDelete,
    /// A reservation was made or changed.
    ReservationPut,
    /// A reservation was taken back, or is over.
    ReservationDelete,
    /// A session was shared.
    Share,
    /// A share was taken back.
    Unshare,
    /// Somebody else's session was stopped.
    SessionStop,
    /// Somebody else's session was extended.
    SessionExtend,
    /// A waiting job of another's changed.
    JobUpdate,
    /// Somebody else's session was removed.
    SessionRemove,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 40] = [
        Self::BrokerStart,
        Self::JobStart,
        Self::JobEnd,
        Self::SignIn,
        Self::Denied,
        Self::TokenCreate,
        Self::TokenRevoke,
        Self::KeyAdd,
        Self::KeyRemove,
        Self::SshCertificate,
        Self::NodeToken,
        Self::NodeCertificate,
        Self::GatewayCertificate,
        Self::HostCertificate,
        Self::NodeDrain,
        Self::NodeResume,
        Self::NodeFeature,
        Self::NodeRemove,
        Self::NodeAdopt,
        Self::FoundAdopt,
        Self::FoundEnd,
        Self::UserPut,
        Self::UserRole,
        Self::AccountPut,
        Self::AccountDelete,
        Self::MemberPut,
        Self::MemberRemove,
        Self::UserTerms,
        Self::QosPut,
        Self::QosDelete,
        Self::PartitionPut,
        Self::PartitionDelete,
        Self::ReservationPut,
        Self::ReservationDelete,
        Self::Share,
        Self::Unshare,
        Self::SessionStop,
        Self::SessionExtend,
        Self::JobUpdate,
        Self::SessionRemove,
    ];

    /// As it is kept and asked for.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BrokerStart => "broker-start",
            Self::JobStart => "job-start",
            Self::JobEnd => "job-end",
            Self::SignIn => "sign-in",
            Self::Denied => "denied",
            Self::TokenCreate => "token-create",
            Self::TokenRevoke => "token-revoke",
            Self::KeyAdd => "key-add",
            Self::KeyRemove => "key-remove",
            Self::SshCertificate => "ssh-certificate",
            Self::NodeToken => "node-token",
            Self::NodeCertificate => "node-certificate",
            Self::GatewayCertificate => "gateway-certificate",
            Self::HostCertificate => "host-certificate",
            Self::NodeDrain => "node-drain",
            Self::NodeResume => "node-resume",
            Self::NodeFeature => "node-feature",
            Self::NodeRemove => "node-remove",
            Self::NodeAdopt => "node-adopt",
            Self::FoundAdopt => "found-adopt",
            Self::FoundEnd => "found-end",
            Self::UserPut => "user-put",
            Self::UserRole => "user-role",
            Self::AccountPut => "account-put",
            Self::AccountDelete => "account-delete",
            Self::MemberPut => "member-put",
            Self::MemberRemove => "member-remove",
            Self::UserTerms => "user-terms",
            Self::QosPut => "qos-put",
            Self::QosDelete => "qos-delete",
            Self::PartitionPut => "partition-put",
            Self::PartitionDelete => "partition-delete",
            Self::ReservationPut => "reservation-put",
            Self::ReservationDelete => "reservation-delete",
            Self::Share => "share",
            Self::Unshare => "unshare",
            Self::SessionStop => "session-stop",
            Self::SessionExtend => "session-extend",
            Self::JobUpdate => "job-update",
            Self::SessionRemove => "session-remove",
        }
    }
}

/// Whether it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It was.
    Done,
    /// It was not; the detail says why.
    Refused,
}

impl Outcome {
    /// As it is kept.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
        }
    }
}

/// One line of the audit log. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// When.
    pub at: Timestamp,
    /// Who; none: nobody who is known.
    pub user: Option<UserName>,
    /// From where.
    pub origin: Origin,
    /// What.
    pub action: Action,
    /// To what: "session dev.alice", "user bob", "node n0".
    pub subject: String,
    /// Whether it was done.
    pub outcome: Outcome,
    /// More about it, for people.
    pub detail: String,
}

impl AuditRecord {
    /// Something that was done, at a time that is yet to be put in.
    pub fn new(
        user: Option<UserName>,
        origin: Origin,
        action: Action,
        subject: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        let mut detail: String = detail.into();
        if detail.len() > MAX_DETAIL {
            detail.truncate(detail.floor_char_boundary(MAX_DETAIL));
            detail.push('…');
        }
        Self {
            at: Timestamp::default(),
            user,
            origin,
            action,
            subject: subject.into(),
            outcome: Outcome::Done,
            detail,
        }
    }

    /// The same, refused.
    #[must_use]
    pub fn refused(self) -> Self {
        Self {
            outcome: Outcome::Refused,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn actions_have_names_of_their_own() {
        let names: BTreeSet<&str> = Action::ALL.into_iter().map(Action::name).collect();
        assert_eq!(names.len(), Action::ALL.len());
        let all: BTreeSet<Action> = Action::ALL.into_iter().collect();
        assert_eq!(all.len(), Action::ALL.len());
    }

    #[test]
    fn a_detail_is_cut_where_a_character_ends() {
        let record = AuditRecord::new(
            None,
            Origin::Broker,
            Action::JobStart,
            "job 1",
            "ä".repeat(MAX_DETAIL),
        );
        assert!(record.detail.len() <= MAX_DETAIL + '…'.len_utf8());
        assert!(record.detail.ends_with("ä…"));
    }
}
