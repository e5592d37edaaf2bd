//! What nodes run that no record of the broker knows: its store was lost, or is older than they are.

use std::collections::BTreeMap;

use super::reject::Reject;
use super::state::State;
use crate::model::ids::{ClusterId, JobKey, NodeName, SessionId, UserName};
use crate::model::node::ObservedJob;
use crate::model::time::Timestamp;

/// A job that nodes run and no record knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundJob {
    /// Which allocation.
    pub key: JobKey,
    /// Cluster that started it.
    pub cluster: ClusterId,
    /// Whose it is, as its node says.
    pub owner: Option<UserName>,
    /// Its name: that of its session.
    pub name: String,
    /// Session that it is a run of.
    pub session: Option<SessionId>,
    /// Nodes of its gang, heard of or not; 0: not known.
    pub nodes: u32,
    /// When the first of its nodes took it in, by that node's clock; the epoch: not known.
    pub started: Timestamp,
    /// When it ends, whatever happens.
    pub deadline: Timestamp,
    /// What is known to run of it, by node.
    pub parts: Vec<FoundPart>,
    /// An operator has ended it, and a node has not released it yet.
    pub ending: bool,
    /// Why it cannot be adopted; none: it can.
    pub obstacle: Option<Reject>,
}

/// What one node runs of a found job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPart {
    /// The node.
    pub node: NodeName,
    /// What it says of it.
    pub seen: ObservedJob,
}

/// What a node says it runs, and no record knows. What we know to be over, and only wait for the
/// end of, is not among it.
pub fn found_on<'a>(state: &'a State, node: &NodeName) -> impl Iterator<Item = &'a ObservedJob> + 'a {
    state.strangers(node).filter(|seen| !state.is_over(seen))
}

/// Everything that nodes run and no record knows, by allocation.
pub fn found_jobs(state: &State) -> Vec<FoundJob> {
    let mut parts: BTreeMap<(ClusterId, JobKey), Vec<FoundPart>> = BTreeMap::new();
    for node in state.links.keys() {
        for seen in found_on(state, node) {
            let key = (seen.cluster.clone(), seen.key);
            parts.entry(key).or_default().push(FoundPart {
                node: node.clone(),
                seen: seen.clone(),
            });
        }
    }
    let jobs = parts.into_iter();
    jobs.filter_map(|((cluster, key), parts)| job(state, cluster, key, parts))
        .collect()
}

/// The parts of one allocation of this cluster, by rank.
pub(super) fn parts_of(state: &State, key: JobKey) -> Vec<FoundPart> {
    let mut parts: Vec<FoundPart> = Vec::new();
    for node in state.links.keys() {
        let mut found = found_on(state, node);
        if let Some(seen) = found.find(|seen| seen.key == key && seen.cluster == state.cluster.id) {
            parts.push(FoundPart {
                node: node.clone(),
                seen: seen.clone(),
            });
        }
    }
    parts.sort_by_key(|part| part.seen.rank);
    parts
}

fn job(state: &State, cluster: ClusterId, key: JobKey, mut parts: Vec<FoundPart>) -> Option<FoundJob> {
    parts.sort_by_key(|part| part.seen.rank);
    let first = parts.first()?.seen.clone();
    let ending = parts
        .iter()
        .any(|part| state.tombstones.contains(&(part.node.clone(), key)));
    Some(FoundJob {
        key,
        owner: first.user,
        name: first.name,
        session: first.session,
        nodes: first.nodes,
        started: parts
            .iter()
            .map(|part| part.seen.started)
            .min()
            .unwrap_or_default(),
        deadline: parts
            .iter()
            .map(|part| part.seen.deadline)
            .max()
            .unwrap_or_default(),
        ending,
        obstacle: state.must_be_adoptable(&cluster, key, &parts).err(),
        cluster,
        parts,
    })
}
