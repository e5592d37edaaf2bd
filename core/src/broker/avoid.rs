//! Nodes that a job keeps off for a while, because it has just failed there at once.
//!
//! A node whose disk is full or whose GPU is broken fails what it gets within seconds, is free again, and would get the
//! same job anew. So a job that failed before it ran there, or within [`SOON`] of that, and is queued again, gets other
//! nodes for [`KEEPS_OFF`](crate::model::job::KEEPS_OFF): to the placement they are excluded as by `--exclude`. It is a preference: a node is kept off
//! only while others that are in service could take the job, so no job is kept from starting by it for good.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::Broker;
use super::state::State;
use crate::model::ids::NodeName;
use crate::model::job::{Ending, Job, JobKind, JobState, PastRun, Phase, SOON};
use crate::model::resources::ResourceRequest;
use crate::model::time::Timestamp;
use crate::placement::{Assume, fits};

/// Nodes that a job keeps off at most, those of its last failures: each is a look at all hosts.
const MAX_NODES: usize = 16;

impl Broker {
    /// A node says how a job ends there. If that is a failure at once it is noted, before the job begins to end.
    pub(super) fn note_failure(&mut self, now: Timestamp, job: &Job, rank: usize, ending: &Ending) {
        let Some(current) = self.state.jobs.get(&job.id).cloned() else {
            return;
        };
        let Some(placed) = current.placed().filter(|placed| placed.ending.is_none()) else {
            return;
        };
        let failed = matches!(ending.state, JobState::Failed | JobState::NodeFail);
        let soon = placed.ready_since().is_none_or(|ready| now <= ready.after(SOON));
        if current.kind != JobKind::Batch || !failed || !soon || placed.ranks.get(rank).is_none() {
            return;
        }
        let mut placed = placed.clone();
        placed.ranks[rank].failed_soon = true;
        self.put_job(current.with_placed(placed));
    }
}

impl State {
    /// When a pending job stops to keep off nodes.
    pub(super) fn keeps_off_until(job: &Job) -> impl Iterator<Item = Timestamp> + '_ {
        job.failed_soon().map(PastRun::keeps_off_until)
    }

    /// Nodes that a pending job keeps off, and until when; `asked`: what it asks for by now.
    pub fn kept_off(&self, job: &Job, asked: &ResourceRequest) -> Vec<(NodeName, Timestamp)> {
        if !matches!(job.phase, Phase::Pending) {
            return Vec::new();
        }
        let mut kept_off: Vec<(NodeName, Timestamp)> = Vec::new();
        let lasting = job.failed_soon().filter(|run| {
            // Until time has passed it: passes know what time it is.
            self.patience.contains(&(run.keeps_off_until(), job.id))
        });
        let nodes = lasting.flat_map(|run| {
            run.failed_soon_on
                .iter()
                .map(|node| (node, run.keeps_off_until()))
        });
        for (node, until) in nodes {
            let known = kept_off.iter().any(|(name, _)| name == node);
            if known || !self.nodes.contains_key(node) || kept_off.len() >= MAX_NODES {
                continue;
            }
            kept_off.push((node.clone(), until));
            let excluded = kept_off.iter().map(|(node, _)| node.clone()).collect();
            if !fits(
                &self.hosts,
                self.needs(job, &without(asked, &excluded)),
                Assume::Emptied,
            ) {
                kept_off.pop();
            }
        }
        kept_off
    }

    /// What a job asks for, without the nodes that it keeps off.
    pub(super) fn keeping_off<'a>(
        &self,
        job: &Job,
        asked: Cow<'a, ResourceRequest>,
    ) -> Cow<'a, ResourceRequest> {
        if job.failed_soon().next().is_none() {
            return asked;
        }
        let kept_off = self.kept_off(job, &asked);
        if kept_off.is_empty() {
            return asked;
        }
        let excluded = kept_off.into_iter().map(|(node, _)| node).collect();
        Cow::Owned(without(&asked, &excluded))
    }
}

/// The same request, on other nodes than these.
fn without(asked: &ResourceRequest, nodes: &BTreeSet<NodeName>) -> ResourceRequest {
    let mut asked = asked.clone();
    asked.constraints.exclude.extend(nodes.iter().cloned());
    for one in &mut asked.more {
        one.constraints.exclude.extend(nodes.iter().cloned());
    }
    asked
}

/// "; it keeps off n1 until 2026-11-22T14:00:00Z, where it failed at once"; empty: off none.
pub(super) fn said(state: &State, job: &Job) -> String {
    let kept_off = state.nodes_kept_off(job);
    let nodes: Vec<String> = kept_off
        .iter()
        .map(|(node, until)| format!("{node} until {}", until.utc()))
        .collect();
    if nodes.is_empty() {
        return String::new();
    }
    format!(
        "; it failed at once where it ran, and keeps off {}",
        nodes.join(", ")
    )
}

impl State {
    /// Nodes that a job keeps off by now, and until when: none of one that does not wait.
    pub fn nodes_kept_off(&self, job: &Job) -> Vec<(NodeName, Timestamp)> {
        if job.failed_soon().next().is_none() || !matches!(job.phase, Phase::Pending) {
            return Vec::new();
        }
        self.kept_off(job, &self.wished_now(job))
    }
}
