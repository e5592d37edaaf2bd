//! People and the keys they come with.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::audit::Origin;
use super::ids::UserName;
use super::time::Timestamp;

/// What somebody may do to the cluster; each role may do all that those before it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Uses it.
    #[default]
    User,
    /// Runs it: nodes, everybody's jobs, the audit log.
    Operator,
    /// Decides who may what: users, roles, others' tokens.
    Admin,
}

impl Role {
    /// All of them, the least first.
    pub const ALL: [Self; 3] = [Self::User, Self::Operator, Self::Admin];

    /// For people, and for config files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|role| role.name() == text);
        known.ok_or_else(|| format!("{text:?} is no role: user, operator or admin"))
    }
}

/// What a token is good for; each scope includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Looking: a dashboard.
    Read,
    /// Opening, entering, extending and stopping sessions: an editor, a CI job.
    Sessions,
    /// Everything that its user may do; only such a token carries the user's role.
    #[default]
    Full,
}

impl Scope {
    /// All of them, the least first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Sessions, Self::Full];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Sessions => "sessions",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|scope| scope.name() == text);
        known.ok_or_else(|| format!("{text:?} is no scope: read, sessions or full"))
    }
}

/// A user, from the broker's directory or the node's name service; never from a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Login name.
    pub name: UserName,
    /// Numeric user id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
    /// Names of its groups, the primary one's too, as far as they are known.
    pub group_names: BTreeMap<u32, String>,
    /// Home directory on the nodes and in containers.
    pub home: String,
    /// Login shell; empty: what the image has.
    pub shell: String,
    /// What they may do to the cluster.
    pub role: Role,
    /// Plain OpenSSH public keys ("ssh-ed25519 AAAA…", no comment).
    pub ssh_keys: Vec<Arc<str>>,
}

/// An API token; only its hash is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiToken {
    /// Public handle, for lists and revocation.
    pub id: Arc<str>,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// Whom it speaks for.
    pub user: UserName,
    /// What it is for, for people.
    pub label: String,
    /// What it is good for.
    pub scope: Scope,
    /// Made by a sign-in, and not by hand: the oldest of these gives way to the next.
    pub by_sign_in: bool,
    /// When it was made.
    pub created: Timestamp,
    /// Not accepted after.
    pub expires: Timestamp,
    /// About when it was last used, and from where; none: never.
    pub last_used: Option<(Timestamp, Origin)>,
}

/// How exactly the last use of a token is known: a use costs a write this often at most.
const USE_EVERY: Duration = Duration::from_hours(1);

impl ApiToken {
    /// It was not used for so long that its use now is worth a write.
    pub fn use_is_due(&self, now: Timestamp) -> bool {
        let last = self.last_used.as_ref();
        last.is_none_or(|(at, _)| at.after(USE_EVERY) <= now)
    }
}

/// A one-time token with which a host becomes a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeToken {
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// The only node name it is good for; none: any.
    pub node: Option<super::ids::NodeName>,
    /// Not accepted after.
    pub expires: Timestamp,
}
