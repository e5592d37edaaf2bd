//! A node spoke.

use std::sync::Arc;

use crate::broker::audit::job_subject;
use crate::broker::change::Change;
use crate::broker::desired::{held_on, host_principals, rank_on};
use crate::broker::{Broker, Effect, Reject, RejectKind, Reply};
use crate::model::audit::Action;
use crate::model::cpus::Binding;
use crate::model::ids::{Generation, Incarnation, JobId, JobKey, NodeName};
use crate::model::job::{Ending, Job, JobKind, JobState, Phase, Placed};
use crate::model::node::{EndCause, NodeRecord, Observed, ObservedJob, ObservedPhase};
use crate::model::time::Timestamp;
use crate::placement::Bytes;

/// Ids of jobs and sessions that a cluster may have given out since the backup that it goes on
/// from: some thousand a day.
const UNKNOWN_IDS: u64 = 1_000_000;

impl Broker {
    pub(super) fn on_observed(&mut self, now: Timestamp, observed: Arc<Observed>) -> Result<Reply, Reject> {
        let node = observed.node.clone();
        let record = Arc::clone(self.state.node_named(&node)?);
        self.must_be_new(&observed)?;
        self.catch_up(&observed);
        self.note_record(&record, &observed);
        let foreign = self.state.is_foreign(&observed);
        let link = self.state.links.get(&node);
        let last = link.and_then(|link| link.observed.clone());
        let former = link.filter(|link| link.connected);
        let undone = former.is_some_and(|link| link.undone);
        let former = former.and_then(|link| link.observed.as_ref());
        // What it holds for jobs that are not ours any more, or not yet, is not free.
        self.output.room |= undone || former.is_none_or(|former| former.jobs != observed.jobs);
        self.note_contact(now, &observed, false);
        if !foreign {
            for id in held_on(&self.state, &node) {
                self.keep_use(now, (&node, id), last.as_deref(), &observed);
                self.see_job(now, &node, id, &observed);
            }
            self.see_removals(&node);
            self.see_tombstones(&node, &observed);
            self.recognise(now, &observed);
            self.see_idle(now, &node);
        }
        Ok(Reply::Done)
    }

    pub(super) fn on_contact(&mut self, now: Timestamp, observed: &Arc<Observed>) -> Result<Reply, Reject> {
        self.state.node_named(&observed.node)?;
        self.must_be_new(observed)?;
        self.note_contact(now, observed, true);
        Ok(Reply::Done)
    }

    /// The node is there, and is answered: nothing of this is kept. `undone`: nothing else is done about it now.
    fn note_contact(&mut self, now: Timestamp, observed: &Arc<Observed>, undone: bool) {
        let foreign = self.state.is_foreign(observed);
        let lease = self.state.settings.lease;
        self.state.update_link(&observed.node, |link| {
            link.connected = true;
            link.last_contact = now;
            if !foreign {
                // The answer to this report renews the lease from when it was sent, which is not after now.
                link.lease_until = link.lease_until.max(now.after(lease));
            }
            link.observed = Some(Arc::clone(observed));
            link.undone = undone;
        });
        self.output
            .effects
            .insert(Effect::SendDesired(observed.node.clone()));
    }

    fn must_be_new(&self, observed: &Observed) -> Result<(), Reject> {
        if self.is_late(observed) {
            return Err(Reject::new(
                RejectKind::WrongState,
                format!("a late report of node {}", observed.node),
            ));
        }
        Ok(())
    }

    /// Overtaken by a later report of the same agent process. A new process
    /// counts from one again, on a new link: what came before is cut first.
    fn is_late(&self, observed: &Observed) -> bool {
        let link = self.state.links.get(&observed.node).filter(|link| link.connected);
        link.and_then(|link| link.observed.as_ref())
            .is_some_and(|last| last.boot_id == observed.boot_id && last.seq >= observed.seq)
    }

    /// A node that has accepted a later start than this one tells that our store
    /// is older than the cluster: go on after what it has seen. What ran before
    /// is unknown here, reported, and left alone; its ids are not used again.
    fn catch_up(&mut self, observed: &Observed) {
        let Some((cluster, seen)) = &observed.accepted else {
            return;
        };
        if *cluster != self.state.cluster.id {
            return;
        }
        let ours = self.state.cluster.incarnation;
        let overtaken = seen.number > ours.number || (seen.number == ours.number && seen.nonce != ours.nonce);
        let same_cluster = observed
            .jobs
            .iter()
            .filter(|job| job.cluster == self.state.cluster.id);
        let (jobs, sessions) = same_cluster.fold((0, 0), |(jobs, sessions), job| {
            (
                jobs.max(job.key.job.0 + 1),
                sessions.max(job.session.map_or(0, |id| id.0 + 1)),
            )
        });
        let record = &mut self.state.cluster;
        if overtaken {
            // What was given out since the backup, and is not reported because it has ended, is not known.
            record.next_job += UNKNOWN_IDS;
            record.next_session += UNKNOWN_IDS;
        }
        let ids_behind = jobs > record.next_job || sessions > record.next_session;
        record.next_job = record.next_job.max(jobs);
        record.next_session = record.next_session.max(sessions);
        if overtaken {
            record.incarnation = Incarnation {
                number: seen.number + 1,
                nonce: ours.nonce,
            };
            let before = Generation::before(record.incarnation);
            self.state.next_generation = self.state.next_generation.max(before);
            let nodes: Vec<NodeName> = self.state.links.keys().cloned().collect();
            for node in nodes {
                self.touch(&node);
            }
        }
        if overtaken || ids_behind {
            self.put_cluster();
        }
    }

