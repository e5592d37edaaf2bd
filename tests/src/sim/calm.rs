//! The end of a world: nothing goes wrong any more, what waits gets its turn, and everything comes to rest.

use carrel_core::broker::{Input, SessionRef};
use carrel_core::model::job::{JobKind, JobState};

use super::grants::Site;
use super::world::{BEGIN, World, caller};

/// How long a world has to come to rest once nothing goes wrong any more, milliseconds: two leases, the longest time
/// limit, and everybody's turn.
const REST: u64 = 120 * 60_000;
/// Between two looks at what is left, milliseconds.
const LOOK: u64 = 30_000;

impl World {
    pub(super) fn rest_by(&self) -> u64 {
        self.broker_back.max(BEGIN) + REST
    }

    /// From here on nothing goes wrong.
    pub(super) fn calm_down(&mut self) {
        self.note("nothing goes wrong any more");
        self.faults = false;
        self.network.calm = true;
        self.network.cuts.clear();
        self.store.full_until = 0;
        self.tick_after = 0;
        self.put_own_store_back();
        self.broker_back = self.now;
        for node in self.nodes.values_mut() {
            if !node.is_up() {
                node.down_until = Some(self.now);
            }
            if node.asleep_until.is_some() {
                node.asleep_until = Some(self.now);
            }
        }
        self.next_event = self.now + LOOK;
    }

    /// Operators and users clear up: whoever has what they waited for gives it back. Once nothing is held any more,
    /// whatever still waits must wait for something that is not there, and is given up.
    pub(super) fn clear_up(&mut self) -> Result<(), String> {
        self.next_event = self.now + LOOK;
        self.operate();
        self.take_all_back();
        if self.held().is_empty() {
            self.judge_left()?;
            self.stop_sessions(true);
            self.cancel_jobs(true);
        } else {
            self.stop_sessions(false);
            self.cancel_jobs(false);
        }
        Ok(())
    }

    pub(super) fn site(&self) -> Option<Site> {
        let state = self.broker.as_ref()?.state();
        Some(Site::new(state, &self.nodes, &self.wires))
    }

    fn judge_left(&mut self) -> Result<(), String> {
        let (Some(site), Some(broker)) = (self.site(), &self.broker) else {
            return Ok(());
        };
        let jobs = broker.state().jobs.values();
        // Those that wait for a reservation wait in vain.
        let jobs = jobs.filter(|job| job.terms.reservation.is_none());
        for job in jobs.filter(|job| job.state() == JobState::Pending) {
            self.counts.add("waits for what is not there");
            if site.can_hold(&job.request.at_last(), None) {
                return Err(format!(
                    "job {} is left waiting, though nothing is held: {:?}",
                    job.id, job.request
                ));
            }
        }
        Ok(())
    }

    /// Stops the sessions that have a job that holds something; with `waiting`, the others too.
    fn stop_sessions(&mut self, waiting: bool) {
        let Some(broker) = &self.broker else { return };
        let state = broker.state();
        let pending = |job| {
            let job = state.jobs.get(&job);
            job.is_some_and(|job| job.state() == JobState::Pending)
        };
        let sessions = state.sessions.values();
        let sessions = sessions.filter(|session| waiting || !session.job.is_some_and(pending));
        let sessions: Vec<_> = sessions.map(|s| (s.id, s.owner.to_string())).collect();
        for (id, owner) in sessions {
            self.wish_end(id);
            self.input(Input::StopSession(caller(&owner), SessionRef::Id(id), None));
        }
    }

    /// Cancels the batch jobs that hold something; with `waiting`, the others too.
    fn cancel_jobs(&mut self, waiting: bool) {
        let Some(broker) = &self.broker else { return };
        let jobs = broker
            .state()
            .jobs
            .values()
            .filter(|job| job.kind == JobKind::Batch);
        let live = jobs.filter(|job| !job.state().is_final());
        let live = live.filter(|job| waiting || job.state() != JobState::Pending);
        let live: Vec<_> = live
            .map(|job| (job.id, job.owner.to_string(), job.key()))
            .collect();
        for (id, owner, key) in live {
            self.wished.extend(key);
            self.input(Input::CancelJob(caller(&owner), id.into()));
        }
    }

    /// Every job is over, nothing runs, nothing is held.
    pub(super) fn at_rest(&self) -> bool {
        self.restless().is_empty()
    }

    pub(super) fn restless(&self) -> String {
        let mut what = self.held();
        let jobs = self.broker.iter().flat_map(|broker| broker.state().jobs.values());
        for job in jobs.filter(|job| job.state() == JobState::Pending) {
            what.push(format!("job {} is PENDING", job.id));
        }
        what.join(", ")
    }

    /// What runs, is held, or is being ended.
    fn held(&self) -> Vec<String> {
        let Some(broker) = &self.broker else {
            return vec!["the broker is down".to_owned()];
        };
        let state = broker.state();
        let mut what: Vec<String> = Vec::new();
        for job in state.jobs.values() {
            if !job.state().is_final() && job.state() != JobState::Pending {
                what.push(format!("job {} is {}", job.id, job.state().name()));
            }
        }
        for node in self.nodes.values() {
            what.extend(
                node.containers
                    .keys()
                    .map(|key| format!("{} still has {key}", node.name)),
            );
            if let Some(usage) = state.usage.get(&node.name)
                && (usage.cpus > 0 || !usage.units.is_empty())
            {
                what.push(format!("something of {} is held", node.name));
            }
            match state.nodes.get(&node.name) {
                None => what.push(format!("{}: not known", node.name)),
                Some(record) => {
                    let why = state.unavailable(record);
                    what.extend(why.map(|why| format!("{}: {why}", node.name)));
                }
            }
            if state.strangers(&node.name).next().is_some() {
                what.push(format!("{} reports a job that is over", node.name));
            }
        }
        what.extend(
            state
                .removals
                .keys()
                .map(|(node, session)| format!("{node} keeps session {session}")),
        );
        what.extend(
            state
                .tombstones
                .iter()
                .map(|(node, key)| format!("{key} is to end on {node}")),
        );
        what
    }
}
