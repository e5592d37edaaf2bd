//! How many connections there may be, in all and of one peer.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::{MAX_CONNECTIONS, MAX_CONNECTIONS_PER_PEER};

/// Whom connections are counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    User(u32),
    Address(IpAddr),
}

/// The places of one listener.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by: BTreeMap<Who, usize>,
}

/// A place taken; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    who: Who,
}

impl Places {
    /// Takes a place; none when there are too many connections already.
    pub(super) fn take(&self, who: Who) -> Option<Place> {
        let mut taken = self.lock();
        let own = taken.by.get(&who).copied().unwrap_or(0);
        if taken.all >= MAX_CONNECTIONS || own >= MAX_CONNECTIONS_PER_PEER {
            tracing::warn!(?who, own, all = taken.all, "too many connections: one is refused");
            return None;
        }
        taken.all += 1;
        taken.by.insert(who, own + 1);
        Some(Place {
            places: self.clone(),
            who,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Some(own) = taken.by.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                taken.by.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_does_not_keep_the_others_out() {
        let places = Places::default();
        let mut own: Vec<_> = std::iter::from_fn(|| places.take(Who::User(1))).collect();
        assert_eq!(own.len(), MAX_CONNECTIONS_PER_PEER);
        assert!(places.take(Who::User(2)).is_some());
        own.pop();
        assert!(places.take(Who::User(1)).is_some());
        drop(own);
        assert!(places.lock().by.is_empty());
        assert_eq!(places.lock().all, 0);
    }
}
