//! What the broker found in its state directory when it started, and what an operator may do about it.

use carrel_core::broker::State;
use carrel_core::model::ids::ClusterId;

/// Whose state directory it is: the certificate authority in it says so, whatever became of the store.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The cluster of the authority.
    pub cluster: ClusterId,
    /// The authority was made by this start: there was no cluster before.
    pub is_new: bool,
}

/// What a start found.
#[derive(Clone, Debug)]
pub struct Start {
    /// Whose state directory it is.
    pub authority: Origin,
    /// The store held nothing.
    pub was_empty: bool,
    /// Number of the incarnation that it began with.
    pub incarnation: u64,
}

impl Start {
    /// What is unusual about the store, and what an operator may do; none: nothing is.
    pub fn explain(&self, state: &State) -> Option<String> {
        const GOES_ON: &str = "Whatever runs goes on until its own deadline, and its leases are renewed.";
        let cluster = &state.cluster;
        if cluster.id != self.authority.cluster {
            return Some(format!(
                "the store is of another cluster, {}: the certificate authority beside it is of {}, and so are \
                 the nodes. {GOES_ON} Nothing is placed on them. Stop the broker and put the right broker.db in \
                 its place; or take this one away, and adopt what is found",
                cluster.id, self.authority.cluster
            ));
        }
        if self.was_empty && !self.authority.is_new {
            return Some(format!(
                "the store was empty, though this cluster is not new: it was lost. {GOES_ON} Stop the broker and \
                 restore a backup of broker.db; or add the users, take back the nodes that come (`carrel node \
                 adopt`), and see what they run (`carrel found`): adopt it, or end it"
            ));
        }
        if cluster.incarnation.number != self.incarnation {
            return Some(format!(
                "the store is older than the cluster, a restored backup: nodes have obeyed later starts of the \
                 broker than it knows. {GOES_ON} See what nodes run that the store does not know (`carrel found`): \
                 adopt it, or end it"
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use carrel_core::broker::{Broker, Settings};
    use carrel_core::model::time::Timestamp;

    use super::*;

    #[test]
    fn what_is_unusual_is_explained() {
        let id = |text: &str| ClusterId(text.into());
        let (core, _) = Broker::start(Settings::default(), Vec::new(), id("ours"), 1, Timestamp(0));
        let start = |cluster: &str, is_new, incarnation| Start {
            authority: Origin {
                cluster: id(cluster),
                is_new,
            },
            was_empty: true,
            incarnation,
        };
        assert_eq!(start("ours", true, 1).explain(core.state()), None);
        for (start, what) in [
            (start("ours", false, 1), "it was lost"),
            (start("theirs", false, 1), "another cluster, ours"),
            (start("ours", true, 0), "a restored backup"),
        ] {
            let text = start.explain(core.state()).unwrap_or_default();
            assert!(text.contains(what), "{text}");
        }
    }
}
