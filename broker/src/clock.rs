//! The broker's clock: wall time that never runs backwards.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use carrel_core::model::time::Timestamp;

/// Wall time for the core. While the system's clock stands before what was
/// already told (it was set back), this one goes on at half its pace until the
/// system's has caught up: timers still fire, and no two events change places.
#[derive(Debug)]
pub struct Clock(Mutex<Told>);

#[derive(Clone, Copy, Debug)]
struct Told {
    time: Timestamp,
    at: Instant,
}

impl Clock {
    /// Begins with the system's time.
    pub fn new() -> Self {
        Self(Mutex::new(Told {
            time: wall(),
            at: Instant::now(),
        }))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *told = told.next(wall(), Instant::now());
        told.time
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Told {
    fn next(self, wall: Timestamp, at: Instant) -> Self {
        if wall >= self.time {
            return Self { time: wall, at };
        }
        let slow = self.time.after(at.saturating_duration_since(self.at) / 2);
        if slow == self.time {
            // Less than a millisecond went by: `at` stays, so that it adds up.
            return self;
        }
        Self { time: slow, at }
    }
}

fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_set_back_is_waited_for_without_standing_still() {
        let start = Instant::now();
        let told = Told {
            time: Timestamp(10_000),
            at: start,
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
}
