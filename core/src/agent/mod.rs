//! The node agent's decisions: desired and observed in, actions out.
//!
//! [`Agent`] knows no container runtime, no socket and no clock. The real agent
//! and the simulation drive the same one: they tell it what happened
//! ([`Input`]) and when ([`Now`]), and do what it says ([`Action`]), in order.
//!
//! What it sees to:
//!
//! - Only its own cluster's broker is obeyed, and no start of it older than the newest seen.
//! - Nothing is started on a GPU, CPU or byte that another job of this node still holds; what a
//!   process of no job holds, the shell finds at the start ([`ContainerEvent::Blocked`]).
//! - Nor on a GPU that stands in the place of one that another job holds, whatever its UUID is now.
//! - A job gets CPUs of its own, near to its GPUs, and keeps them for as long as it lives.
//! - A job ends by a tombstone, its deadline, its lease, or by itself; never because it is not mentioned.
//! - What has ended never starts again: ends are remembered as fences. Nor does what was lost after
//!   it had been ready: the broker says so.
//! - An allocation is job *and* generation: another generation of a job is another's until the broker says more.
//! - A job is released only when the shell has verified that nothing of it is left.

mod adopt;
mod binding;
mod desired;
mod end;
mod entry;
mod ledger;
mod meter;
mod places;
mod report;
mod start;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::activity::{HostUse, Thresholds};
use crate::model::cpus::{Binding, HostCpus};
use crate::model::gang_network::RankNetwork;
use crate::model::gpu::Inventory;
use crate::model::gpu_unit::GpuUnit;
use crate::model::ids::{
    ClusterId, Generation, GpuUuid, Incarnation, JobId, JobKey, NodeName, SessionId, UserName,
};
use crate::model::job::FenceReport;
use crate::model::node::{Desired, DesiredJob};
use crate::model::time::Timestamp;

use entry::{Entry, Phase};

pub use ledger::{Ledger, LedgerEntry, Stage};
pub use meter::{GpuReading, Reading};
pub use places::Place;

/// Between the terminate signal and the kill, where no tombstone says it: well
/// within the margin by which the broker waits longer than a lease.
pub const DEFAULT_GRACE_MS: u64 = 10_000;
/// How much longer than the grace a container may take to end by itself.
const KILL_MARGIN_MS: u64 = 2_000;
/// Between two tries of what failed: a start on a busy GPU, a removal.
const RETRY_MS: u64 = 1_000;
/// A GPU that is not released, or is used by a process of no job, for so long is reported as drained.
pub const DRAIN_AFTER_MS: u64 = 10_000;
/// Ended jobs that are remembered so as not to be started again. Needed for late
/// messages and restored backups of the broker; a node ends that many jobs in days.
const MAX_FENCES: usize = 8_192;
/// Reports that a late answer may refer to: half an hour of one a second.
const MAX_SENT: usize = 2_048;
/// Longest detail that is kept, bytes.
const MAX_DETAIL: usize = 2_000;
/// carrel-init's exit code when its lease ended (`node-agent/init`).
const EXIT_LEASE: i32 = 75;
/// Exit code of a process that was ended by SIGKILL, as the kernel does for want of memory.
const EXIT_KILLED: i32 = 137;

/// The time on both of a node's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Wall clock: deadlines.
    pub wall: Timestamp,
    /// `CLOCK_BOOTTIME`, milliseconds: leases and intervals. It counts through suspend and never steps.
    pub boot_ms: u64,
}

/// Who an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Myself {
    /// The cluster that it has joined.
    pub cluster: ClusterId,
    /// Its node.
    pub node: NodeName,
    /// Its version.
    pub version: String,
    /// The kernel's boot id.
    pub boot_id: String,
}

