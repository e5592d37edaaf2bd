//! Jobs that are over leave the state after a time. The store keeps them in its history; what they have used stays
//! counted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::change::Change;
use crate::broker::{Broker, State};
use crate::model::ids::JobId;
use crate::model::job::Job;
use crate::model::time::Timestamp;
use crate::queue::past::{PastKey, PastUse};
use crate::queue::usage::Usage;

/// Jobs that are over and stay: some 20 MB. Of more, the oldest leave before their time.
pub(in crate::broker) const MAX_ENDED: usize = 10_000;
/// Those that leave at once: the writer has others to serve.
const AT_ONCE: usize = 500;
/// Between two looks at what something still refers to.
const LOOK: Duration = Duration::from_mins(1);

impl Broker {
    /// Jobs leave that were over long enough ago, and that nothing refers to.
    pub(super) fn forget_ended(&mut self, now: Timestamp) {
        if self.state.forget_next > now {
            return;
        }
        self.forget_arrays();
        let state = &self.state;
        let over = state.ended.len().saturating_sub(MAX_ENDED);
        let kept = state.settings.jobs_in_memory;
        let mut due = state
            .ended
            .iter()
            .enumerate()
            .take_while(|(place, (at, _))| *place < over || at.after(kept) <= now)
            .map(|(_, (_, id))| *id)
            .peekable();
        if due.peek().is_none() {
            return;
        }
        let named = state.named_by_nodes();
        let due = due.filter(|id| !named.contains(id) && !state.is_referred_to(*id));
        let due: Vec<JobId> = due.take(AT_ONCE).collect();
        let wait = if due.len() == AT_ONCE {
            Duration::ZERO
        } else {
            LOOK
        };
        self.state.forget_next = now.after(wait);
        for id in due {
            if let Some(job) = self.state.jobs.get(&id).cloned() {
                self.forget_job(job);
            }
        }
    }

    fn forget_job(&mut self, job: Arc<Job>) {
        let decay = self.state.settings.queue.decay();
        let key = PastKey::of(&job);
        let known = self.state.past_use.get(&key);
        let mut past = known.map_or_else(
            || PastUse {
                key: key.clone(),
                usage: Usage::default(),
            },
            |past| (**past).clone(),
        );
        past.count(&job, decay);
        if past.usage != Usage::default() {
            let past = Arc::new(past);
            self.state.past_use.insert(key, Arc::clone(&past));
            self.record(Change::PutPastUse(past));
        }
        for (model, demand) in self.state.past_demand_with(&job) {
            self.state.past_demand.insert(model.clone(), demand);
            self.record(Change::PutPastDemand(model, Box::new(demand)));
        }
        self.state.remove_job(&job);
        if let Some(array) = self.state.remove_from_array(&job) {
            self.record(Change::PutArray(array));
        }
        self.record(Change::ForgetJob(job));
    }
}

impl State {
    /// Takes out a job that is over. What it has used stays counted.
    fn remove_job(&mut self, job: &Job) {
        self.jobs.remove(&job.id);
        // Of an array the one that has its number, as a repeated request finds it.
        if let Some(batch) = job.batch.as_ref().filter(|_| job.number() == job.id) {
            self.submit_keys
                .remove(&(job.owner.clone(), batch.request_key.clone()));
        }
        if let Some(at) = crate::broker::index::ended(job) {
            self.ended.remove(&(at, job.id));
        }
    }

    /// Its session shows it, or a job that waits depends on it.
    fn is_referred_to(&self, id: JobId) -> bool {
        let session = self.jobs.get(&id).and_then(|job| job.session);
        let session = session.and_then(|session| self.sessions.get(&session));
        session.is_some_and(|session| session.job == Some(id))
            || (self.dependents.contains_key(&id) && !self.arrays.contains_key(&id))
    }

    /// Jobs that nodes speak of: one that is over must be told from one that nobody knows.
    fn named_by_nodes(&self) -> BTreeSet<JobId> {
        let observed = self.links.values().filter_map(|link| link.observed.as_deref());
        observed
            .flat_map(|one| &one.jobs)
            .map(|job| job.key.job)
            .collect()
    }
}
