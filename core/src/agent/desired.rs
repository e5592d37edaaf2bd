//! The broker spoke.

use std::collections::BTreeMap;

use super::entry::{Entry, Phase};
use super::{Action, Agent, Holding, MAX_FENCES, Now, Removal};
use crate::model::cpus::Binding;
use crate::model::ids::JobKey;
use crate::model::node::{Desired, DesiredJob, EndCause, Tombstone};

impl Agent {
    pub(super) fn on_desired(&mut self, now: Now, desired: Desired) {
        // An answer to a report of an agent before this one is not for us.
        let ours = self.first_seq < desired.renews && desired.renews <= self.seq;
        if !self.adopted || !ours {
            return;
        }
        if desired.cluster != self.myself.cluster {
            // A broker with an empty or foreign store, under the authority that we trust. Its wishes are not
            // ours to fulfil, and it ends nobody's work: not by answering in our own broker's place either.
            self.renew_lease(&desired);
            return;
        }
        if let Some(accepted) = self.accepted {
            let same = desired.incarnation == accepted;
            if !same && desired.incarnation.number <= accepted.number {
                // An overtaken start of the broker: whoever overtook it does not hear from us now, and counts our lease.
                return;
            }
            if same && desired.generation < self.newest {
                self.renew_lease(&desired);
                return;
            }
        }
        if self.accepted != Some(desired.incarnation) {
            self.accepted = Some(desired.incarnation);
            self.newest = 0;
            self.applied = 0;
            self.changed();
        }
        self.newest = desired.generation;
        self.thresholds = desired.thresholds;
        self.renew_lease(&desired);
        for tombstone in &desired.tombstones {
            self.bury(now, *tombstone);
        }
        self.forget(now, &desired);
        for job in &desired.jobs {
            self.want(now, job);
        }
        self.note_removals(&desired);
    }

    /// The lease counts from when the answered report was sent. A later answer may also shorten it.
    fn renew_lease(&mut self, desired: &Desired) {
        let Some(sent) = self.sent.get(&desired.renews).copied() else {
            return;
        };
        if desired.renews < self.lease.renewed {
            return;
        }
        self.sent = self.sent.split_off(&desired.renews);
        let end = Some(sent.saturating_add(desired.lease_ms));
        self.lease.renewed = desired.renews;
        if self.lease.end != end {
            self.lease.end = end;
            // Worth nothing after a crash of the node: boot milliseconds begin anew.
            self.persist(false);
            let live = self
                .entries
                .iter()
                .filter(|(_, entry)| matches!(entry.phase, Phase::Starting | Phase::Ready));
            let live: Vec<JobKey> = live.map(|(key, _)| *key).collect();
            for key in live {
                self.configure(key);
            }
        }
    }

    /// Once for each handled input.
    pub(super) fn configure(&mut self, key: JobKey) {
        let action = Action::Configure(key);
        if !self.out.actions.contains(&action) {
            self.act(action);
        }
    }

    fn bury(&mut self, now: Now, tombstone: Tombstone) {
        let key = tombstone.key;
        self.fence(key);
        let ours = self
            .entries
            .get(&key)
            .is_some_and(|entry| entry.holding.cluster == self.myself.cluster);
        if ours {
            self.stop(now, key, EndCause::Tombstone, tombstone.grace_ms, "");
        }
    }

    /// This allocation is not started from now on.
    pub(super) fn fence(&mut self, key: JobKey) {
        if !self.fences.insert((key.generation, key.job)) {
            return;
        }
        self.persist(true);
        if self.fences.len() > MAX_FENCES {
            self.fences.pop_first();
        }
    }

    pub(super) fn is_fenced(&self, key: JobKey) -> bool {
        self.fences.contains(&(key.generation, key.job))
    }

    /// Drops what the broker no longer mentions, of which nothing runs.
    fn forget(&mut self, now: Now, desired: &Desired) {
        let wanted = |key: JobKey| desired.jobs.iter().any(|job| job.key == key);
        let buried = |key: JobKey| desired.tombstones.iter().any(|stone| stone.key == key);
        let keys: Vec<JobKey> = self
            .entries
            .keys()
            .copied()
            .filter(|key| !wanted(*key) && !buried(*key))
            .collect();
        for key in keys {
            match self.entries[&key].phase {
                Phase::Released => {
                    self.entries.remove(&key);
                    self.changed();
                }
                Phase::Waiting => {
                    self.entries.remove(&key);
                    self.out.report = true;
                }
                Phase::Held { .. } => {
                    let why = "its start was cut off, and it is no longer wanted";
                    self.remove(now, key, EndCause::StartFailed, why);
                }
                // Absence never kills.
                Phase::Starting | Phase::Ready | Phase::Stopping { .. } | Phase::Removing { .. } => {}
            }
        }
    }

    fn want(&mut self, now: Now, job: &DesiredJob) {
        let key = job.key;
        let cluster = self.myself.cluster.clone();
        if let Some(entry) = self.entries.get_mut(&key) {
            if entry.holding.cluster != cluster || !entry.phase.lives() {
                return;
            }
            let moved = entry.holding.deadline != job.deadline;
            entry.holding.deadline = job.deadline;
            entry.job = Some(job.clone());
            let runs = matches!(entry.phase, Phase::Starting | Phase::Ready);
            if moved {
                self.changed();
            }
            if runs {
                // Also for what the core does not see: keys and certificates.
                self.configure(key);
            }
            return;
        }
        // What was ready and is not here any more is lost; the broker learns it from the next report.
        if self.is_fenced(key) || job.ready {
            return;
        }
        let holding = Holding {
            session: job.session,
            name: job.name.clone(),
            user: Some(job.owner.clone()),
            cluster,
            gpus: job.gpus.clone(),
            cpus: job.cpus,
            memory_bytes: job.memory_bytes,
            deadline: job.deadline,
            rank: job.rank,
            nodes: u32::try_from(job.peers.len().max(1)).unwrap_or(u32::MAX),
            started: now.wall,
            image: job.image.clone(),
            binding: Binding::default(),
            network: job.network(),
            places: BTreeMap::new(),
        };
        let mut entry = Entry::new(holding, Phase::Waiting);
        entry.job = Some(job.clone());
        self.entries.insert(key, entry);
        self.out.report = true;
    }

    fn note_removals(&mut self, desired: &Desired) {
        self.removals.retain(|session, removal| {
            *removal == Removal::Running || desired.removed_sessions.contains(session)
        });
        for session in &desired.removed_sessions {
            self.removals.entry(*session).or_insert(Removal::Due(0));
        }
    }
}
