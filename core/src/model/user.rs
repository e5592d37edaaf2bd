//! People and the keys they come with.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ids::UserName;
use super::time::Timestamp;

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
    /// Home directory on the nodes and in containers.
    pub home: String,
    /// Login shell; empty: what the image has.
    pub shell: String,
    /// May administer the cluster.
    pub admin: bool,
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
    /// Not accepted after.
    pub expires: Timestamp,
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
