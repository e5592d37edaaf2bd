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
    SubmitJob,
    RequeueJob,
    CancelJob,
    SignalJob,
    UpdateJob,
    WatchJob,
    OpenLog,
    ListJobs,
    ListHistory,
    GetUsage,
    ExplainJob,
    PlanSession,
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
    EditAccount,
    ListAccounts,
    EditQos,
    ListQos,
    EditPartition,
    ListPartitions,
    EditReservation,
    ListReservations,
    ListQueue,
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
    /// From inside a job.
    pub inside: Inside,
}

/// What a call is from inside a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// Not possible.
    No,
    /// Of the job that it comes from, of its session and its array, and of what it has submitted; of nothing else.
    Own,
    /// Of what the cluster has, which is everybody's to see.
    Cluster,
}

const fn needs(
    role: Role,
    scope: Scope,
    others: Option<Role>,
    share: Option<Share>,
    inside: Inside,
) -> Needs {
    Needs {
        role,
        scope,
        others,
        share,
        inside,
    }
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 50] = [
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
        Self::SubmitJob,
        Self::RequeueJob,
        Self::CancelJob,
        Self::SignalJob,
        Self::UpdateJob,
        Self::WatchJob,
        Self::OpenLog,
        Self::ListJobs,
        Self::ListHistory,
        Self::GetUsage,
        Self::ExplainJob,
        Self::PlanSession,
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
        Self::EditAccount,
        Self::ListAccounts,
        Self::EditQos,
        Self::ListQos,
        Self::EditPartition,
        Self::ListPartitions,
        Self::EditReservation,
        Self::ListReservations,
        Self::ListQueue,
        Self::ReadAudit,
    ];

    /// The table.
    #[rustfmt::skip]
    pub const fn needs(self) -> Needs {
        use Inside::{Cluster, No, Own};
        use Role::{Admin, Operator, User};
        use Scope::{Full, Read, Sessions};
        match self {
            //                              role      scope     for others'     or shared               from inside
            Self::GetCluster      => needs( User,     Read,     None,           None,                  Own),
            Self::OpenSession     => needs( User,     Sessions, None,           None,                  No),
            Self::GetSession      => needs( User,     Read,     Some(Operator), Some(Share::ReadOnly), Own),
            Self::WatchSession    => needs( User,     Read,     Some(Operator), Some(Share::ReadOnly), No),
            Self::ListSessions    => needs( User,     Read,     Some(Operator), Some(Share::ReadOnly), Own),
            Self::ExtendSession   => needs( User,     Sessions, Some(Operator), None,                  Own),
            Self::StopSession     => needs( User,     Sessions, Some(Operator), None,                  Own),
            Self::RemoveSession   => needs( User,     Sessions, Some(Admin),    None,                  No),
            Self::ShareSession    => needs( User,     Full,     Some(Admin),    None,                  No),
            Self::UnshareSession  => needs( User,     Full,     Some(Admin),    None,                  No),
            // Nobody enters what is not theirs, whatever their role.
            Self::OpenStream      => needs( User,     Sessions, None,           Some(Share::ReadOnly), Own),
            Self::SignSshKey      => needs( User,     Sessions, None,           None,                  Own),
            // Jobs are seen by all, as in squeue.
            Self::GetJob          => needs( User,     Read,     Some(User),     None,                  Own),
            Self::SubmitJob       => needs( User,     Sessions, None,           None,                  Own),
            Self::RequeueJob      => needs( User,     Sessions, Some(Operator), None,                  Own),
            Self::CancelJob       => needs( User,     Sessions, Some(Operator), None,                  Own),
            Self::SignalJob       => needs( User,     Sessions, Some(Operator), None,                  Own),
            Self::UpdateJob       => needs( User,     Sessions, Some(Operator), None,                  Own),
            Self::WatchJob        => needs( User,     Read,     Some(User),     None,                  No),
            // What a job says is its user's alone.
            Self::OpenLog         => needs( User,     Read,     None,           None,                  No),
            Self::ListJobs        => needs( User,     Read,     Some(User),     None,                  Own),
            // What somebody has done over a year is theirs, and the operators'.
            Self::ListHistory     => needs( User,     Read,     Some(Operator), None,                  Own),
            Self::GetUsage        => needs( User,     Read,     Some(Operator), None,                  No),
            Self::ExplainJob      => needs( User,     Read,     Some(User),     None,                  Own),
            Self::PlanSession     => needs( User,     Read,     None,           None,                  No),
            Self::ListNodes       => needs( User,     Read,     None,           None,                  Cluster),
            Self::ListFound       => needs( Operator, Full,     Some(Operator), None,                  No),
            Self::AdoptFound      => needs( Operator, Full,     Some(Operator), None,                  No),
            Self::EndFound        => needs( Operator, Full,     Some(Operator), None,                  No),
            Self::CreateNodeToken => needs( Operator, Full,     None,           None,                  No),
            Self::UpdateNode      => needs( Operator, Full,     None,           None,                  No),
            Self::CreateToken     => needs( User,     Full,     Some(Admin),    None,                  No),
            Self::ListTokens      => needs( User,     Full,     Some(Admin),    None,                  No),
            Self::RevokeToken     => needs( User,     Full,     Some(Admin),    None,                  No),
            Self::AddSshKey       => needs( User,     Full,     None,           None,                  No),
            Self::ListSshKeys     => needs( User,     Read,     None,           None,                  No),
            Self::RemoveSshKey    => needs( User,     Full,     None,           None,                  No),
            Self::PutUser         => needs( Admin,    Full,     Some(Admin),    None,                  No),
            Self::SetUserRole     => needs( Admin,    Full,     Some(Admin),    None,                  No),
            Self::ListUsers       => needs( User,     Read,     Some(Operator), None,                  No),
            Self::EditAccount     => needs( Admin,    Full,     Some(Admin),    None,                  No),
            Self::ListAccounts    => needs( User,     Read,     Some(Operator), None,                  No),
            Self::EditQos         => needs( Admin,    Full,     Some(Admin),    None,                  No),
            // Who may ask for a QOS or a partition has to know its name.
            Self::ListQos         => needs( User,     Read,     Some(User),     None,                  No),
            Self::EditPartition   => needs( Admin,    Full,     Some(Admin),    None,                  No),
            Self::ListPartitions  => needs( User,     Read,     Some(User),     None,                  Cluster),
            // Users reserve within what operators let them.
            Self::EditReservation => needs( User,     Full,     Some(Operator), None,                  No),
            Self::ListReservations => needs(User,     Read,     Some(User),     None,                  No),
            Self::ListQueue       => needs( User,     Read,     Some(User),     None,                  Own),
            Self::ReadAudit       => needs( Operator, Full,     Some(Operator), None,                  No),
        }
    }
}

