//! Reservations: nodes, or GPUs of them, that are kept for some users, or for nobody, at some times.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{AccountName, NodeName, ReservationName, UserName};
use super::partition::NodeSet;
use super::resources::Allocation;
use super::time::Timestamp;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);
const WEEK: Duration = Duration::from_hours(7 * 24);

/// When a reservation comes again, as Slurm's flags of these names say it. Days are those of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Every {
    /// Each hour.
    Hourly,
    /// Each day.
    Daily,
    /// Each week.
    Weekly,
    /// Each day from Monday to Friday.
    Weekday,
    /// Each Saturday and Sunday.
    Weekend,
}

impl Every {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Hourly,
        Self::Daily,
        Self::Weekly,
        Self::Weekday,
        Self::Weekend,
    ];

    /// Slurm's name, in small letters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Weekday => "weekday",
            Self::Weekend => "weekend",
        }
    }

    /// From one beginning to the next, where no day is left out.
    pub const fn period(self) -> Duration {
        match self {
            Self::Hourly => HOUR,
            Self::Daily | Self::Weekday | Self::Weekend => DAY,
            Self::Weekly => WEEK,
        }
    }

    /// Whether one may begin at a time.
    fn has(self, at: Timestamp) -> bool {
        match self {
            Self::Hourly | Self::Daily | Self::Weekly => true,
            Self::Weekday => at.weekday() < 5,
            Self::Weekend => at.weekday() >= 5,
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// From a time on, up to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Its first moment.
    pub start: Timestamp,
    /// The first moment after it.
    pub end: Timestamp,
}

impl Span {
    /// Some moment is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// When a reservation is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// From when on, the first time.
    pub start: Timestamp,
    /// For how long, each time.
    pub duration: Duration,
    /// When again; none: never.
    #[serde(default)]
    pub every: Option<Every>,
}

impl Times {
    /// The time that is not over by then, under way or the next; none: it never comes again.
    pub fn next(&self, at: Timestamp) -> Option<Span> {
        let span = |start: Timestamp| Span {
            start,
            end: start.after(self.duration),
        };
        let first = span(self.start);
        let Some(every) = self.every else {
            return (first.end > at).then_some(first);
        };
        let period = millis(every.period());
        // The first whose end is later.
        let count = if first.end > at {
            0
        } else {
            (at.0 - first.end.0) / period + 1
        };
        let starts = (count..count + 7).map(|count| Timestamp(self.start.0 + count * period));
        starts.into_iter().find(|start| every.has(*start)).map(span)
    }

    /// The time that is under way.
    pub fn current(&self, at: Timestamp) -> Option<Span> {
        self.next(at).filter(|span| span.start <= at)
    }

    /// It is in force at some moment of a time.
    pub fn overlaps(&self, span: Span) -> bool {
        span.start < span.end && self.next(span.start).is_some_and(|next| next.start < span.end)
    }

    /// Both are in force at some moment after a time.
    pub fn meets(&self, other: &Self, from: Timestamp) -> bool {
        let begun = self.start.max(other.start).max(from);
        let longest = self.duration.max(other.duration);
        // From then on both are the same each week: whoever meets meets within one.
        let from = Timestamp(begun.0.saturating_sub(millis(longest)));
        let until = begun.after(WEEK).after(longest);
        let mut at = from;
        while let Some(span) = self.next(at).filter(|span| span.start < until) {
            let rest = Span {
                start: span.start.max(begun),
                ..span
            };
            if other.overlaps(rest) {
                return true;
            }
            at = span.end.max(Timestamp(at.0 + 1));
        }
        false
    }

    /// When it next begins or ends, after a time.
    pub fn edge(&self, after: Timestamp) -> Option<Timestamp> {
        let next = self.next(after)?;
        Some(if next.start > after { next.start } else { next.end })
    }

    /// The same times, each for so much longer.
    #[must_use]
    pub fn longer(self, by: Duration) -> Self {
        Self {
            duration: self.duration + by,
            ..self
        }
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = (self.start, self.start.after(self.duration));
        write!(f, "from {} to {}", start.utc(), end.utc())?;
        self.every.map_or(Ok(()), |every| write!(f, ", {every}"))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its name.
    pub name: ReservationName,
    /// What it is for, for people.
    #[serde(default)]
    pub description: String,
    /// Who made it.
    pub by: UserName,
    /// When it is in force.
    pub times: Times,
    /// Its nodes, by name.
    pub nodes: NodeSet,
    /// What of them it holds; none: all of them, whatever they have.
    #[serde(default)]
    pub parts: Option<Allocation>,
    /// Jobs on these accounts, and those below them, may run in it; none: on any.
    #[serde(default)]
    pub accounts: BTreeSet<AccountName>,
    /// Jobs of these users may; none: of any.
    #[serde(default)]
    pub users: BTreeSet<UserName>,
    /// Nobody's may.
    #[serde(default)]
    pub maintenance: bool,
    /// It may be in force while another one of the same nodes is.
    #[serde(default)]
    pub overlap: bool,
}

impl Reservation {
    /// Names of its nodes.
    pub fn node_names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.only.iter().flatten()
    }

    /// A user's job may run in it that is on one of these accounts: its own, and those above.
    pub fn is_for(&self, user: &UserName, mut accounts: impl Iterator<Item = AccountName>) -> bool {
        !self.maintenance
            && (self.users.is_empty() || self.users.contains(user))
            && (self.accounts.is_empty() || accounts.any(|account| self.accounts.contains(&account)))
    }

    /// When others keep off: until what runs in it is gone.
    pub fn closed(&self, grace: Duration) -> Times {
        if self.maintenance {
            self.times
        } else {
            self.times.longer(grace)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: u64) -> Timestamp {
        Timestamp(0).after(HOUR * hours as u32)
    }

    fn span(start: u64, end: u64) -> Span {
        Span {
            start: at(start),
            end: at(end),
        }
    }

    fn times(start: u64, hours: u32, every: Option<Every>) -> Times {
        Times {
            start: at(start),
            duration: HOUR * hours,
            every,
        }
    }

    #[test]
    fn one_that_does_not_come_again_is_over_at_its_end() {
        let once = times(5, 2, None);
        assert_eq!(once.next(at(0)), Some(span(5, 7)));
        assert_eq!(
            (once.current(at(4)), once.current(at(5))),
            (None, Some(span(5, 7)))
        );
        assert_eq!(once.next(at(7)), None);
        assert_eq!(
            [once.edge(at(0)), once.edge(at(5)), once.edge(at(7))],
            [Some(at(5)), Some(at(7)), None]
        );
    }

    /// The epoch was a Thursday: its second day is a Friday, its third and fourth are the weekend.
    #[test]
    fn weekdays_and_weekends_leave_days_out() {
        let work = times(9, 8, Some(Every::Weekday));
        assert_eq!(work.next(at(0)), Some(span(9, 17)));
        assert_eq!(work.next(at(17)), Some(span(33, 41)));
        assert_eq!(work.next(at(41)), Some(span(4 * 24 + 9, 4 * 24 + 17)));
        let rest = times(9, 8, Some(Every::Weekend));
        assert_eq!(rest.next(at(0)), Some(span(2 * 24 + 9, 2 * 24 + 17)));
        assert_eq!(rest.next(at(3 * 24 + 17)), Some(span(9 * 24 + 9, 9 * 24 + 17)));
        assert!(!work.meets(&rest, at(0)));
    }

    /// What is found in closed form is what comes of counting, hour by hour.
    #[test]
    fn times_are_those_that_counting_finds() {
        let all = [
            (3, 1, Every::Hourly),
            (0, 24, Every::Daily),
            (30, 5, Every::Daily),
            (50, 70, Every::Weekly),
            (1, 23, Every::Weekday),
            (20, 6, Every::Weekend),
        ];
        let horizon = 24 * 40;
        let counted = |(start, hours, every): (u64, u32, Every)| -> Vec<Span> {
            let step = every.period().as_secs() / 3_600;
            let starts = (0..).map(|count| start + count * step);
            let starts = starts.take_while(|start| *start < horizon);
            let starts = starts.filter(|start| every.has(at(*start)));
            starts
                .map(|start| span(start, start + u64::from(hours)))
                .collect()
        };
        for (start, hours, every) in all {
            let one = times(start, hours, Some(every));
            let spans = counted((start, hours, every));
            for hour in 0..horizon - 24 * 7 {
                let next = spans.iter().find(|span| span.end > at(hour)).copied();
                assert_eq!(one.next(at(hour)), next, "{every} at {hour}");
            }
            for (start, hours, other) in all {
                let others = counted((start, hours, other));
                let other = times(start, hours, Some(other));
                let meet = spans
                    .iter()
                    .any(|span| others.iter().any(|one| one.overlaps(*span)));
                assert_eq!(one.meets(&other, at(0)), meet, "{one} and {other}");
            }
        }
    }

    #[test]
    fn one_that_was_over_before_another_began_does_not_meet_it() {
        let (early, late) = (times(5, 2, None), times(7, 2, Some(Every::Daily)));
        assert!(!early.meets(&late, at(0)) && !late.meets(&early, at(0)));
        let long = times(0, 24 * 30, None);
        assert!(long.meets(&late, at(0)) && late.meets(&long, at(24 * 29)));
        assert!(!late.meets(&long, at(24 * 31)));
    }
}
