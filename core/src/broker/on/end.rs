//! How jobs end: first wished for, then acknowledged node by node, then over.

use std::sync::Arc;

use crate::broker::Broker;
use crate::broker::audit::{job_subject, units};
use crate::broker::change::Change;
use crate::model::audit::Action;
use crate::model::ids::{JobId, NodeName, SessionId};
use crate::model::job::{Ending, Job, JobState, Leaving, Phase, Placed};
use crate::model::time::Timestamp;

/// Times that a job is queued again; one that goes so often does not come to its end by it.
pub(super) const MAX_RESTARTS: usize = 100;

impl Broker {
    /// Begins to end a job. One that holds nothing is over at once; one that is
    /// ending already goes on as it does. One whose node was lost may wait again after that.
    pub(in crate::broker) fn end_job(&mut self, now: Timestamp, id: JobId, ending: Ending) {
        let job = self.state.jobs.get(&id);
        let again = job.is_some_and(|job| job.requeue) && ending.state == JobState::NodeFail;
        self.begin_end(now, id, ending, again, None);
    }

    /// Ends a job for good, also if it was to wait again.
    pub(super) fn end_for_good(&mut self, now: Timestamp, id: JobId, ending: Ending) {
        self.forget_requeue(id, &ending);
        self.begin_end(now, id, ending, false, None);
    }

    /// A job that is being ended does not wait again, but is over in this way.
    pub(super) fn forget_requeue(&mut self, id: JobId, ending: &Ending) {
        let Some(job) = self.state.jobs.get(&id).cloned() else {
            return;
        };
        let Some(mut placed) = job.placed().filter(|placed| placed.comes_again()).cloned() else {
            return;
        };
        placed.ending = Some(ending.clone());
        placed.leaving = placed.leaving.map(|leaving| Leaving {
            again: false,
            ..leaving
        });
        self.put_job(job.with_placed(placed));
    }

    /// Begins to end a job; it waits `again` after that, and may be ended for another one's sake.
    pub(in crate::broker) fn begin_end(
        &mut self,
        now: Timestamp,
        id: JobId,
        ending: Ending,
        again: bool,
        for_job: Option<JobId>,
    ) {
        let Some(job) = self.state.jobs.get(&id).cloned() else {
            return;
        };
        match &job.phase {
            Phase::Pending => {
                self.audit_end(&job, &ending, None);
                self.put_job(Job {
                    phase: Phase::Ended {
                        ending,
                        at: now,
                        last: None,
                    },
                    ..(*job).clone()
                });
                self.after_end(&job);
            }
            Phase::Placed(placed) if placed.ending.is_none() => {
                let mut placed = (**placed).clone();
                placed.leaving = Some(Leaving {
                    killed: now.after(self.state.grace_of(&job, &ending)),
                    again: again && job.past_runs.len() < MAX_RESTARTS,
                    for_job,
                });
                placed.ending = Some(ending);
                let nodes: Vec<_> = placed
                    .allocation
                    .nodes
                    .iter()
                    .map(|part| part.node.clone())
                    .collect();
                self.put_job(job.with_placed(placed));
                for node in nodes {
                    self.touch_job(&node, id);
                }
                self.finish_if_released(now, id);
            }
            Phase::Placed(_) | Phase::Ended { .. } => {}
        }
    }

    /// A node holds nothing of a job any more.
    pub(super) fn release(&mut self, now: Timestamp, id: JobId, node: &NodeName) {
        let Some(job) = self.state.jobs.get(&id).cloned() else {
            return;
        };
        let Some(mut placed) = job.placed().cloned() else {
            return;
        };
        let Some(rank) = crate::broker::desired::rank_on(&placed, node) else {
            return;
        };
        placed.ranks[rank].released = true;
        self.output.room = true;
        self.put_job(job.with_placed(placed));
        self.state.update_link(node, |link| {
            link.since.remove(&id);
        });
        self.touch(node);
        self.finish_if_released(now, id);
    }

    fn finish_if_released(&mut self, now: Timestamp, id: JobId) {
        let Some(job) = self.state.jobs.get(&id).cloned() else {
            return;
        };
        let Some(placed) = job
            .placed()
            .filter(|placed| placed.ranks.iter().all(|rank| rank.released))
        else {
            return;
        };
        let Some(ending) = placed.ending.clone() else {
            return;
        };
        if let Some(queued) = job.queued_again(now) {
            self.audit_end(&job, &ending, Some(placed));
            self.put_job(queued);
            self.output.room = true;
            return;
        }
        let last = Some(Box::new(placed.clone()));
        self.audit_end(&job, &ending, last.as_deref());
        self.put_job(Job {
            phase: Phase::Ended {
                ending,
                at: now,
                last,
            },
            ..(*job).clone()
        });
        self.after_end(&job);
    }

    /// Notes that a job is over, and what it held.
    fn audit_end(&mut self, job: &Job, ending: &Ending, held: Option<&Placed>) {
        let held = held.map_or_else(|| "it never started".to_owned(), units);
        let detail = format!("{}: {}; {held}", ending.state.name(), ending.reason);
        self.audit_own(Some(job.owner.clone()), Action::JobEnd, job_subject(job), detail);
    }

    /// What an ended job leaves to do.
    fn after_end(&mut self, job: &Job) {
        self.output.room = true;
        let session = job
            .session
            .and_then(|id| self.state.sessions.get(&id))
            .map(Arc::clone);
        if let Some(session) = session.filter(|session| session.job == Some(job.id))
            && (session.removing || session.ephemeral)
        {
            self.forget_session(session.id);
        }
    }

    /// Forgets a session without a live job, and has its kept changes deleted.
    pub(super) fn forget_session(&mut self, id: SessionId) {
        let Some(session) = self.state.sessions.get(&id).cloned() else {
            return;
        };
        for node in &session.kept_on {
            if self.state.nodes.contains_key(node) {
                self.state.removals.insert((node.clone(), id), ());
                self.record(Change::PutRemoval(node.clone(), id));
                self.touch(node);
                self.state.update_link(node, |link| {
                    link.removals_since.insert(id, link.generation);
                });
            }
        }
        self.state.remove_session(id);
        self.record(Change::DeleteSession(id));
    }
}
