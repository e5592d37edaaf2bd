//! Why an input was refused.

use thiserror::Error;

/// Kinds of refusal, for exit codes and statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RejectKind {
    /// The request makes no sense, here or anywhere.
    Invalid,
    /// There is no such thing.
    NotFound,
    /// There is one already.
    AlreadyExists,
    /// Not the caller's to do.
    Denied,
    /// Not in this state.
    WrongState,
    /// A limit is reached.
    Exhausted,
}

/// An input that changed nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Reject {
    /// Its kind.
    pub kind: RejectKind,
    /// What was wrong, and with what.
    pub message: String,
    /// What to do; empty: nothing to suggest.
    pub hint: String,
}

impl Reject {
    /// A refusal without a hint.
    pub fn new(kind: RejectKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: String::new(),
        }
    }

    /// With a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}
