//! The words that states and kinds go by.

use carrel_proto::v1;

/// Slurm's word for a job's state.
pub fn job_state(state: v1::JobState) -> &'static str {
    use v1::JobState as S;
    match state {
        S::Unspecified => "UNKNOWN",
        S::Pending => "PENDING",
        S::Configuring => "CONFIGURING",
        S::Running => "RUNNING",
        S::Completing => "COMPLETING",
        S::Completed => "COMPLETED",
        S::Failed => "FAILED",
        S::Cancelled => "CANCELLED",
        S::Timeout => "TIMEOUT",
        S::Preempted => "PREEMPTED",
        S::NodeFail => "NODE_FAIL",
        S::OutOfMemory => "OUT_OF_MEMORY",
        S::Suspended => "SUSPENDED",
    }
}

/// A session's state.
pub fn session_state(state: v1::SessionState) -> &'static str {
    use v1::SessionState as S;
    match state {
        S::Unspecified => "UNKNOWN",
        S::Stopped => "STOPPED",
        S::Pending => "PENDING",
        S::Starting => "STARTING",
        S::Running => "RUNNING",
        S::Parked => "PARKED",
        S::Stopping => "STOPPING",
    }
}

/// What a container has of its gang's network; none: nothing.
pub fn rank_network(network: Option<&v1::RankNetwork>) -> Option<&'static str> {
    use v1::rank_network::Kind;
    match network?.kind.as_ref()? {
        Kind::Address(_) => Some("routed"),
        Kind::Host(true) => Some("host"),
        Kind::Host(false) => None,
    }
}

/// A role.
pub fn role(role: v1::Role) -> &'static str {
    match role {
        v1::Role::Unspecified | v1::Role::User => "user",
        v1::Role::Operator => "operator",
        v1::Role::Admin => "admin",
    }
}

/// What a token is good for.
pub fn token_scope(scope: v1::TokenScope) -> &'static str {
    match scope {
        v1::TokenScope::Read => "read",
        v1::TokenScope::Sessions => "sessions",
        v1::TokenScope::Unspecified | v1::TokenScope::Full => "full",
    }
}

/// How far a session is shared.
pub fn share_mode(mode: v1::ShareMode) -> &'static str {
    match mode {
        v1::ShareMode::ReadOnly => "ro",
        v1::ShareMode::Unspecified | v1::ShareMode::Full => "full",
    }
}

pub(super) fn job_kind(kind: v1::JobKind) -> &'static str {
    match kind {
        v1::JobKind::Unspecified => "unknown",
        v1::JobKind::Interactive => "interactive",
        v1::JobKind::Batch => "batch",
    }
}
