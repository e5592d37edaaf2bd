//! Waits between attempts.

use std::time::Duration;

use rand::RngExt;

/// First wait.
const FIRST: Duration = Duration::from_millis(100);
/// Longest wait, where nothing else is asked for: a broker that is back is found again within it.
const LONGEST: Duration = Duration::from_secs(5);

/// Waits that grow from attempt to attempt, each drawn between half and all of
/// its length, so that a cluster's agents do not come back in step.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(LONGEST)
    }
}

impl Backoff {
    /// Waits that grow no longer than this.
    pub fn up_to(longest: Duration) -> Self {
        Self { next: FIRST, longest }
    }

    /// An attempt succeeded.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }

    /// Waits before the next attempt.
    pub async fn wait(&mut self) {
        let length = self.next.mul_f64(rand::rng().random_range(0.5..1.0));
        self.next = (self.next * 2).min(self.longest);
        tokio::time::sleep(length).await;
    }
}
