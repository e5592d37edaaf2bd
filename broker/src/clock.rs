//! The broker's clock: wall time that never runs backwards, and says when it was set forward.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use carrel_core::model::time::Timestamp;

/// Wall time that runs ahead of the steady clock by more than this from one look to the next was set:
/// clocks that drift, or are slewed, differ by a few ten milliseconds over the longest sleep.
const STEP: Duration = Duration::from_secs(1);

/// Wall time for the core. While the system's clock stands before what was
/// already told (it was set back), this one goes on at half its pace until the
/// system's has caught up: timers still fire, and no two events change places.
#[derive(Debug)]
pub struct Clock(Mutex<Told>);

#[derive(Clone, Copy, Debug)]
struct Told {
    time: Timestamp,
    at: Instant,
    /// How far it was set forward in all, since [`Clock::take_step`] last told.
    stepped: Duration,
}

impl Clock {
    /// Begins with the system's time.
    pub fn new() -> Self {
        Self(Mutex::new(Told {
            time: wall(),
            at: Instant::now(),
            stepped: Duration::ZERO,
        }))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.look().time
    }

    /// How far the wall clock was set forward since this was last asked: time that did not pass. A host
    /// that slept counts as one whose clock was set: leases are then waited for too long, never too short.
    pub fn take_step(&self) -> Duration {
        std::mem::take(&mut self.look().stepped)
    }

    fn look(&self) -> MutexGuard<'_, Told> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *told = told.next(wall(), Instant::now());
        told
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Told {
    fn next(self, wall: Timestamp, at: Instant) -> Self {
        let passed = at.saturating_duration_since(self.at);
        if wall >= self.time {
            let ahead = wall.since(self.time.after(passed));
            let step = if ahead > STEP { ahead } else { Duration::ZERO };
            return Self {
                time: wall,
                at,
                stepped: self.stepped + step,
            };
        }
        let slow = self.time.after(passed / 2);
        if slow == self.time {
            // Less than a millisecond went by: `at` stays, so that it adds up.
            return self;
        }
        Self {
            time: slow,
            at,
            ..self
        }
    }
}

fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_set_back_is_waited_for_without_standing_still() {
        let start = Instant::now();
        let told = Told {
            time: Timestamp(10_000),
            at: start,
            stepped: Duration::ZERO,
        };
        let after =
            |told: Told, wall, millis| told.next(Timestamp(wall), start + Duration::from_millis(millis));
        let told = after(told, 4_000, 1);
        assert_eq!(told.time, Timestamp(10_000));
        let told = after(told, 5_000, 1_000);
        assert_eq!(told.time, Timestamp(10_500));
        let told = after(told, 16_000, 12_000);
        assert_eq!(told.time, Timestamp(16_000));
    }
    #[test]
    fn a_clock_set_forward_says_by_how_much() {
        let start = Instant::now();
        let told = Told {
            time: Timestamp(10_000),
            at: start,
            stepped: Duration::ZERO,
        };
        let told = told.next(Timestamp(40_300), start + Duration::from_secs(30));
        assert_eq!(told.stepped, Duration::ZERO, "it only runs fast");
        let told = told.next(Timestamp(3_641_300), start + Duration::from_secs(31));
        assert_eq!(told.time, Timestamp(3_641_300));
        assert_eq!(told.stepped, Duration::from_hours(1));
    }
}
