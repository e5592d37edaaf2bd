//! Points in time, as the broker and its agents count them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch.
///
/// Whoever hands one to the core sees to it that time does not run backwards
/// within a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Later than every time that occurs.
    pub const MAX: Self = Self(u64::MAX);

    /// Milliseconds since the Unix epoch, for the wire.
    pub fn millis(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// From the wire; negative values are the epoch.
    pub fn from_millis(millis: i64) -> Self {
        Self(u64::try_from(millis).unwrap_or(0))
    }

    /// This time moved later; saturates.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
        )
    }

    /// Time from `earlier` to this; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}
