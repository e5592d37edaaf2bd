//! One scheduling pass: gives free resources to pending jobs.

use super::audit::{job_subject, units};
use super::state::State;
use super::{Broker, Reject, RejectKind};
use crate::model::audit::Action;
use crate::model::gpu::GpuInfo;
use crate::model::gpu_unit::Slice;
use crate::model::ids::{GpuUuid, JobId, NodeName, SessionId};
use crate::model::job::{Job, Phase, Placed, RankStatus};
use crate::model::node::ObservedJob;
use crate::model::resources::Allocation;
use crate::model::session::SessionSpec;
use crate::model::time::Timestamp;
use crate::placement::{
    Assume, Cut, MAX_GPUS, MigLayout, MigRoom, Needs, PartRoom, Room, WhyNot, fits, left_of_shares, place,
};
use crate::queue;

impl Broker {
    /// Looks at the pending jobs in order and starts those that fit.
    ///
    /// A job that could run on what the reachable nodes have, were it free, is
    /// not overtaken: the pass ends with it. One that waits for something else
    /// (a node to come back, its own former run) lets others pass.
    pub(super) fn schedule(&mut self, now: Timestamp) {
        self.state.blocked_by = None;
        let waiting: Vec<JobId> = queue::order(&self.state).collect();
        for id in waiting {
            if !self.consider(now, id) {
                self.state.blocked_by = Some(id);
                return;
            }
        }
    }

    /// Looks at a job that has just been queued, when nothing else has changed:
    /// those before it were looked at, and have what they can have.
    pub(super) fn schedule_new(&mut self, now: Timestamp, id: JobId) {
        if self.state.blocked_by.is_none() && !self.consider(now, id) {
            self.state.blocked_by = Some(id);
        }
    }

    /// Starts a pending job if it fits. Whether those behind it may be looked at.
    fn consider(&mut self, now: Timestamp, id: JobId) -> bool {
        let Some(job) = self.state.jobs.get(&id).cloned() else {
            return true;
        };
        if let Some(former) = self.waits_for(&job) {
            let reason = format!("Dependency: the session's former run, job {former}, is still ending");
            self.set_reason(&job, reason);
            return true;
        }
        let kept = job
            .session
            .map(|session| self.kept_on(session))
            .unwrap_or_default();
        let asked = self.state.asked_now(&job);
        let needs = Needs {
            request: &asked,
            root: self.state.wants_root(&job),
        };
        let why = match find_place(&self.state, needs, &kept) {
            Ok(allocation) => {
                self.give(now, &job, allocation);
                return true;
            }
            Err(why) => why,
        };
        if let Some(less) = holds_out(&self.state, &job, needs) {
            // It could start, and waits by its own wish: nobody need wait behind it.
            let reason = format!("Resources: {}; {less}", summary(&why));
            self.set_reason(&job, reason);
            return true;
        }
        let blocks = fits_when_free(&self.state, needs);
        let word = if blocks { "Resources" } else { "ReqNodeNotAvail" };
        self.set_reason(&job, format!("{word}: {}", summary(&why)));
        !blocks
    }

    /// The job's predecessor, as long as that holds something.
    fn waits_for(&self, job: &Job) -> Option<JobId> {
        job.after.filter(|former| {
            self.state
                .jobs
                .get(former)
                .is_some_and(|job| !job.state().is_final())
        })
    }

    fn kept_on(&self, session: SessionId) -> Vec<NodeName> {
        self.state
            .sessions
            .get(&session)
            .map(|session| session.kept_on.clone())
            .unwrap_or_default()
    }

    fn set_reason(&mut self, job: &Job, reason: String) {
        let unchanged = matches!(&job.phase, Phase::Pending { reason: old } if *old == reason);
        if !unchanged {
            // Reasons are found anew by each pass: they are not worth a write to the store.
            let job = Job {
                phase: Phase::Pending { reason },
                ..job.clone()
            };
            self.state.insert_job(std::sync::Arc::new(job));
        }
    }