    fn note_record(&mut self, record: &NodeRecord, observed: &Observed) {
        let unchanged = record.inventory == observed.inventory
            && record.boot_id == observed.boot_id
            && record.version == observed.version
            && record.images == observed.images;
        if !unchanged {
            self.output.room = true;
            if record.inventory.reach != observed.inventory.reach {
                self.tell_peers(&record.name);
            }
            self.put_node(NodeRecord {
                inventory: observed.inventory.clone(),
                boot_id: observed.boot_id.clone(),
                version: observed.version.clone(),
                images: observed.images.clone(),
                ..record.clone()
            });
        }
    }

    /// A node is reached in another way: those who have members of its gangs hear of it.
    fn tell_peers(&mut self, node: &NodeName) {
        for id in held_on(&self.state, node) {
            let Some(job) = self.state.jobs.get(&id).cloned() else {
                continue;
            };
            let Some(placed) = job.placed().filter(|placed| placed.ranks.len() > 1) else {
                continue;
            };
            for part in &placed.allocation.nodes {
                self.touch_job(&part.node, id);
            }
        }
    }

    /// Compares one job of a node with what the node says of it.
    fn see_job(&mut self, now: Timestamp, node: &NodeName, id: JobId, observed: &Observed) {
        let Some(job) = self.state.jobs.get(&id).cloned() else {
            return;
        };
        let Some(placed) = job.placed() else { return };
        let Some(rank) = rank_on(placed, node) else { return };
        let key = JobKey {
            job: id,
            generation: placed.generation,
        };
        let ours = |seen: &&ObservedJob| seen.key == key && seen.cluster == self.state.cluster.id;
        let seen = observed.jobs.iter().find(ours);
        if let Some(seen) = seen {
            let had = match seen.cause {
                Some(EndCause::OutOfMemory) => MemoryHad {
                    limit: placed.allocation.nodes[rank].memory_bytes,
                    peak: self
                        .state
                        .host_use(&job)
                        .get(rank)
                        .map_or(0, |host| host.peak_bytes),
                },
                // Not asked for.
                Some(_) | None => MemoryHad::default(),
            };
            self.see_rank(now, &job, placed, rank, seen);
            if seen.cause == Some(EndCause::Exited) && seen.exit_code == Some(0) {
                // It came to its end by itself, before it heard that it was to go: it need not run again.
                self.forget_requeue(id, &ending(EndCause::Exited, seen, (node, job.kind), &had));
            }
            if let Some(cause) = seen.cause {
                let ending = ending(cause, seen, (node, job.kind), &had);
                self.note_failure(now, &job, rank, &ending);
                self.end_job(now, id, ending);
            }
            if seen.phase == ObservedPhase::Released {
                // A node does not release what it was not told to end without saying why.
                self.end_job(now, id, ending(EndCause::Exited, seen, (node, job.kind), &had));
                self.release(now, id, node);
            }
            return;
        }
        // The node has acted on a desired state that holds this job as it stands
        // now, and has nothing of it: it is gone there.
        let applied = self.state.links.get(node).is_some_and(|link| {
            link.has_applied(&self.state.cluster, link.since.get(&id).copied().unwrap_or(1))
        });
        if applied {
            let ending = Ending {
                state: JobState::NodeFail,
                reason: format!("node {node} no longer has it"),
                exit_code: None,
            };
            self.note_failure(now, &job, rank, &ending);
            self.end_job(now, id, ending);
            self.release(now, id, node);
        }
    }

    fn see_rank(&mut self, now: Timestamp, job: &Job, placed: &Placed, rank: usize, seen: &ObservedJob) {
        let mut status = placed.ranks[rank].clone();
        // Ready is for good: what comes after it is an end.
        if seen.phase == ObservedPhase::Ready && !status.ready {
            status.ready = true;
            status.ready_at = Some(now);
        }
        if !seen.host_key.is_empty() {
            status.host_key.clone_from(&seen.host_key);
        }
        status.containment.fence = seen.containment.fence.or(status.containment.fence);
        status.containment.oom_kills = seen.containment.oom_kills.max(status.containment.oom_kills);
        if seen.binding != Binding::default() {
            status.binding.clone_from(&seen.binding);
        }
        if status == placed.ranks[rank] {
            return;
        }
        if status.host_key != placed.ranks[rank].host_key {
            let detail = host_principals(&self.state, job, rank).join(" ");
            let owner = Some(job.owner.clone());
            self.audit_own(owner, Action::HostCertificate, job_subject(job), detail);
        }
        let mut placed = placed.clone();
        placed.ranks[rank] = status;
        let nodes: Vec<_> = placed
            .allocation
            .nodes
            .iter()
            .map(|part| part.node.clone())
            .collect();
        self.put_job(job.with_placed(placed));
        for node in nodes {
            self.touch_job(&node, job.id);
        }
    }

