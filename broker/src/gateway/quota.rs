//! How many streams a user, a node, and all of them, may have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use carrel_core::model::ids::NodeName;

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
    nodes: BTreeMap<NodeName, usize>,
}

/// Why a stream was not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuotaError {
    #[error("you have {0} streams open through this gateway, the most that one user may have: close some")]
    User(usize),
    #[error(
        "node {0} has {1} streams open through this gateway, the most that one may have: try again later"
    )]
    Node(NodeName, usize),
    #[error("the gateway carries {0} streams, the most that it can: try again later")]
    Total(usize),
}

/// One stream's place; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    user: Arc<str>,
    node: NodeName,
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

    /// A place for one more stream of a user to a node.
    pub fn take(&self, user: &str, node: &NodeName) -> Result<Place, QuotaError> {
        let mut held = lock(&self.held);
        if held.total >= self.most {
            return Err(QuotaError::Total(self.most));
        }
        let of_user = held.users.get(user).copied().unwrap_or_default();
        if of_user >= limits::STREAMS_PER_USER {
            return Err(QuotaError::User(limits::STREAMS_PER_USER));
        }
        let to_node = held.nodes.get(node).copied().unwrap_or_default();
        if to_node >= limits::STREAMS_PER_NODE {
            return Err(QuotaError::Node(node.clone(), limits::STREAMS_PER_NODE));
        }
        let user: Arc<str> = user.into();
        held.users.insert(Arc::clone(&user), of_user + 1);
        held.nodes.insert(node.clone(), to_node + 1);
        held.total += 1;
        Ok(Place {
            user,
            node: node.clone(),
            held: Arc::clone(&self.held),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        held.total -= 1;
        give_back(&mut held.users, &self.user);
        give_back(&mut held.nodes, &self.node);
    }
}

fn give_back<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        name.parse().expect("a name")
    }

    #[test]
    fn one_user_cannot_take_all_and_all_cannot_take_more_than_there_is() {
        let quota = Quota::new(limits::STREAMS_PER_USER + 1);
        let n1 = node("n1");
        let mut places: Vec<_> = (0..limits::STREAMS_PER_USER)
            .map(|_| quota.take("alice", &n1).expect("a place"))
            .collect();
        assert_eq!(
            quota.take("alice", &n1).err(),
            Some(QuotaError::User(limits::STREAMS_PER_USER))
        );
        places.push(quota.take("bob", &n1).expect("a place"));
        assert_eq!(
            quota.take("bob", &n1).err(),
            Some(QuotaError::Total(limits::STREAMS_PER_USER + 1))
        );
        places.clear();
        assert_eq!(quota.held(), 0);
        quota.take("alice", &n1).expect("a place");
    }

    #[test]
    fn one_node_cannot_take_all() {
        let quota = Quota::new(usize::MAX);
        let (n1, n2) = (node("n1"), node("n2"));
        let mut places: Vec<_> = (0..limits::STREAMS_PER_NODE)
            .map(|number| quota.take(&format!("user-{}", number % 3), &n1).expect("a place"))
            .collect();
        assert_eq!(
            quota.take("bob", &n1).err(),
            Some(QuotaError::Node(n1.clone(), limits::STREAMS_PER_NODE))
        );
        quota.take("bob", &n2).expect("a place");
        places.pop();
        quota.take("bob", &n1).expect("a place");
    }
}
