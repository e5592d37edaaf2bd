//! Time that goes on while this machine sleeps.

use nix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
/// Elsewhere the monotonic clock itself counts sleep.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// Milliseconds since some moment in the past, sleep included.
pub fn now_ms() -> u64 {
    // The clock exists on every system that this is built for; 0 would only delay.
    clock_gettime(CLOCK).map_or(0, |now| {
        (now.tv_sec() as u64).saturating_mul(1000) + now.tv_nsec() as u64 / 1_000_000
    })
}
