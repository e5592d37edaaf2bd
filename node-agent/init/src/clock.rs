//! The clock that leases are counted on: it runs on while a machine is suspended.

use nix::time::{ClockId, clock_gettime};

/// Milliseconds of `CLOCK_BOOTTIME`.
pub fn boot_ms() -> u64 {
    // The clock exists on every kernel that has containers; 0 would only delay.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |now| {
        (now.tv_sec() as u64).saturating_mul(1000) + now.tv_nsec() as u64 / 1_000_000
    })
}
