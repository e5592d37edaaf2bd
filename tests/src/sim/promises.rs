//! Whether the world is as it must be: what users were told holds, nobody's work was ended without a
//! reason, and jobs go from state to state as they may.

use std::collections::{BTreeMap, BTreeSet};

use carrel_core::broker::{Broker, State};
use carrel_core::model::ids::{JobId, JobKey, SessionId};
use carrel_core::model::job::JobState;
use carrel_core::model::time::Timestamp;

use super::node::Deed;
use super::oracle;
use super::world::World;

/// What users were told, and may rely on.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    pub(super) sessions: BTreeMap<SessionId, JobId>,
    pub(super) removed: BTreeSet<SessionId>,
    pub(super) stopped: BTreeSet<JobId>,
    pub(super) deadlines: BTreeMap<JobId, Timestamp>,
}

impl World {
    /// Whether everything is as it must be.
    pub(super) fn judge(&mut self) -> Result<(), String> {
        let broker_moved = std::mem::take(&mut self.broker_moved);
        let nodes_moved = std::mem::take(&mut self.nodes_moved);
        let ours = self.store.aside.is_none();
        if broker_moved && ours {
            self.count_transitions()?;
        }
        if nodes_moved {
            self.judge_deeds()?;
            if let Some((node, key)) = self
                .nodes
                .values()
                .find_map(|node| Some((&node.name, node.overdue(self.now)?)))
            {
                return Err(format!(
                    "{key} runs on {node} past its deadline, under an agent that is up"
                ));
            }
            oracle::nodes(&self.nodes)?;
        }
        let Some(state) = self.broker.as_ref().map(Broker::state) else {
            return Ok(());
        };
        if broker_moved {
            oracle::records(state)?;
        }
        if ours && (broker_moved || nodes_moved) {
            oracle::freed_but_running(state, &self.nodes)?;
        }
        if ours && broker_moved {
            self.told.hold(state)?;
        }
        Ok(())
    }

    fn judge_deeds(&mut self) -> Result<(), String> {
        let nodes = self.nodes.values_mut();
        let deeds: Vec<(String, Deed)> = nodes
            .flat_map(|node| {
                let name = node.name.to_string();
                node.deeds.drain(..).map(move |deed| (name.clone(), deed))
            })
            .collect();
        for (node, deed) in deeds {
            match deed {
                Deed::Started(key) if self.was_ready(&node, key) => {
                    return Err(format!("{key} was ready on {node}, and is started anew"));
                }
                Deed::Ended(key) if !self.may_end(key) => {
                    return Err(format!("{key} is ended on {node}, and nobody wished it"));
                }
                Deed::Again(key) => {
                    return Err(format!("{key} has ended on {node}, and is started again"));
                }
                Deed::Started(_) | Deed::Ended(_) => {}
            }
        }
        Ok(())
    }

    /// The broker was told that this ran: a job runs once.
    fn was_ready(&self, node: &str, key: JobKey) -> bool {
        let state = self.broker.as_ref().map(Broker::state);
        let job = state.and_then(|state| state.jobs.get(&key.job));
        let placed = job.and_then(|job| job.last_placed());
        placed
            .filter(|placed| placed.generation == key.generation)
            .is_some_and(|placed| {
                let mut parts = placed.allocation.nodes.iter().zip(&placed.ranks);
                parts.any(|(part, rank)| part.node.as_str() == node && rank.ready)
            })
    }

    /// Somebody wished it, or its deadline is past by the broker's clock; of a gang another rank may have ended.
    fn may_end(&self, key: JobKey) -> bool {
        let wall = self.clock.now(self.now);
        let overdue = self
            .deadlines
            .get(&key)
            .is_some_and(|deadline| deadline.0 <= wall);
        let state = self.broker.as_ref().map(Broker::state);
        let job = state.and_then(|state| state.jobs.get(&key.job));
        let gang = job.is_some_and(|job| job.request.nodes > 1);
        self.wished.contains(&key) || overdue || gang
    }

    fn count_transitions(&mut self) -> Result<(), String> {
        let wall = self.clock.now(self.now);
        let Some(broker) = &self.broker else { return Ok(()) };
        let restored = std::mem::take(&mut self.other_store);
        for job in broker.state().jobs.values() {
            let state = job.state();
            if let (Some(placed), Some(key)) = (job.placed(), job.key()) {
                self.deadlines.insert(key, placed.deadline);
                if placed.deadline.0 <= wall {
                    // Whatever the clock is set to from now on.
                    self.wished.insert(key);
                }
            }
            let last = self.states.insert(job.id, state);
            let last = last.unwrap_or(if restored { state } else { JobState::Pending });
            if last == state {
                continue;
            }
            self.counts
                .add_text(format!("{} to {}", last.name(), state.name()));
            if last.is_final() {
                return Err(format!(
                    "job {} was {} and is {}",
                    job.id,
                    last.name(),
                    state.name()
                ));
            }
            if state == JobState::Running && job.request.nodes > 1 {
                self.counts.add("gang ready");
            }
            let ends = state.is_final() || state == JobState::Completing;
            if ends && let Some(wrong) = oracle::wrongly_lost(job, &self.nodes, self.now) {
                return Err(wrong);
            }
        }
        Ok(())
    }
}

impl Told {
    /// Whether it holds.
    fn hold(&self, state: &State) -> Result<(), String> {
        for (id, job) in &self.sessions {
            if !state.jobs.contains_key(job) {
                return Err(format!("job {job} was acknowledged and is lost"));
            }
            let ephemeral_end = state.jobs.get(job).is_some_and(|job| job.state().is_final());
            if !state.sessions.contains_key(id) && !ephemeral_end {
                return Err(format!("session {id} was acknowledged and is lost"));
            }
        }
        for id in &self.removed {
            if state.sessions.get(id).is_some_and(|session| !session.removing) {
                return Err(format!("session {id} was removed and is there again"));
            }
        }
        for job in &self.stopped {
            let running = state.jobs.get(job).is_some_and(|job| {
                matches!(
                    job.state(),
                    JobState::Pending | JobState::Configuring | JobState::Running
                )
            });
            if running {
                return Err(format!("job {job} was stopped and goes on"));
            }
        }
        for (job, deadline) in &self.deadlines {
            let placed = state.jobs.get(job).and_then(|job| job.placed());
            if placed.is_some_and(|placed| placed.deadline < *deadline) {
                return Err(format!("the extension of job {job} was acknowledged and is lost"));
            }
        }
        let keys = state
            .sessions
            .values()
            .map(|session| session.request_key.as_str());
        let keys: Vec<&str> = keys.filter(|key| !key.is_empty()).collect();
        if keys.iter().collect::<BTreeSet<_>>().len() != keys.len() {
            return Err("one request has made two sessions".to_owned());
        }
        Ok(())
    }
}
