//! How refusals are told: a gRPC status for people, and a hint what to do.

use carrel_core::broker::{Reject, RejectKind};
use carrel_core::model::ids::BadName;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::actor::Refusal;

/// Metadata key of the hint.
pub const HINT: &str = "carrel-hint";

/// A status with a hint; an empty one is left out.
pub fn with_hint(code: Code, message: impl Into<String>, hint: &str) -> Status {
    let mut status = Status::new(code, message);
    // Metadata holds printable ASCII only.
    let hint: String = hint
        .chars()
        .map(|c| if matches!(c, ' '..='~') { c } else { '?' })
        .collect();
    if let (false, Ok(value)) = (hint.is_empty(), MetadataValue::try_from(hint)) {
        status.metadata_mut().insert(HINT, value);
    }
    status
}

/// The caller is nobody.
pub fn unauthenticated(message: impl Into<String>, hint: &str) -> Status {
    with_hint(Code::Unauthenticated, message, hint)
}

/// The request makes no sense.
pub fn invalid(message: impl Into<String>) -> Status {
    Status::invalid_argument(message)
}

/// A field that is not a name of its kind.
pub fn bad_name(bad: BadName) -> Status {
    invalid(bad.to_string())
}

/// What the core or the writer refused.
pub fn status(refusal: impl Into<Refusal>) -> Status {
    match refusal.into() {
        Refusal::Reject(Reject { kind, message, hint }) => with_hint(code(kind), message, &hint),
        refusal @ Refusal::Full(_) => with_hint(
            Code::ResourceExhausted,
            refusal.to_string(),
            "running sessions go on; an administrator has to make room on the broker's disk",
        ),
        refusal @ Refusal::Stopping => Status::unavailable(refusal.to_string()),
    }
}

fn code(kind: RejectKind) -> Code {
    match kind {
        RejectKind::Invalid => Code::InvalidArgument,
        RejectKind::NotFound => Code::NotFound,
        RejectKind::AlreadyExists => Code::AlreadyExists,
        RejectKind::Denied => Code::PermissionDenied,
        RejectKind::WrongState => Code::FailedPrecondition,
        RejectKind::Exhausted => Code::ResourceExhausted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_keep_message_and_hint() {
        let reject = Reject::new(RejectKind::WrongState, "no – not now").hint("wait – a bit");
        let status = status(reject);
        assert_eq!(
            (status.code(), status.message()),
            (Code::FailedPrecondition, "no – not now")
        );
        assert_eq!(
            status.metadata().get(HINT).and_then(|hint| hint.to_str().ok()),
            Some("wait ? a bit")
        );
    }
}
