//! The node's clocks.

use std::time::{SystemTime, UNIX_EPOCH};

use carrel_core::agent::Now;
use carrel_core::model::time::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// The time on both clocks.
pub fn now() -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        wall: Timestamp(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)),
        boot_ms: boot_ms(),
    }
}

/// Milliseconds of `CLOCK_BOOTTIME`.
pub fn boot_ms() -> u64 {
    // clock_gettime(2) fails for clocks that the kernel lacks; it has this one since 2.6.39.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap_or_else(|_| nix::sys::time::TimeSpec::new(0, 0));
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    seconds * 1000 + u64::try_from(now.tv_nsec()).unwrap_or(0) / 1_000_000
}