/// What one job holds on the node, and whose it is: known from the ledger or a container's labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Session that it is a run of.
    pub session: Option<SessionId>,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub user: Option<UserName>,
    /// Cluster that started it.
    pub cluster: ClusterId,
    /// GPU units.
    pub gpus: Vec<GpuUnit>,
    /// Hardware threads.
    pub cpus: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// When it ends, broker or no broker.
    pub deadline: Timestamp,
    /// This node's rank in the gang.
    #[serde(default)]
    pub rank: u32,
    /// Nodes of the gang; 0: not known.
    #[serde(default)]
    pub nodes: u32,
    /// When this node took it in.
    #[serde(default)]
    pub started: Timestamp,
    /// Image that it runs; empty: not known.
    #[serde(default)]
    pub image: String,
    /// CPUs and memory nodes that its container is bound to.
    #[serde(default)]
    pub binding: Binding,
    /// What its container has of the gang's network.
    #[serde(default)]
    pub network: RankNetwork,
    /// Where its GPUs were when it was given them, as far as that is known.
    #[serde(default)]
    pub places: BTreeMap<GpuUuid, Place>,
}

/// A container that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whose container it is.
    pub key: JobKey,
    /// What its labels say.
    pub holding: Holding,
    /// How far it is.
    pub state: FoundState,
}

/// How far a container is that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundState {
    /// Half made: its process 1 never ran.
    Unstarted,
    /// Process 1 runs.
    Running,
    /// Process 1 ended.
    Ended {
        /// Exit code, or 128 + signal.
        code: Option<i32>,
        /// The kernel killed something of it for want of memory.
        out_of_memory: bool,
        /// It ended because the job's command had: the exit code is that one's.
        command: bool,
    },
    /// It ran, and nothing says how it ended.
    Lost,
}

/// What happens to one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerEvent {
    /// How far its start is, for people.
    Progress(String),
    /// carrel-init is up.
    Ready {
        /// The SSH host key's public half, OpenSSH text.
        host_key: String,
        /// How its fence stood the trial: without one that held, no container is ready.
        fence: FenceReport,
    },
    /// Live SSH connections.
    Connections(u32),
    /// Not started: something outside of Carrel uses what it needs. Nothing was made.
    Blocked(String),
    /// It could not be started, for this reason.
    StartFailed(String),
    /// The kernel killed processes of it for want of memory; it goes on.
    OutOfMemory {
        /// So many since its start.
        kills: u32,
    },
    /// Something befell what it uses, in words for its user; it goes on.
    Trouble(String),
    /// What it has used of CPUs and memory; before the event of its end, for the last time.
    Used(HostUse),
    /// Process 1 ended.
    Exited {
        /// Exit code, or 128 + signal.
        code: Option<i32>,
        /// The kernel killed something of it for want of memory.
        out_of_memory: bool,
        /// It ended because the job's command had: the exit code is that one's.
        command: bool,
        /// Its last words; may be empty.
        detail: String,
    },
    /// Container, processes, and use of its GPUs are gone: verified.
    Released {
        /// Exit code, or 128 + signal.
        code: Option<i32>,
        /// The kernel killed something of it for want of memory.
        out_of_memory: bool,
        /// It ended because the job's command had: the exit code is that one's.
        command: bool,
    },
    /// Something of it is still there, for this reason.
    NotReleased(String),
}

/// Everything that can happen to an agent.
#[derive(Clone, Debug)]
pub enum Input {
    /// All containers that are there. The first one comes before anything else is acted on.
    World(Vec<Found>),
    /// The broker spoke.
    Desired(Box<Desired>),
    /// Something happened to a container.
    Container(JobKey, ContainerEvent),
    /// A session's kept changes are deleted, or why not.
    SessionRemoved(SessionId, Result<(), String>),
    /// What the host has, as discovered.
    Inventory(Box<Inventory>),
    /// Its CPUs and memory, of which jobs are given their own.
    Cpus(Box<HostCpus>),
    /// Images that are there.
    Images(Vec<String>),
    /// Somebody has looked at what jobs do.
    Measured(Vec<(JobKey, Reading)>),
    /// The same at what they use of CPUs and memory.
    HostUse(Vec<(JobKey, HostUse)>),
    /// Time passed.
    Tick,
}

