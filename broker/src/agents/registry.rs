//! The live links, one a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use carrel_core::broker::{Effect, Input};
use carrel_core::model::ids::NodeName;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::actor::{Effects, Handle, Refusal};

/// The live links.
#[derive(Debug, Default)]
pub struct Agents {
    links: Mutex<Links>,
    /// Held while a link comes or goes, until the core knows of it: so the
    /// core hears of the end of an old link before anything of the new one.
    order: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Links {
    by_node: BTreeMap<NodeName, Entry>,
    count: u64,
}

/// A node's live link, seen from outside.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    id: u64,
    /// Asks for the newest Desired. One permit is kept: however often it is
    /// asked for, a slow agent gets one, the newest.
    pub(super) wake: Arc<Notify>,
    /// Ends the link.
    pub(super) cut: CancellationToken,
}

impl Agents {
    /// Every node is to be sent its Desired.
    pub fn wake_all(&self) {
        for entry in self.lock().by_node.values() {
            entry.wake.notify_one();
        }
    }

    /// Takes a new link in. An older one of the same node is cut, and the core told.
    pub(super) async fn enter(&self, node: &NodeName, handle: &Handle) -> Entry {
        let _order = self.order.lock().await;
        let old = self.lock().by_node.remove(node);
        if let Some(old) = old {
            tracing::info!(%node, "a newer link replaces the node's old one");
            old.cut.cancel();
            disconnected(node, handle).await;
        }
        let mut links = self.lock();
        links.count += 1;
        let entry = Entry {
            id: links.count,
            wake: Arc::new(Notify::new()),
            cut: CancellationToken::new(),
        };
        links.by_node.insert(node.clone(), entry.clone());
        entry
    }

    /// A link has ended. The core is told, unless a newer one has taken its place.
    pub(super) async fn leave(&self, node: &NodeName, entry: &Entry, handle: &Handle) {
        let _order = self.order.lock().await;
        let current = self
            .lock()
            .by_node
            .get(node)
            .is_some_and(|current| current.id == entry.id);
        if current {
            self.lock().by_node.remove(node);
            disconnected(node, handle).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn disconnected(node: &NodeName, handle: &Handle) {
    match handle.call(Input::Disconnected(node.clone())).await {
        // A node that was removed, or a broker that stops, need not know.
        Ok(_) | Err(Refusal::Reject(_) | Refusal::Stopping) => {}
        Err(refusal @ Refusal::Full(_)) => {
            tracing::warn!(%node, %refusal, "the end of a link was not noted; its silence will be");
        }
    }
}

impl Effects for Agents {
    fn release(&self, effects: BTreeSet<Effect>) {
        let links = self.lock();
        for effect in effects {
            match effect {
                Effect::SendDesired(node) => {
                    if let Some(entry) = links.by_node.get(&node) {
                        entry.wake.notify_one();
                    }
                }
                Effect::Disconnect(node) => {
                    if let Some(entry) = links.by_node.get(&node) {
                        entry.cut.cancel();
                    }
                }
            }
        }
    }
}