impl Caller {
    /// Refuses what is not possible from where they ask.
    pub fn must_reach(&self, call: Call) -> Result<(), Reject> {
        match (self.job(), call.needs().inside) {
            (None, _) | (Some(_), Inside::Own | Inside::Cluster) => Ok(()),
            (Some(_), Inside::No) => Err(not_from_inside()),
        }
    }

    /// Refuses who may not make a call at all.
    pub fn must(&self, call: Call) -> Result<(), Reject> {
        self.must_reach(call)?;
        let needed = call.needs().role;
        if self.role >= needed {
            return Ok(());
        }
        Err(self.lacks(needed))
    }

    /// Whether a call of theirs reaches what is another's.
    pub fn reaches_others(&self, call: Call) -> bool {
        self.job().is_none() && call.needs().others.is_some_and(|least| self.role >= least)
    }

    /// Refuses who may not make a call for somebody else.
    pub fn must_reach_others(&self, call: Call) -> Result<(), Reject> {
        self.must_reach(call)?;
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

/// A job looks at itself, extends itself, ends itself, and submits others that are no more than itself.
pub(super) fn not_from_inside() -> Reject {
    Reject::new(
        RejectKind::Denied,
        "this is not possible from inside a session",
    )
    .hint(
        "inside, `carrel` shows, extends and stops what it runs in, submits and ends batch jobs of its own, and lists the \
         cluster's nodes; everything else is done from outside",
    )
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