    fn give(&mut self, now: Timestamp, job: &Job, allocation: Allocation) {
        self.state.next_generation = self.state.next_generation.next();
        let nodes: Vec<NodeName> = allocation.nodes.iter().map(|part| part.node.clone()).collect();
        let placed = Placed {
            generation: self.state.next_generation,
            ranks: vec![RankStatus::default(); nodes.len()],
            allocation,
            started: now,
            deadline: now.after(job.time_limit),
            ending: None,
        };
        let detail = units(&placed);
        self.audit_own(
            Some(job.owner.clone()),
            Action::JobStart,
            job_subject(job),
            detail,
        );
        self.put_job(Job {
            phase: Phase::Placed(placed),
            ..job.clone()
        });
        if let Some(session) = job.session.and_then(|id| self.state.sessions.get(&id)).cloned() {
            let mut session = (*session).clone();
            let new: Vec<_> = nodes
                .iter()
                .filter(|node| !session.kept_on.contains(node))
                .cloned()
                .collect();
            if !new.is_empty() {
                session.kept_on.extend(new);
                self.put_session(session);
            }
        }
        for node in &nodes {
            self.touch_job(node, job.id);
        }
    }

    /// A job's place in a node's desired state changed.
    pub(super) fn touch_job(&mut self, node: &NodeName, job: JobId) {
        self.touch(node);
        self.state.update_link(node, |link| {
            link.since.insert(job, link.generation);
        });
    }
}

/// What a job that could start on what is free still waits for, by its own wish; none: it could not, or does not.
pub(super) fn holds_out(state: &State, job: &Job, now: Needs<'_>) -> Option<String> {
    let least = job.request.at_last();
    if *least == *now.request {
        return None;
    }
    let needs = Needs {
        request: &least,
        ..now
    };
    fits(&state.hosts, needs, Assume::Now).then(|| {
        let nvlink = now.request.nvlink && !least.nvlink;
        let wish = if nvlink {
            "GPUs joined by NVLink"
        } else {
            "nodes on fewer switches"
        };
        let longest = job.request.relaxes_after().last().unwrap_or_default();
        format!(
            "it could start now, and holds out for {wish} for {} at most",
            minutes(longest)
        )
    })
}

