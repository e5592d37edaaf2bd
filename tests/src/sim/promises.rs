//! Whether the world is as it must be: what users were told holds, nobody's work was ended without a
//! reason, and jobs go from state to state as they may.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use carrel_core::broker::{Broker, OpenSession, Reject, State};
use carrel_core::model::ids::{JobId, JobKey, NodeName, SessionId};
use carrel_core::model::job::{Ending, Job, JobState};
use carrel_core::model::resources::ResourceRequest;
use carrel_core::model::time::Timestamp;

use super::count::Counts;
use super::grants::Site;
use super::node::Deed;
use super::oracle;
use super::world::{MAX_PREEMPTIONS, World};

/// What users were told, and may rely on.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    pub(super) sessions: BTreeMap<SessionId, JobId>,
    pub(super) removed: BTreeSet<SessionId>,
    pub(super) stopped: BTreeSet<JobId>,
    /// Batch jobs.
    pub(super) jobs: BTreeSet<JobId>,
    /// Of allocations: a job that gave way has its whole time anew.
    pub(super) deadlines: BTreeMap<JobKey, Timestamp>,
}

/// What a request to open a session was answered.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Refused(Box<OpenSession>, Reject),
    /// With this job, new or not.
    Accepted(JobId),
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
            self.judge_grants()?;
            self.judge_reservations()?;
        }
        self.judge_answer()
    }

    /// What was refused for good is not possible, and what was accepted is.
    fn judge_answer(&mut self) -> Result<(), String> {
        let Some(answer) = self.answer.take() else {
            return Ok(());
        };
        let (Some(site), Some(broker)) = (self.site(), &self.broker) else {
            return Ok(());
        };
        match answer {
            Answer::Refused(request, reject) => {
                let request = request.spec.map(|spec| spec.request).unwrap_or_default();
                let for_good = reject.message.starts_with("this cluster can never hold that");
                if for_good && site.can_hold(&request.at_last(), None) {
                    return Err(format!("refused, though it is possible: {reject}; {request:?}"));
                }
                self.counts.add(if for_good {
                    "impossible request refused"
                } else {
                    "request refused"
                });
            }
            Answer::Accepted(id) => {
                let wall = Timestamp(self.clock.now(self.now));
                let new = broker.state().jobs.get(&id).filter(|job| job.submitted == wall);
                if let Some(job) = new.filter(|job| !site.can_hold(&job.request.at_last(), None)) {
                    return Err(format!(
                        "job {id} was accepted and can never start: {:?}",
                        job.request
                    ));
                }
            }
        }
        Ok(())
    }

    /// Who was given something has what they asked for.
    fn judge_grants(&mut self) -> Result<(), String> {
        let Some(broker) = &self.broker else { return Ok(()) };
        let jobs = broker.state().jobs.values();
        let new = jobs.filter_map(|job| Some((job, job.placed()?, job.key()?)));
        let new: Vec<_> = new.filter(|(.., key)| !self.judged.contains(key)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let site = Site::new(broker.state(), &self.nodes, &self.wires);
        for (job, placed, key) in new {
            self.judged.insert(key);
            let waited = placed.started.since(job.submitted);
            let over = |time| self.clock_was_set || waited >= time;
            let reservation = job.terms.reservation.as_ref();
            let reservation = reservation.and_then(|name| broker.state().reservations.get(name));
            let within: Option<BTreeSet<&NodeName>> = reservation.map(|one| one.node_names().collect());
            let mut asked = Cow::Borrowed(&*job.request);
            let mut relaxes = job.request.relaxes_after();
            while let Some(breach) = site.breach(&asked, &placed.allocation) {
                // It may have less once its patience is over, and where there never is more.
                let Some(time) = relaxes
                    .next()
                    .filter(|time| over(*time) || !site.can_hold(&asked, within.as_ref()))
                else {
                    return Err(format!(
                        "job {key} holds {:?}, {breach}; it asked for {asked:?}",
                        placed.allocation
                    ));
                };
                asked = Cow::Owned(job.request.after_waiting(time).into_owned());
                self.counts.add("wish given up");
            }
            count_kept(&asked, &mut self.counts);
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
        self.wished.contains(&key) || overdue || self.gangs.contains(&key)
    }

    fn count_transitions(&mut self) -> Result<(), String> {
        let wall = self.clock.now(self.now);
        if self.broker.is_none() {
            return Ok(());
        }
        let restored = std::mem::take(&mut self.other_store);
        if restored {
            self.excuse_all();
        }
        let Some(broker) = &self.broker else { return Ok(()) };
        for job in broker.state().jobs.values() {
            let state = job.state();
            if job.preemptions() > MAX_PREEMPTIONS as usize {
                return Err(format!(
                    "job {} was preempted {} times in a row",
                    job.id,
                    job.preemptions()
                ));
            }
            if let (Some(placed), Some(key)) = (job.placed(), job.key()) {
                self.deadlines.insert(key, placed.deadline);
                if placed.allocation.nodes.len() > 1 {
                    self.gangs.insert(key);
                }
                if placed.leaving.is_some_and(|leaving| leaving.for_job.is_some()) {
                    self.wished.insert(key);
                }
                let as_idle = |ending: &Ending| ending.reason.starts_with("idle since");
                if placed.deadline.0 <= wall || placed.ending.as_ref().is_some_and(as_idle) {
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
            if last.is_final() && self.anew.remove(&job.id) && !job.past_runs.is_empty() {
                self.counts.add("task runs once more");
            } else if last.is_final() {
                return Err(format!(
                    "job {} was {} and is {}",
                    job.id,
                    last.name(),
                    state.name()
                ));
            }
            if state == JobState::Running && job.request.all_nodes() > 1 {
                self.counts.add("gang ready");
            }
            let ends = state.is_final() || state == JobState::Completing;
            if ends && self.judge_idle(job)? {
                self.counts.add("session ended as idle");
            }
            if ends && let Some(wrong) = oracle::wrongly_lost(job, &self.nodes, self.now) {
                return Err(wrong);
            }
        }
        Ok(())
    }
}

/// Counts what was kept of what was asked for.
fn count_kept(request: &ResourceRequest, counts: &mut Counts) {
    if !request.more.is_empty() {
        counts.add("grant of several components");
    }
    for component in request.components() {
        let constraints = &component.constraints;
        for (asked, what) in [
            (component.exclusive, "grant of whole nodes"),
            (component.all_memory, "grant of all memory"),
            (
                component.nvlink && component.gpus_per_node > 1,
                "grant joined by NVLink",
            ),
            (constraints.switches > 0, "grant on few switches"),
            (constraints.segment > 1, "grant of segments"),
            (constraints.contiguous, "grant of nodes that follow each other"),
            (!constraints.nodelist.is_empty(), "grant of listed nodes"),
            (!constraints.exclude.is_empty(), "grant without excluded nodes"),
            (constraints.features.is_some(), "grant of features"),
        ] {
            if asked {
                counts.add(what);
            }
        }
    }
}

impl Told {
    /// A job that is over is in the history from now on. One that is not stays promised, and will be missed.
    pub(super) fn forget(&mut self, job: &Job) {
        if job.state().is_final() {
            self.jobs.remove(&job.id);
            self.sessions.retain(|_, of| *of != job.id);
        }
    }

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
        if let Some(lost) = self.jobs.iter().find(|job| !state.jobs.contains_key(*job)) {
            return Err(format!("batch job {lost} was acknowledged and is lost"));
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
        for (key, deadline) in &self.deadlines {
            let job = state.jobs.get(&key.job).filter(|job| job.key() == Some(*key));
            let placed = job.and_then(|job| job.placed());
            if placed.is_some_and(|placed| placed.deadline < *deadline) {
                return Err(format!("the extension of job {key} was acknowledged and is lost"));
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