/// What is to be done. Actions on one job are to be done in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write [`Agent::ledger`] before anything that follows.
    Persist {
        /// It must survive the node's crash, not only the agent's.
        synced: bool,
    },
    /// Make and start a container, bound as its [`Holding`] says; answered by [`ContainerEvent`]s. May be
    /// repeated after a `Blocked`.
    Start(Box<DesiredJob>),
    /// Watch over a container that already runs; answered by `Ready`. Its memory is freed where its
    /// [`Holding`] has it bound to no node.
    Adopt(JobKey),
    /// Tell carrel-init what has changed, and how long the lease lasts now; memory as for `Adopt`.
    Configure(JobKey),
    /// Ask carrel-init to end; answered by `Exited`.
    Stop {
        /// Which container.
        key: JobKey,
        /// Milliseconds between the terminate signal and the kill.
        grace_ms: u64,
    },
    /// End whatever is left, a start that is under way too, and verify; answered by `Released` or `NotReleased`.
    Remove(JobKey),
    /// Delete a session's kept changes; answered by [`Input::SessionRemoved`].
    RemoveSession(SessionId),
    /// Send a report now.
    Report,
}

/// How far the deletion of a session's kept changes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// To be tried at this time, boot milliseconds.
    Due(u64),
    /// Under way.
    Running,
    /// Done; remembered while the broker mentions it.
    Done,
}

/// The contact with the broker, as long as it lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lease {
    /// When it ends, boot milliseconds; none: no contact in this boot.
    end: Option<u64>,
    /// The report that was last answered.
    renewed: u64,
}

/// One node's agent.
#[derive(Clone, Debug)]
pub struct Agent {
    myself: Myself,
    /// As discovered.
    inventory: Inventory,
    /// As discovered.
    cpus: HostCpus,
    /// GPUs that this agent has seen.
    seen: BTreeMap<GpuUuid, Place>,
    images: Vec<String>,
    /// Highest incarnation obeyed.
    accepted: Option<Incarnation>,
    /// Generation of its newest Desired.
    newest: u64,
    /// Generation of the newest one of which everything has been done.
    applied: u64,
    /// Ended: these are not started. The oldest first, since generations count over all jobs.
    fences: BTreeSet<(Generation, JobId)>,
    entries: BTreeMap<JobKey, Entry>,
    removals: BTreeMap<SessionId, Removal>,
    lease: Lease,
    /// GPUs that are not offered because of what happens here, and why.
    drained: BTreeMap<GpuUuid, String>,
    /// The containers that are there are known.
    adopted: bool,
    /// The ledger is of a former boot.
    rebooted: bool,
    /// From what on work in a job counts as use.
    thresholds: Thresholds,
    seq: u64,
    /// Reports after this one are this agent's.
    first_seq: u64,
    /// When unanswered reports were sent, by sequence number: boot milliseconds.
    sent: BTreeMap<u64, u64>,
    out: Output,
}

/// Gathered while one input is handled.
#[derive(Clone, Debug, Default)]
struct Output {
    actions: Vec<Action>,
    persist: Option<bool>,
    report: bool,
}

impl Agent {
    /// An agent that has just been started, with the ledger that it left when there is one.
    pub fn new(myself: Myself, ledger: Option<Ledger>, now: Now) -> Self {
        let mut agent = Self {
            myself,
            inventory: Inventory::default(),
            cpus: HostCpus::default(),
            seen: BTreeMap::new(),
            images: Vec::new(),
            accepted: None,
            newest: 0,
            applied: 0,
            fences: BTreeSet::new(),
            entries: BTreeMap::new(),
            removals: BTreeMap::new(),
            lease: Lease::default(),
            drained: BTreeMap::new(),
            adopted: false,
            rebooted: false,
            thresholds: Thresholds::default(),
            // Greater than any number of an agent before this one in this boot, which sent fewer
            // than one report a millisecond: an answer to that one's is no answer to ours.
            seq: now.boot_ms,
            first_seq: now.boot_ms,
            sent: BTreeMap::new(),
            out: Output::default(),
        };
        if let Some(ledger) = ledger {
            agent.load(ledger, now.boot_ms);
        }
        agent
    }

