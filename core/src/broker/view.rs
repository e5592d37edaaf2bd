//! What readers want to know of a state.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::avoid;
use super::forecast::start_of;
use super::found::found_on;
use super::index::Aside;
use super::schedule::{find_place, fits_when_free, holds_out, summary};
use super::state::State;
use super::usage::NodeUsage;
use crate::model::cpus::Binding;
use crate::model::gpu::Inventory;
use crate::model::gpu_unit::Slice;
use crate::model::ids::{GpuUuid, JobId, NodeName};
use crate::model::job::{Hold, Job, JobState, Phase, Placed, RankStatus};
use crate::model::node::ObservedJob;
use crate::model::resources::{Allocation, NodeAllocation};
use crate::model::session::{Session, SessionState};
use crate::model::time::Timestamp;
use crate::placement::{Refusal, Seat, seat};
use crate::queue::Wait;

/// The state of a session: that of its live job.
pub fn session_state(state: &State, session: &Session) -> SessionState {
    let Some(job) = state.live_job(session) else {
        return SessionState::Stopped;
    };
    match job.state() {
        JobState::Pending => SessionState::Pending,
        JobState::Configuring => SessionState::Starting,
        JobState::Running => SessionState::Running,
        JobState::Completing => SessionState::Stopping,
        JobState::Suspended => SessionState::Parked,
        JobState::Completed
        | JobState::Failed
        | JobState::Cancelled
        | JobState::Timeout
        | JobState::Preempted
        | JobState::NodeFail
        | JobState::OutOfMemory => SessionState::Stopped,
    }
}

/// Why a job is in its state, for people; empty: nothing to say.
pub fn state_reason(state: &State, job: &Job) -> String {
    match &job.phase {
        Phase::Pending => pending_reason(state, job),
        Phase::Ended { ending, .. } => ending.reason.clone(),
        Phase::Placed(placed) => {
            let detail = |open: fn(&RankStatus) -> bool| {
                let mut ranks = (0..placed.ranks.len()).filter(|rank| open(&placed.ranks[*rank]));
                ranks.find_map(|rank| rank_detail(state, job, rank))
            };
            match &placed.ending {
                None => {
                    // What a node says of a job that runs is something that its user should know.
                    let told = || (0..placed.ranks.len()).find_map(|rank| told(state, job, rank));
                    let said = detail(|rank| !rank.ready).or_else(told);
                    let all: Vec<String> = said.into_iter().chain(gpus_gone(state, placed)).collect();
                    all.join("; ")
                }
                Some(ending) => match detail(|rank| !rank.released) {
                    Some(why) if !repeats(&ending.reason, &why) => {
                        format!("{}; not released yet: {why}", ending.reason)
                    }
                    Some(_) | None => ending.reason.clone(),
                },
            }
        }
    }
}

/// GPUs of a job that their nodes do not list any more, in words; none: all are there.
fn gpus_gone(state: &State, placed: &Placed) -> Option<String> {
    let gone = placed.unreleased().flat_map(|part| {
        let node = state.nodes.get(&part.node);
        let gone = part.gpus.iter().filter(move |unit| {
            node.is_some_and(|node| node.inventory.gpus.iter().all(|gpu| gpu.uuid != unit.gpu))
        });
        gone.map(move |unit| (&part.node, &unit.gpu))
    });
    let gone: BTreeSet<_> = gone.collect();
    let (first, more) = (gone.first()?, gone.len() - 1);
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {more} more")
    };
    Some(format!(
        "node {} does not list its {}{more} any more",
        first.0, first.1
    ))
}

impl State {
    /// Why a pending job that may start waits; none: nobody has looked.
    pub(super) fn wait_of(&self, job: &Job) -> Option<Cow<'_, Wait>> {
        let line = self.pending.line(self.pending.line_of(job.id)?)?;
        let limit = self.kept_by_limit(job, self.ticked);
        let limit = limit.map(|reached| Cow::Owned(Wait::Limit(Box::new(reached))));
        limit.or_else(|| line.why.as_ref().map(Cow::Borrowed))
    }
}

