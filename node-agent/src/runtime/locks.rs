//! Locks by name, for work on one thing that must not be done twice at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// One lock for each key in use. Waiters are served in order.
pub(crate) struct KeyedLocks<K: Ord> {
    locks: Mutex<BTreeMap<K, Weak<AsyncMutex<()>>>>,
}

impl<K: Ord> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self {
            locks: Mutex::default(),
        }
    }
}

impl<K: Ord> KeyedLocks<K> {
    /// The lock of `key`, held until the guard is dropped.
    pub async fn lock(&self, key: K) -> OwnedMutexGuard<()> {
        self.get(key).lock_owned().await
    }

    /// The lock of `key` where it is free; none where somebody holds it.
    pub fn try_lock(&self, key: K) -> Option<OwnedMutexGuard<()>> {
        self.get(key).try_lock_owned().ok()
    }

    fn get(&self, key: K) -> Arc<AsyncMutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(AsyncMutex::new(()));
        locks.insert(key, Arc::downgrade(&lock));
        lock
    }
}