    /// Takes something in, and says what is to be done.
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Action> {
        match input {
            Input::World(found) => self.on_world(now, found),
            Input::Desired(desired) => self.on_desired(now, *desired),
            Input::Container(key, event) => self.on_container(now, key, event),
            Input::SessionRemoved(session, result) => self.on_session_removed(now, session, &result),
            Input::Inventory(inventory) => {
                if self.inventory != *inventory {
                    self.inventory = *inventory;
                    self.note_places();
                    self.out.report = true;
                }
            }
            Input::Cpus(cpus) => self.cpus = *cpus,
            Input::Images(images) => {
                if self.images != images {
                    self.images = images;
                    self.out.report = true;
                }
            }
            Input::HostUse(used) => {
                for (key, host) in used {
                    self.on_host_use(key, host);
                }
            }
            Input::Measured(readings) => self.on_measured(now, &readings),
            Input::Tick => {}
        }
        if self.adopted {
            // Ends first: what they free may be what a start waits for.
            self.end_what_is_due(now);
            self.start_what_can(now);
            self.remove_sessions(now);
            self.apply();
            self.drain(now);
        }
        self.take_output()
    }

    /// What of the lease is left, milliseconds; none: there was no contact in this boot.
    pub fn lease_remaining_ms(&self, now: Now) -> Option<u64> {
        self.lease.end.map(|end| end.saturating_sub(now.boot_ms))
    }

    /// When the lease ends, milliseconds of `CLOCK_BOOTTIME`; none: there was no contact in this boot.
    pub fn lease_end_ms(&self) -> Option<u64> {
        self.lease.end
    }

    /// How long until [`Input::Tick`] has something to do; none: until something else happens.
    pub fn next_tick(&self, now: Now) -> Option<Duration> {
        let entries = self
            .entries
            .values()
            .filter_map(|entry| self.entry_is_due(entry, now));
        let removals = self.removals.values().filter_map(|removal| match removal {
            Removal::Due(at) => Some(at.saturating_sub(now.boot_ms)),
            Removal::Running | Removal::Done => None,
        });
        entries.chain(removals).min().map(Duration::from_millis)
    }

    /// The newest desired state of a job that has not ended.
    pub fn job(&self, key: JobKey) -> Option<&DesiredJob> {
        self.entries.get(&key)?.job.as_ref()
    }

    /// What a job holds, or held before it was released.
    pub fn holding(&self, key: JobKey) -> Option<&Holding> {
        self.entries.get(&key).map(|entry| &entry.holding)
    }

    /// Jobs that hold something, in order.
    pub fn holders(&self) -> impl Iterator<Item = (JobKey, &Holding)> {
        let held = self.entries.iter().filter(|(_, entry)| entry.phase.holds());
        held.map(|(key, entry)| (*key, &entry.holding))
    }

    /// Whether streams to a job make sense: its carrel-init is up, and it is not being ended.
    pub fn is_ready(&self, key: JobKey) -> bool {
        self.entries
            .get(&key)
            .is_some_and(|entry| entry.phase == Phase::Ready)
    }

    /// The cluster that it has joined.
    pub fn cluster(&self) -> &ClusterId {
        &self.myself.cluster
    }

    fn act(&mut self, action: Action) {
        self.out.actions.push(action);
    }

    /// The ledger is to be written: what changed must survive a crash of the node when `synced`.
    fn persist(&mut self, synced: bool) {
        self.out.persist = Some(self.out.persist.unwrap_or(false) || synced);
    }

    /// A job changed in a way that must be known after a crash, and to the broker.
    fn changed(&mut self) {
        self.persist(true);
        self.out.report = true;
    }

    fn take_output(&mut self) -> Vec<Action> {
        let out = std::mem::take(&mut self.out);
        let persist = out.persist.map(|synced| Action::Persist { synced });
        let report = out.report.then_some(Action::Report);
        persist.into_iter().chain(out.actions).chain(report).collect()
    }
}

/// A text cut to [`MAX_DETAIL`].
fn cut(mut text: String) -> String {
    if text.len() > MAX_DETAIL {
        let mut end = MAX_DETAIL;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}