/// Why a job waits, Slurm's word first.
fn pending_reason(state: &State, job: &Job) -> String {
    match state.aside(job) {
        Some(Aside::Held(Hold::User)) => return "JobHeldUser: its owner holds it".to_owned(),
        Some(Aside::Held(Hold::Operator)) => return "JobHeldAdmin: an operator holds it".to_owned(),
        Some(Aside::Begin(_)) => return "BeginTime: it was asked to begin later".to_owned(),
        Some(Aside::Reservation(name, begins)) => {
            return format!("Reservation: reservation {name} begins at {}", begins.utc());
        }
        Some(Aside::NoReservation(name)) => {
            return format!(
                "ReservationDeleted: reservation {name} is over or was taken back: stop this and ask anew"
            );
        }
        Some(Aside::NotFor(name)) => {
            return format!(
                "ReservationInvalid: reservation {name} is no longer for {} on account {}",
                job.owner, job.terms.account
            );
        }
        Some(Aside::Throttle(running)) => {
            return format!("JobArrayTaskLimit: {running} tasks of the array run, and no more may at once");
        }
        Some(Aside::Dependency(on)) => {
            return format!("Dependency: it waits for job {} ({})", on.on(), on.kind.name());
        }
        Some(Aside::Never(on)) => {
            let other = state.outcome(&on, job.array.as_ref().and_then(|part| part.tasks.first()));
            let became = other.map_or("gone", |(other, _)| other.name());
            return format!(
                "DependencyNeverSatisfied: it waits for job {} ({}), which is {became}",
                on.on(),
                on.kind.name()
            );
        }
        Some(Aside::Former(former)) => {
            return format!("Dependency: the session's former run, job {former}, is still ending");
        }
        None => {}
    }
    let Some(why) = state.wait_of(job) else {
        return "None".to_owned();
    };
    let takes_over = takes_over(state, job);
    let asked = state.asked_now(job);
    let needs = state.needs(job, &asked);
    let lacks = || match find_place(state, needs, &[]) {
        Ok(_) => match &job.terms.reservation {
            Some(name) => format!("others hold what reservation {name} has"),
            None => "it is about to be looked at".to_owned(),
        },
        Err(why) => summary(&why),
    };
    match &*why {
        Wait::Resources | Wait::Priority(_) if takes_over.is_some() => {
            format!("Resources: takes over from {}", takes_over.unwrap_or_default())
        }
        Wait::Resources => format!("Resources: {}", lacks()),
        Wait::Nodes => format!("ReqNodeNotAvail: {}", lacks()),
        Wait::Wish => match holds_out(state, job, needs) {
            Some(wish) => format!("Resources: {}; {wish}", lacks()),
            None => format!("Resources: {}", lacks()),
        },
        Wait::Priority(ahead) => format!("Priority: what it could have is promised to job {ahead}"),
        Wait::Reserved(name) => state.say_reserved(name),
        Wait::Limit(reached) => state.say_limit(reached, state.ticked),
        Wait::Headroom(kept) => format!(
            "Headroom: {} of {} {} are kept for interactive jobs",
            kept.kept, kept.of, kept.model
        ),
    }
}

/// From whom a job takes over, and when: "jobs 12 and 13 in 10 s".
fn takes_over(state: &State, job: &Job) -> Option<String> {
    let promise = state.promises.get(&job.id)?;
    let mut victims = promise
        .takes_over
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    let last = victims.pop()?;
    let seconds = promise.start.since(state.ticked).as_millis().div_ceil(1_000);
    Some(if victims.is_empty() {
        format!("job {last} in {seconds} s")
    } else {
        format!("jobs {} and {last} in {seconds} s", victims.join(", "))
    })
}

/// Whether what a node says of a job is why the job has ended: it has nothing to say of the release.
fn repeats(reason: &str, why: &str) -> bool {
    why.split_once(": ")
        .is_some_and(|(_, said)| reason.ends_with(said))
}

