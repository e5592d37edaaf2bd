//! Wall clocks that are wrong, and are set. Nothing but deadlines may depend on them.

use std::time::Duration;

use carrel_core::model::time::Timestamp;

/// The broker's clock, as its process has it: it never runs backwards, goes on at half its pace while the
/// machine's stands before what was told, and says how far that was set forward.
#[derive(Clone, Debug)]
pub struct BrokerClock {
    /// How far the machine's clock is ahead of the world's, milliseconds.
    pub skew: i64,
    told: u64,
    at: u64,
}

/// Beyond this the clock did not drift but was set, milliseconds.
const STEP: u64 = 1_000;

impl BrokerClock {
    /// A process's clock, from its start.
    pub fn new(now: u64, skew: i64) -> Self {
        Self {
            skew,
            told: now.saturating_add_signed(skew),
            at: now,
        }
    }

    /// The time.
    pub fn now(&self, now: u64) -> u64 {
        let (wall, passed) = (now.saturating_add_signed(self.skew), now - self.at);
        if wall >= self.told {
            wall
        } else {
            self.told + passed / 2
        }
    }

    /// The time, and how far it was set forward since this was last asked.
    pub fn look(&mut self, now: u64) -> (Timestamp, Duration) {
        let time = self.now(now);
        let ahead = time.saturating_sub(self.told + (now - self.at));
        if time > self.told {
            (self.told, self.at) = (time, now);
        }
        let stepped = if ahead > STEP { ahead } else { 0 };
        (Timestamp(time), Duration::from_millis(stepped))
    }
}
