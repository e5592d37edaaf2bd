//! Waiting for conditions.

use std::time::{Duration, Instant};

/// How long a condition may take on a loaded machine before it counts as never true.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Looks until `look` gives something, for at most `patience`.
pub fn poll<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(LOOK);
    }
}

/// Waits until `condition` holds.
///
/// # Panics
/// It does not hold within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let held = poll(PATIENCE, || condition().then_some(()));
    assert!(
        held.is_some(),
        "after {} s still not so: {what}",
        PATIENCE.as_secs()
    );
}