/// What a rank's node last said of it: progress, or why it still waits.
pub fn rank_detail(state: &State, job: &Job, rank: usize) -> Option<String> {
    let placed = job.placed()?;
    let node = &placed.allocation.nodes.get(rank)?.node;
    let link = state.links.get(node)?;
    if !link.connected {
        return Some(format!("node {node} is not connected"));
    }
    told(state, job, rank)
}

/// What a rank's node said of it last.
fn told(state: &State, job: &Job, rank: usize) -> Option<String> {
    let node = &job.placed()?.allocation.nodes.get(rank)?.node;
    let link = state.links.get(node)?;
    let seen = link
        .observed
        .as_ref()?
        .jobs
        .iter()
        .find(|seen| Some(seen.key) == job.key())?;
    (!seen.detail.is_empty()).then(|| format!("{node}: {}", seen.detail))
}

/// Place in the queue, 1 is next; none: not queued.
pub fn queue_position(state: &State, job: JobId) -> Option<usize> {
    let own = state.pending.place_of(job)?;
    Some(state.pending.before(own).count() + 1)
}

/// Slurm's word for a node's state, and why nothing is placed on it.
pub fn node_state(state: &State, name: &NodeName) -> (&'static str, String) {
    let holds = state
        .usage
        .get(name)
        .is_some_and(|usage| **usage != NodeUsage::default());
    let Some(node) = state.nodes.get(name) else {
        return ("DOWN", "unknown node".to_owned());
    };
    if let Some(reason) = &node.drained {
        return (if holds { "DRAINING" } else { "DRAINED" }, reason.clone());
    }
    if let Some(reason) = state.unavailable(node) {
        let found = node.found.is_some();
        return (if found { "FOUND" } else { "DOWN" }, format!("node is {reason}"));
    }
    let full = state
        .usage
        .get(name)
        .is_some_and(|usage| is_full(&node.inventory, usage));
    let reserved = state.reservations_on(name, state.ticked).into_iter();
    let reserved = reserved.filter(|(span, one)| span.start <= state.ticked && one.parts.is_none());
    let reserved: Vec<_> = reserved.map(|(_, one)| one).collect();
    if let Some(one) = reserved.iter().find(|one| one.maintenance) {
        return ("MAINT", format!("reservation {}", one.name));
    }
    let word = match (holds, full) {
        (false, _) if !reserved.is_empty() => "RESERVED",
        (false, _) => "IDLE",
        (true, false) => "MIXED",
        (true, true) => "ALLOCATED",
    };
    (word, String::new())
}

fn is_full(inventory: &Inventory, usage: &NodeUsage) -> bool {
    let gpus = inventory.gpus.len();
    (gpus > 0 && usage.gpus().count() >= gpus) || usage.cpus >= u64::from(inventory.cpus)
}

/// Who holds what on a node.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    /// The jobs on each GPU and what they hold of it, in the inventory's order.
    pub gpu_jobs: Vec<Vec<(JobId, Slice)>>,
    /// Hardware threads held.
    pub cpus: u64,
    /// Bytes of memory held.
    pub memory: u64,
    /// Jobs that have CPUs of their own, as the node says, in the order of their ids.
    pub bound: Vec<(JobId, Binding)>,
    /// Containers that this broker does not know.
    pub unknown: Vec<ObservedJob>,
}

