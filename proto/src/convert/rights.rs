//! Roles, scopes of tokens, and how far sessions are shared.

use carrel_core::model::session::Share;
use carrel_core::model::user::{Role, Scope};

use crate::v1;

impl From<Role> for v1::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::User => Self::User,
            Role::Operator => Self::Operator,
            Role::Admin => Self::Admin,
        }
    }
}

impl From<v1::Role> for Role {
    /// What is not said is the least.
    fn from(role: v1::Role) -> Self {
        match role {
            v1::Role::Unspecified | v1::Role::User => Self::User,
            v1::Role::Operator => Self::Operator,
            v1::Role::Admin => Self::Admin,
        }
    }
}

impl From<Scope> for v1::TokenScope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Read => Self::Read,
            Scope::Sessions => Self::Sessions,
            Scope::Full => Self::Full,
        }
    }
}

impl From<v1::TokenScope> for Scope {
    /// What is not said is everything, as in a token of one's own.
    fn from(scope: v1::TokenScope) -> Self {
        match scope {
            v1::TokenScope::Read => Self::Read,
            v1::TokenScope::Sessions => Self::Sessions,
            v1::TokenScope::Unspecified | v1::TokenScope::Full => Self::Full,
        }
    }
}

impl From<Share> for v1::ShareMode {
    fn from(share: Share) -> Self {
        match share {
            Share::ReadOnly => Self::ReadOnly,
            Share::Full => Self::Full,
        }
    }
}
