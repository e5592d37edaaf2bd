//! How many streams a user, and all users, may hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::limits;

/// Counts streams. Cheap to clone; all clones count together.
#[derive(Clone, Debug)]
pub(super) struct Quota {
    most: usize,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    total: usize,
    users: BTreeMap<Arc<str>, usize>,
}

/// Why a stream was not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuotaError {
    #[error("you have {0} streams open through this gateway, the most that one user may have: close some")]
    User(usize),
    #[error("the gateway carries {0} streams, the most that it can: try again later")]
    Total(usize),
}

/// One stream's place; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    user: Arc<str>,
    held: Arc<Mutex<Held>>,
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    // Counts are never left half changed.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Quota {
    /// At most `most` streams in all.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            held: Arc::default(),
        }
    }

    /// Streams open now.
    pub fn held(&self) -> usize {
        lock(&self.held).total
    }

    /// A place for one more stream of a user.
    pub fn take(&self, user: &str) -> Result<Place, QuotaError> {
        let mut held = lock(&self.held);
        if held.total >= self.most {
            return Err(QuotaError::Total(self.most));
        }
        let user: Arc<str> = user.into();
        let count = held.users.entry(Arc::clone(&user)).or_default();
        if *count >= limits::STREAMS_PER_USER {
            return Err(QuotaError::User(limits::STREAMS_PER_USER));
        }
        *count += 1;
        held.total += 1;
        Ok(Place {
            user,
            held: Arc::clone(&self.held),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        held.total -= 1;
        if let Some(count) = held.users.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                held.users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_all_and_all_cannot_take_more_than_there_is() {
        let quota = Quota::new(limits::STREAMS_PER_USER + 1);
        let mut places: Vec<_> = (0..limits::STREAMS_PER_USER)
            .map(|_| quota.take("alice").expect("a place"))
            .collect();
        assert_eq!(
            quota.take("alice").err(),
            Some(QuotaError::User(limits::STREAMS_PER_USER))
        );
        places.push(quota.take("bob").expect("a place"));
        assert_eq!(
            quota.take("bob").err(),
            Some(QuotaError::Total(limits::STREAMS_PER_USER + 1))
        );
        places.clear();
        assert_eq!(quota.held(), 0);
        quota.take("alice").expect("a place");
    }
}