/// Who holds what on a node.
pub fn node_view(state: &State, name: &NodeName) -> NodeView {
    let Some(node) = state.nodes.get(name) else {
        return NodeView::default();
    };
    let usage = state
        .usage
        .get(name)
        .map(|usage| (**usage).clone())
        .unwrap_or_default();
    let strangers: Vec<ObservedJob> = state.strangers(name).cloned().collect();
    let holders = |gpu: &GpuUuid| {
        let ours = usage.of(gpu).iter();
        let ours = ours.map(|held| (held.key.job, held.slice.clone()));
        let theirs = strangers.iter().flat_map(|job| {
            let units = job.gpus.iter().filter(|unit| unit.gpu == *gpu);
            units.map(|unit| (job.key.job, unit.slice.clone()))
        });
        let mut all: Vec<(JobId, Slice)> = ours.chain(theirs).collect();
        all.sort();
        all
    };
    let observed = state.links.get(name).and_then(|link| link.observed.as_deref());
    let bound = observed.into_iter().flat_map(|observed| &observed.jobs);
    let bound = bound.filter(|job| !job.binding.cpus.is_empty());
    let mut bound: Vec<(JobId, Binding)> = bound.map(|job| (job.key.job, job.binding.clone())).collect();
    bound.sort();
    NodeView {
        bound,
        gpu_jobs: node.inventory.gpus.iter().map(|gpu| holders(&gpu.uuid)).collect(),
        cpus: usage.cpus,
        memory: usage.memory,
        unknown: found_on(state, name).cloned().collect(),
    }
}

/// Why a job waits, or how it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// One sentence.
    pub summary: String,
    /// What keeps hosts out, and how many.
    pub refusals: Vec<(Refusal, u32)>,
    /// Jobs in front of it.
    pub ahead: Vec<JobId>,
    /// The nearest thing that would fit now.
    pub nearest: Option<String>,
    /// For a placed job: what its GPUs have, node by node.
    pub seats: Vec<Seat>,
    /// When it starts, if that can be said.
    pub start: Option<Timestamp>,
}

/// What the GPUs of an allocation have, rank by rank.
pub fn seats(state: &State, allocation: &Allocation) -> Vec<Seat> {
    let seat = |part: &NodeAllocation| {
        let node = state.nodes.get(&part.node);
        node.map(|node| seat(&node.inventory, &part.gpus))
            .unwrap_or_default()
    };
    allocation.nodes.iter().map(seat).collect()
}

/// Why a job waits, or how it stands.
pub fn explain(state: &State, job: &Job, now: Timestamp) -> Explanation {
    let mut explanation = explain_now(state, job, now);
    if let (Phase::Pending, Some(last)) = (&job.phase, job.past_runs.last()) {
        explanation.summary += &match last.for_job {
            Some(other) => format!("; it ran before, and gave way to job {other}"),
            None => format!(
                "; it ran before, until it was queued again ({})",
                last.state.name()
            ),
        };
    }
    explanation.summary += &avoid::said(state, job);
    explanation
}

fn explain_now(state: &State, job: &Job, now: Timestamp) -> Explanation {
    if let Some(placed) = job.last_placed() {
        let reason = state_reason(state, job);
        let nodes: Vec<&str> = placed
            .allocation
            .nodes
            .iter()
            .map(|part| part.node.as_str())
            .collect();
        let summary = match (job.state().is_final(), reason.is_empty()) {
            (true, _) => format!("it is over: {reason}"),
            (false, true) => format!("it runs on {}", nodes.join(", ")),
            (false, false) => format!("it is on {}: {reason}", nodes.join(", ")),
        };
        return Explanation {
            summary,
            seats: seats(state, &placed.allocation),
            ..Explanation::default()
        };
    }
    let Phase::Pending = &job.phase else {
        return Explanation {
            summary: format!("it is over: {}", state_reason(state, job)),
            ..Explanation::default()
        };
    };
    let ahead = state.ahead_of(job.id);
    let asked = state.asked_now(job);
    let needs = state.needs(job, &asked);
    let start = start_of(state, job.id, now).map(|start| start.at);
    match find_place(state, needs, &[]) {
        Ok(_) => Explanation {
            summary: format!("it would fit now ({})", pending_reason(state, job)),
            ahead,
            start,
            ..Explanation::default()
        },
        Err(why) => {
            let held = match holds_out(state, job, needs) {
                Some(wish) => wish,
                None if fits_when_free(state, needs) => "it waits for others to end".to_owned(),
                None => "it waits for nodes that are down or drained".to_owned(),
            };
            Explanation {
                summary: format!("{held}: {}", summary(&why)),
                refusals: why.refusals,
                nearest: why.nearest,
                ahead,
                start,
                ..Explanation::default()
            }
        }
    }
}
