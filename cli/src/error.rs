//! What goes wrong, for people: what, with what, and what to do about it; and the exit code.

use std::fmt;

use tonic::Code;

/// Kinds of failure; each has its exit code (docs/cli.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It did not work.
    Failed,
    /// The command line or a config file makes no sense.
    Usage,
    /// No such session, job, node, token, key.
    NotFound,
    /// The broker cannot be reached.
    Unreachable,
    /// Not allowed, or not signed in.
    Denied,
    /// Ended by Ctrl-C.
    Interrupted,
    /// Ended by SIGTERM.
    Terminated,
    /// The way to a session failed: what SSH expects of a failing ProxyCommand.
    Connection,
}

impl Kind {
    /// The program's exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Unreachable => 4,
            Self::Denied => 5,
            Self::Interrupted => 130,
            Self::Terminated => 143,
            Self::Connection => 255,
        }
    }
}

/// A failure that ends the program.
#[derive(Debug)]
pub struct CliError {
    /// What sort of failure.
    pub kind: Kind,
    /// What was wrong, with what.
    pub message: String,
    /// What to do; shown on a line of its own.
    pub hint: Option<String>,
}

/// What every command returns.
pub type Result<T, E = CliError> = std::result::Result<T, E>;

impl CliError {
    /// A failure of a kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    /// A plain failure.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    /// A mistake on the command line or in a config file.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// The same, with what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same, as another kind.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}

impl From<tonic::Status> for CliError {
    /// A broker's refusal: its message is for people, and `carrel-hint` says what to do.
    fn from(status: tonic::Status) -> Self {
        // What the broker itself says has no cause on this side.
        let is_of_the_way = std::error::Error::source(&status).is_some();
        let kind = match status.code() {
            _ if is_of_the_way => Kind::Unreachable,
            Code::NotFound => Kind::NotFound,
            Code::PermissionDenied | Code::Unauthenticated => Kind::Denied,
            Code::InvalidArgument | Code::OutOfRange => Kind::Usage,
            Code::Unavailable => Kind::Unreachable,
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::AlreadyExists
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Aborted
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss => Kind::Failed,
        };
        let message = match (status.message().trim(), status.code()) {
            _ if is_of_the_way => format!("the connection to the broker broke: {}", innermost(&status)),
            ("", code) => format!("the broker answered: {}", code.description()),
            (text, _) => text.to_owned(),
        };
        let hint = status
            .metadata()
            .get("carrel-hint")
            .and_then(|v| v.to_str().ok())
            .map(str::to_owned);
        let hint = hint.or_else(|| match status.code() {
            Code::Unauthenticated => Some("sign in with `carrel login https://HOST:PORT`".into()),
            Code::Unimplemented => {
                Some("the broker is older than this program; `carrel version` shows both".into())
            }
            _ => None,
        });
        Self { kind, message, hint }
    }
}

/// The first cause of an error, which says most: "connection refused".
pub fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    match innermost.downcast_ref::<tonic::Status>() {
        Some(status) => status.message().to_owned(),
        None => innermost.to_string(),
    }
}

/// Adds what was being done, and to what, to a failure of the system.
pub trait Context<T> {
    /// "`what`: cause", as a plain failure.
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: std::error::Error + 'static> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| CliError::failed(format!("{what}: {}", innermost(&error))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_s_hint_reaches_the_user() {
        let mut status = tonic::Status::failed_precondition("no node has 9 GPUs");
        status
            .metadata_mut()
            .insert("carrel-hint", "ask for 8".parse().unwrap());
        let error = CliError::from(status);
        assert_eq!(
            (error.kind, error.message.as_str()),
            (Kind::Failed, "no node has 9 GPUs")
        );
        assert_eq!(error.hint.as_deref(), Some("ask for 8"));
    }

    #[test]
    fn a_status_without_text_still_says_something() {
        assert!(!CliError::from(tonic::Status::internal("")).message.is_empty());
    }
}