fn minutes(time: std::time::Duration) -> String {
    match (time.as_secs() / 60, time.as_secs() % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

/// A place for a request on what is free: where its session's changes are kept, if that fits.
pub(super) fn find_place(
    state: &State,
    needs: Needs<'_>,
    kept_on: &[NodeName],
) -> Result<Allocation, WhyNot> {
    let kept = state.hosts.only(kept_on);
    let there = needs.request.all_nodes() == 1 && fits(&kept, needs, Assume::Now);
    let parts = place(if there { &kept } else { &state.hosts }, needs, Assume::Now)?;
    let held = parts.iter().filter_map(|part| {
        let node = state.nodes.get(&part.node)?;
        Some(part.allocation(&node.inventory, needs.request))
    });
    Ok(Allocation {
        nodes: held.collect(),
    })
}

/// The request fits on the nodes that are reachable and in service, were all of them free.
pub(super) fn fits_when_free(state: &State, needs: Needs<'_>) -> bool {
    fits(&state.hosts, needs, Assume::Emptied)
}

/// One sentence for people.
pub(super) fn summary(why: &WhyNot) -> String {
    match &why.nearest {
        Some(nearest) => format!("{}; nearest now: {nearest}", list(&why.refusals)),
        None => list(&why.refusals),
    }
}

fn list(refusals: &[(crate::placement::Refusal, u32)]) -> String {
    let parts: Vec<String> = refusals
        .iter()
        .map(|(refusal, hosts)| {
            format!(
                "{refusal} on {hosts} {}",
                if *hosts == 1 { "node" } else { "nodes" }
            )
        })
        .collect();
    if parts.is_empty() {
        "no node is there".to_owned()
    } else {
        parts.join(", ")
    }
}

/// What may be given away of a GPU that is in MIG mode, or of which such units are held; none: nothing.
fn part_room(gpu: &GpuInfo, held: &[&Slice]) -> Option<PartRoom> {
    let Some(mig) = &gpu.mig else {
        let left = left_of_shares(held.iter().copied(), gpu.sharing)?;
        return Some(PartRoom::Shared(left));
    };
    let layout = MigLayout::of(gpu)?;
    // Whatever is no slice of it as it is now has been given before it became so, and holds all of it.
    let cut = |slice: &&Slice| match slice {
        Slice::Mig { profile, start, .. } => layout.cut(profile, *start),
        Slice::Whole | Slice::Share { .. } => None,
    };
    let mut held: Vec<Cut> = held.iter().map(cut).collect::<Option<_>>()?;
    held.sort_unstable();
    let there = mig.instances.iter();
    let there = there.filter_map(|instance| layout.cut(&instance.profile, instance.start));
    let mut idle: Vec<Cut> = there.filter(|cut| !held.contains(cut)).collect();
    idle.sort_unstable();
    Some(PartRoom::Mig(MigRoom { held, idle }))
}

impl State {
    /// Refuses a request that no set of this cluster's nodes could ever hold.
    pub(super) fn must_be_possible(&self, spec: &SessionSpec) -> Result<(), Reject> {
        let needs = Needs {
            request: &spec.request.at_last(),
            root: spec.container.root,
        };
        match place(&self.hosts, needs, Assume::Whole) {
            Ok(_) => Ok(()),
            Err(why) => {
                let hint = match why.nearest {
                    Some(nearest) => format!("the nearest that this cluster has: {nearest}"),
                    None => "`carrel nodes` lists what this cluster has".to_owned(),
                };
                let message = if self.nodes.is_empty() {
                    "this cluster has no nodes yet".to_owned()
                } else {
                    format!("this cluster can never hold that: {}", list(&why.refusals))
                };
                Err(Reject::new(RejectKind::Invalid, message).hint(hint))
            }
        }
    }

    /// What of a node may be given away; none: there is no such node.
    pub fn room(&self, name: &NodeName) -> Option<Room> {
        let inventory = &self.nodes.get(name)?.inventory;
        let usage = self.usage.get(name);
        let strangers: Vec<&ObservedJob> = self.strangers(name).collect();
        let held = |gpu: &GpuUuid| -> Vec<&Slice> {
            let ours = usage.and_then(|usage| usage.gpus.get(gpu)).into_iter().flatten();
            let theirs = strangers.iter().flat_map(|stranger| &stranger.gpus);
            let theirs = theirs.filter(|unit| unit.gpu == *gpu).map(|unit| &unit.slice);
            ours.map(|(_, slice)| slice).chain(theirs).collect()
        };
        let (mut gpus, mut parts) = (0, Vec::new());
        for (position, gpu) in inventory.gpus.iter().take(MAX_GPUS).enumerate() {
            let held = held(&gpu.uuid);
            if gpu.mig.is_none() && held.is_empty() {
                gpus |= 1 << position;
            } else if let Some(room) = part_room(gpu, &held) {
                parts.push((position as u8, room));
            }
        }
        let cpus = usage.map_or(0, |usage| usage.cpus)
            + strangers
                .iter()
                .map(|stranger| u64::from(stranger.cpus))
                .sum::<u64>();
        let memory = strangers
            .iter()
            .fold(usage.map_or(0, |usage| usage.memory), |sum, stranger| {
                sum.saturating_add(stranger.memory_bytes)
            });
        Some(Room {
            gpus,
            parts: parts.into(),
            cpus: u64::from(inventory.cpus).saturating_sub(cpus) as u32,
            memory_bytes: inventory.memory_bytes.saturating_sub(memory),
            unavailable: self.unavailable(name),
        })
    }

    /// Why a node gets no new jobs, after "node is"; none: it does.
    pub fn unavailable(&self, name: &NodeName) -> Option<String> {
        if let Some(reason) = self.nodes.get(name).and_then(|node| node.drained.as_ref()) {
            return Some(format!("drained ({reason})"));
        }
        if self.nodes.get(name).is_some_and(|node| node.found.is_some()) {
            return Some(format!(
                "found, not joined: an operator adopts it with `carrel node adopt {name}`"
            ));
        }
        let Some(link) = self.links.get(name) else {
            return Some("down".to_owned());
        };
        let Some(observed) = link.observed.as_ref().filter(|_| link.connected) else {
            return Some("down".to_owned());
        };
        match &observed.accepted {
            Some((cluster, _)) if *cluster != self.cluster.id => {
                Some(format!("another cluster's ({cluster})"))
            }
            _ => None,
        }
    }
}
