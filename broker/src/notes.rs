//! What the shell writes into the audit log by itself: failed sign-ins, refused calls, certificates.
//!
//! Who has not signed in can cause such records, so there is a limit: so many a minute of one
//! origin, and of all. What is over it is counted, and told with the next that is written.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use carrel_core::broker::Input;
use carrel_core::model::audit::{AuditRecord, Origin, Outcome};

use crate::actor::Handle;

/// Failures of one origin that are written a minute: enough to see what somebody tries.
const PER_ORIGIN: u32 = 10;
/// Failures of all origins that are written a minute: 25 MB of log a day at the worst.
const ALL: u32 = 60;
/// Origins that are counted for themselves; the others share what is left of [`ALL`].
const MAX_ORIGINS: usize = 1024;
const MINUTE: Duration = Duration::from_mins(1);

/// Writes records, failures within limits.
#[derive(Debug, Default)]
pub struct Notes(Mutex<Limits>);

#[derive(Debug, Default)]
struct Limits {
    origins: BTreeMap<Origin, Window>,
    all: Option<Window>,
    /// Failures that were not written since the last that was.
    untold: u64,
}

/// A minute, and how many came in it.
#[derive(Clone, Copy, Debug)]
struct Window {
    begun: Instant,
    count: u32,
}

impl Window {
    fn take(window: Option<Self>, most: u32, now: Instant) -> (Self, bool) {
        let fresh = Self { begun: now, count: 0 };
        let mut window = window.filter(|w| now < w.begun + MINUTE).unwrap_or(fresh);
        let taken = window.count < most;
        window.count += u32::from(taken);
        (window, taken)
    }
}

impl Limits {
    /// Whether a failure of an origin is written; then with how many untold ones.
    fn take(&mut self, origin: &Origin, now: Instant) -> Option<u64> {
        self.origins.retain(|_, window| now < window.begun + MINUTE);
        let own = self.origins.get(origin).copied();
        if own.is_some() || self.origins.len() < MAX_ORIGINS {
            let (window, taken) = Window::take(own, PER_ORIGIN, now);
            self.origins.insert(origin.clone(), window);
            if !taken {
                self.untold += 1;
                return None;
            }
        }
        let (all, taken) = Window::take(self.all, ALL, now);
        self.all = Some(all);
        if taken {
            Some(std::mem::take(&mut self.untold))
        } else {
            self.untold += 1;
            None
        }
    }
}

impl Notes {
    /// Writes a record. Without room for it, it is in this program's own log, and work goes on.
    pub async fn write(&self, handle: &Handle, mut record: AuditRecord) {
        if record.outcome == Outcome::Refused {
            let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match limits.take(&record.origin, Instant::now()) {
                Some(0) => {}
                Some(untold) => {
                    record.detail += &format!(" ({untold} more failures were not written down)");
                }
                None => return,
            }
        }
        let (action, subject) = (record.action.name(), record.subject.clone());
        let (user, origin) = (record.user.clone(), record.origin.clone());
        if let Err(error) = handle.call(Input::Note(Box::new(record))).await {
            tracing::warn!(action, subject, ?user, %origin, %error, "not in the audit log");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn origin(number: u32) -> Origin {
        Origin::Remote(Ipv4Addr::from(number).into())
    }

    #[test]
    fn one_origin_cannot_fill_the_log_nor_can_many() {
        let mut limits = Limits::default();
        let now = Instant::now();
        let written = (0..1_000)
            .filter(|_| limits.take(&origin(1), now).is_some())
            .count();
        assert_eq!(written, PER_ORIGIN as usize);
        // Another is heard, and tells of what was left out.
        assert_eq!(limits.take(&origin(2), now), Some(1_000 - u64::from(PER_ORIGIN)));
        let written = (3..100_000)
            .filter(|n| limits.take(&origin(*n), now).is_some())
            .count();
        assert_eq!(written as u32, ALL - PER_ORIGIN - 1);
        assert!(limits.origins.len() <= MAX_ORIGINS);
        let later = now + MINUTE;
        assert!(limits.take(&origin(1), later).is_some_and(|untold| untold > 0));
        assert_eq!(limits.origins.len(), 1, "who is quiet is forgotten");
    }
}
