//! Which call needs what: the one table.

use super::input::Caller;
use super::reject::{Reject, RejectKind};
use crate::model::session::Share;
use crate::model::user::{Role, Scope};

/// A call of the users' API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // Each is named as the call is, and described there (carrel/v1/broker.proto).
pub enum Call {
    GetCluster,
    OpenSession,
    GetSession,
    WatchSession,
    ListSessions,
    ExtendSession,
    StopSession,
    RemoveSession,
    ShareSession,
    UnshareSession,
    OpenStream,
    SignSshKey,
    GetJob,
    ListJobs,
    ExplainJob,
    ListNodes,
    ListFound,
    AdoptFound,
    EndFound,
    CreateNodeToken,
    UpdateNode,
    CreateToken,
    ListTokens,
    RevokeToken,
    AddSshKey,
    ListSshKeys,
    RemoveSshKey,
    PutUser,
    SetUserRole,
    ListUsers,
    ReadAudit,
}

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The least role of whoever makes it.
    pub role: Role,
    /// The least scope of a token that it is made with.
    pub scope: Scope,
    /// The least role with which it reaches what is another's; none: no role does.
    pub others: Option<Role>,
    /// How far another's session has to be shared with the caller; none: sharing is not enough.
    pub share: Option<Share>,
}

const fn needs(role: Role, scope: Scope, others: Option<Role>, share: Option<Share>) -> Needs {
    Needs {
        role,
        scope,
        others,
        share,
    }
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 31] = [
        Self::GetCluster,
        Self::OpenSession,
        Self::GetSession,
        Self::WatchSession,
        Self::ListSessions,
        Self::ExtendSession,
        Self::StopSession,
        Self::RemoveSession,
        Self::ShareSession,
        Self::UnshareSession,
        Self::OpenStream,
        Self::SignSshKey,
        Self::GetJob,
        Self::ListJobs,
        Self::ExplainJob,
        Self::ListNodes,
        Self::ListFound,
        Self::AdoptFound,
        Self::EndFound,
        Self::CreateNodeToken,
        Self::UpdateNode,
        Self::CreateToken,
        Self::ListTokens,
        Self::RevokeToken,
        Self::AddSshKey,
        Self::ListSshKeys,
        Self::RemoveSshKey,
        Self::PutUser,
        Self::SetUserRole,
        Self::ListUsers,
        Self::ReadAudit,
    ];

    /// The table.
    #[rustfmt::skip]
    pub const fn needs(self) -> Needs {
        use Role::{Admin, Operator, User};
        use Scope::{Full, Read, Sessions};
        match self {
            //                              role      scope     for others'     or shared
            Self::GetCluster      => needs( User,     Read,     None,           None),
            Self::OpenSession     => needs( User,     Sessions, None,           None),
            Self::GetSession      => needs( User,     Read,     Some(Operator), Some(Share::ReadOnly)),
            Self::WatchSession    => needs( User,     Read,     Some(Operator), Some(Share::ReadOnly)),
            Self::ListSessions    => needs( User,     Read,     Some(Operator), Some(Share::ReadOnly)),
            Self::ExtendSession   => needs( User,     Sessions, Some(Operator), None),
            Self::StopSession     => needs( User,     Sessions, Some(Operator), None),
            Self::RemoveSession   => needs( User,     Sessions, Some(Admin),    None),
            Self::ShareSession    => needs( User,     Full,     Some(Admin),    None),
            Self::UnshareSession  => needs( User,     Full,     Some(Admin),    None),
            // Nobody enters what is not theirs, whatever their role.
            Self::OpenStream      => needs( User,     Sessions, None,           Some(Share::ReadOnly)),
            Self::SignSshKey      => needs( User,     Sessions, None,           None),
            // Jobs are seen by all, as in squeue.
            Self::GetJob          => needs( User,     Read,     Some(User),     None),
            Self::ListJobs        => needs( User,     Read,     Some(User),     None),
            Self::ExplainJob      => needs( User,     Read,     Some(User),     None),
            Self::ListNodes       => needs( User,     Read,     None,           None),
            Self::ListFound       => needs( Operator, Full,     Some(Operator), None),
            Self::AdoptFound      => needs( Operator, Full,     Some(Operator), None),
            Self::EndFound        => needs( Operator, Full,     Some(Operator), None),
            Self::CreateNodeToken => needs( Operator, Full,     None,           None),
            Self::UpdateNode      => needs( Operator, Full,     None,           None),
            Self::CreateToken     => needs( User,     Full,     Some(Admin),    None),
            Self::ListTokens      => needs( User,     Full,     Some(Admin),    None),
            Self::RevokeToken     => needs( User,     Full,     Some(Admin),    None),
            Self::AddSshKey       => needs( User,     Full,     None,           None),
            Self::ListSshKeys     => needs( User,     Read,     None,           None),
            Self::RemoveSshKey    => needs( User,     Full,     None,           None),
            Self::PutUser         => needs( Admin,    Full,     Some(Admin),    None),
            Self::SetUserRole     => needs( Admin,    Full,     Some(Admin),    None),
            Self::ListUsers       => needs( User,     Read,     Some(Operator), None),
            Self::ReadAudit       => needs( Operator, Full,     Some(Operator), None),
        }
    }
}

impl Caller {
    /// Refuses who may not make a call at all.
    pub fn must(&self, call: Call) -> Result<(), Reject> {
        let needed = call.needs().role;
        if self.role >= needed {
            return Ok(());
        }
        Err(self.lacks(needed))
    }

    /// Whether a call of theirs reaches what is another's.
    pub fn reaches_others(&self, call: Call) -> bool {
        call.needs().others.is_some_and(|least| self.role >= least)
    }

    /// Refuses who may not make a call for somebody else.
    pub fn must_reach_others(&self, call: Call) -> Result<(), Reject> {
        match call.needs().others {
            Some(least) if self.role < least => Err(self.lacks(least)),
            Some(_) => Ok(()),
            None => Err(Reject::new(
                RejectKind::Denied,
                "this can be done for oneself only",
            )),
        }
    }

    fn lacks(&self, needed: Role) -> Reject {
        let message = format!("{} may not do this: it takes the role {needed}", self.user);
        Reject::new(RejectKind::Denied, message).hint(format!(
            "your role here is {}; ask an administrator of the cluster",
            self.role
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_list_is_whole() {
        let all: BTreeSet<Call> = Call::ALL.into_iter().collect();
        assert_eq!(all.len(), Call::ALL.len());
        assert_eq!(Call::ALL.last(), Some(&Call::ReadAudit));
        assert_eq!(Call::ReadAudit as usize + 1, Call::ALL.len());
    }

    /// Reaching further never takes less.
    #[test]
    fn others_things_take_no_smaller_role_than_one_s_own() {
        for call in Call::ALL {
            let needs = call.needs();
            assert!(needs.others.is_none_or(|others| others >= needs.role), "{call:?}");
        }
    }
}
