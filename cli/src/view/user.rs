//! Users, their tokens, and what was done.

use std::collections::BTreeMap;

use carrel_proto::v1;
use serde::Serialize;

use super::some;
use super::words::{role, token_scope};
use crate::units::rfc3339;

/// A user of the broker's directory.
#[derive(Debug, Serialize)]
pub struct User {
    name: String,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    home: String,
    shell: String,
    role: &'static str,
    group_names: BTreeMap<u32, String>,
}

/// An API token; never its secret.
#[derive(Debug, Serialize)]
pub struct Token {
    id: String,
    user: String,
    label: String,
    scope: &'static str,
    created: Option<String>,
    expires: String,
    last_used: Option<String>,
    last_used_from: Option<String>,
    by_sign_in: bool,
}

/// A record of the audit log.
#[derive(Debug, Serialize)]
pub struct AuditRecord {
    number: u64,
    at: String,
    user: Option<String>,
    origin: String,
    action: String,
    subject: String,
    outcome: String,
    detail: String,
}

impl From<v1::User> for User {
    fn from(user: v1::User) -> Self {
        Self {
            role: role(user.role()),
            name: user.name,
            uid: user.uid,
            gid: user.gid,
            groups: user.groups,
            home: user.home,
            shell: user.shell,
            group_names: user.group_names,
        }
    }
}

impl From<v1::AuditRecord> for AuditRecord {
    fn from(record: v1::AuditRecord) -> Self {
        Self {
            number: record.number,
            at: rfc3339(record.at_ms),
            user: some(record.user),
            origin: record.origin,
            action: record.action,
            subject: record.subject,
            outcome: record.outcome,
            detail: record.detail,
        }
    }
}

impl From<v1::TokenInfo> for Token {
    fn from(token: v1::TokenInfo) -> Self {
        Self {
            scope: token_scope(token.scope()),
            id: token.id,
            user: token.user,
            label: token.label,
            created: (token.created_ms > 0).then(|| rfc3339(token.created_ms)),
            expires: rfc3339(token.expires_ms),
            last_used: token.last_used_ms.map(rfc3339),
            last_used_from: some(token.last_used_from),
            by_sign_in: token.by_sign_in,
        }
    }
}
