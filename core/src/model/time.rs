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

/// Milliseconds of a day.
const DAY: u64 = 86_400_000;

impl Timestamp {
    /// For sentences, to the minute: "2026-12-24T16:00Z".
    pub fn utc(self) -> String {
        let minutes = self.0 % DAY / 60_000;
        let (year, month, day) = date(self.0 / DAY);
        format!(
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}Z",
            minutes / 60,
            minutes % 60
        )
    }

    /// The day of the week, 0 is Monday.
    pub fn weekday(self) -> u64 {
        // The epoch was a Thursday.
        (self.0 / DAY + 3) % 7
    }
}

/// Year, month and day of a day since the epoch
/// (Hinnant, <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>).
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March, and eras of 400 years all have as many days.
    let since = days + 719_468;
    let (era, of_era) = (since / 146_097, since % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text, weekday) in [
            (0, "1970-01-01T00:00Z", 3),
            (951_782_400, "2000-02-29T00:00Z", 1),
            (1_709_251_199, "2024-02-29T23:59Z", 3),
            (1_735_689_600, "2025-01-01T00:00Z", 2),
            (4_107_542_400, "2100-03-01T00:00Z", 0),
        ] {
            let at = Timestamp(seconds * 1_000);
            assert_eq!((at.utc().as_str(), at.weekday()), (text, weekday));
        }
    }
}