    /// Kept changes that the node has deleted.
    fn see_removals(&mut self, node: &NodeName) {
        let waiting: Vec<_> = self
            .state
            .removals
            .keys()
            .filter(|(on, _)| on == node)
            .map(|(_, session)| *session)
            .collect();
        for session in waiting {
            let done = self.state.links.get(node).is_some_and(|link| {
                let since = link.removals_since.get(&session).copied().unwrap_or(1);
                link.has_applied(&self.state.cluster, since)
            });
            if done {
                self.state.removals.remove(&(node.clone(), session));
                self.state.update_link(node, |link| {
                    link.removals_since.remove(&session);
                });
                self.record(Change::DeleteRemoval(node.clone(), session));
                self.touch(node);
            }
        }
    }

    /// Found jobs that were to end, and are gone.
    fn see_tombstones(&mut self, node: &NodeName, observed: &Observed) {
        let wanted: Vec<JobKey> = self
            .state
            .tombstones_on(node)
            .filter(|key| {
                let mut seen = observed.jobs.iter();
                !seen.any(|job| job.key == *key && job.phase != ObservedPhase::Released)
            })
            .collect();
        for key in wanted {
            self.state.tombstones.remove(&(node.clone(), key));
            self.record(Change::DeleteTombstone(node.clone(), key));
            self.touch(node);
        }
    }

    /// A job that waits here and runs there has been started after the backup that we go on from:
    /// it is the same one.
    fn recognise(&mut self, now: Timestamp, observed: &Observed) {
        let running: Vec<JobKey> = observed
            .jobs
            .iter()
            .filter(|seen| seen.cluster == self.state.cluster.id)
            .filter(|seen| {
                let job = self.state.jobs.get(&seen.key.job);
                job.is_some_and(|job| matches!(job.phase, Phase::Pending) && !job.had(seen.key.generation))
            })
            .map(|seen| seen.key)
            .collect();
        for key in running {
            // What cannot be taken over is shown as found.
            self.adopt_job(now, key).ok();
        }
    }

    pub(super) fn on_disconnected(&mut self, node: &NodeName) -> Result<Reply, Reject> {
        self.state.node_named(node)?;
        self.state.update_link(node, |link| link.connected = false);
        self.output.room = true;
        Ok(Reply::Done)
    }
}

/// Memory that a job had on a node, bytes.
#[derive(Default)]
struct MemoryHad {
    /// What it may have; 0: not known.
    limit: u64,
    /// The most that it had; 0: not measured.
    peak: u64,
}

impl MemoryHad {
    /// "; its peak was 15.9 GiB of 16 GiB"; empty: it is not known.
    fn in_words(&self) -> String {
        match (self.peak, self.limit) {
            (_, 0) => String::new(),
            (0, limit) => format!("; its limit was {}", Bytes(limit)),
            (peak, limit) => format!("; its peak was {} of {}", Bytes(peak), Bytes(limit)),
        }
    }
}

/// The end that a node reports.
fn ending(
    cause: EndCause,
    seen: &ObservedJob,
    (node, kind): (&NodeName, JobKind),
    had: &MemoryHad,
) -> Ending {
    let what = match (kind, seen.exit_code) {
        // The command is on the first node alone.
        (JobKind::Batch, Some(code)) if seen.rank > 0 => format!("its container ended with exit code {code}"),
        (JobKind::Batch, None) if seen.rank > 0 => "its container ended".to_owned(),
        (JobKind::Interactive, _) => "its container ended".to_owned(),
        (JobKind::Batch, Some(0) | None) => "its command ended".to_owned(),
        (JobKind::Batch, Some(code)) => format!("its command ended with exit code {code}"),
    };
    let (state, what) = match cause {
        EndCause::StartFailed => (JobState::Failed, "could not be started"),
        EndCause::Exited if seen.exit_code == Some(0) => (JobState::Completed, &*what),
        EndCause::Exited => (JobState::Failed, &*what),
        EndCause::OutOfMemory => (
            JobState::OutOfMemory,
            "ran out of memory and was ended by the kernel",
        ),
        EndCause::Deadline => (JobState::Timeout, "reached its time limit"),
        EndCause::Lease => (
            JobState::NodeFail,
            "its node lost contact for longer than the lease",
        ),
        EndCause::Tombstone => (JobState::Cancelled, "was ended"),
        EndCause::NodeRestarted => (JobState::NodeFail, "its node restarted"),
    };
    let detail = if seen.detail.is_empty() {
        String::new()
    } else {
        format!(": {}", seen.detail)
    };
    let memory = match cause {
        EndCause::OutOfMemory => had.in_words(),
        EndCause::StartFailed
        | EndCause::Exited
        | EndCause::Deadline
        | EndCause::Lease
        | EndCause::Tombstone
        | EndCause::NodeRestarted => String::new(),
    };
    Ending {
        state,
        reason: format!("{what} (node {node}{memory}){detail}"),
        exit_code: seen.exit_code,
    }
}
