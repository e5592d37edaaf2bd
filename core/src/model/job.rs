//! Jobs: the unit of scheduling. An allocation of a job runs once; a job may have one after another.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::activity::{Metered, Used};
use super::array::ArrayPart;
use super::batch::Batch;
use super::cpus::Binding;
use super::gang_network::RankNetwork;
use super::ids::{Generation, JobId, JobKey, NodeName, SessionId, UserName};
use super::resources::{Allocation, ResourceRequest};
use super::shared::Shared;
use super::start::Conditions;
use super::terms::Terms;
use super::time::Timestamp;

/// Slurm's job states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum JobState {
    /// Waits for resources.
    Pending,
    /// Holds resources; its containers are being made.
    Configuring,
    /// Every container of it is ready.
    Running,
    /// Being ended; holds what its nodes have not released yet.
    Completing,
    /// Its main command ended with exit code 0, or its user ended the session.
    Completed,
    /// Ended with another exit code, or could not be started.
    Failed,
    /// Ended by a user before it ran.
    Cancelled,
    /// Ended at its deadline.
    Timeout,
    /// Ended for another job's sake.
    Preempted,
    /// A node of it was lost.
    NodeFail,
    /// Ended by the kernel for want of memory.
    OutOfMemory,
    /// Stopped in place.
    Suspended,
}

impl JobState {
    /// Over: holds nothing and never will.
    pub fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Configuring | Self::Running | Self::Completing | Self::Suspended => false,
            Self::Completed
            | Self::Failed
            | Self::Cancelled
            | Self::Timeout
            | Self::Preempted
            | Self::NodeFail
            | Self::OutOfMemory => true,
        }
    }

    /// Slurm's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Configuring => "CONFIGURING",
            Self::Running => "RUNNING",
            Self::Completing => "COMPLETING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
            Self::Timeout => "TIMEOUT",
            Self::Preempted => "PREEMPTED",
            Self::NodeFail => "NODE_FAIL",
            Self::OutOfMemory => "OUT_OF_MEMORY",
            Self::Suspended => "SUSPENDED",
        }
    }
}

/// Whether somebody sits in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum JobKind {
    /// A session's run.
    Interactive,
    /// Runs by itself.
    Batch,
}

/// How a job ended, or is about to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// The final state.
    pub state: JobState,
    /// Why, for people.
    pub reason: String,
    /// Exit code of the main command, or 128 + signal.
    pub exit_code: Option<i32>,
}

/// A fence that stood its trial: process 1 tried to get at what is not the job's, and could not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceReport {
    /// Things that were tried.
    pub checks: u32,
    /// How long that took, microseconds.
    pub micros: u32,
}

/// What is known of a container's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Containment {
    /// How its fence stood the trial at its start; none until then.
    pub fence: Option<FenceReport>,
    /// Processes of it that the kernel has ended for want of memory.
    pub oom_kills: u32,
}

/// A batch job that fails so soon after its containers are ready has failed at once: what is wrong may be its node.
pub const SOON: Duration = Duration::from_mins(1);

/// So long after that it keeps off that node, if another one could take it.
pub const KEEPS_OFF: Duration = Duration::from_hours(1);

/// What one node of an allocated job last said of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStatus {
    /// carrel-init is up.
    pub ready: bool,
    /// The node holds nothing of it any more.
    pub released: bool,
    /// SSH host key's public half, OpenSSH text; empty until known.
    pub host_key: String,
    /// Of its container's limits.
    #[serde(default)]
    pub containment: Containment,
    /// CPUs and memory nodes that its container is bound to, or last was.
    #[serde(default)]
    pub binding: Binding,
    /// How much its GPUs were used there.
    #[serde(default)]
    pub metered: Metered,
    /// What its container has of the gang's network: decided when the allocation is given.
    #[serde(default)]
    pub network: RankNetwork,
    /// When its container became ready.
    #[serde(default)]
    pub ready_at: Option<Timestamp>,
    /// The job failed here before it ran, or soon after ([`SOON`]).
    #[serde(default)]
    pub failed_soon: bool,
}

/// How a job that is being ended goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// When what is left of it is killed.
    pub killed: Timestamp,
    /// It waits again once its nodes have released it.
    pub again: bool,
    /// The job that takes over what it holds.
    pub for_job: Option<JobId>,
}

/// What a job holds of one model of GPU, and what that counts as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// The model, as its node names it; empty: what is held without a GPU.
    pub model: String,
    /// GPUs, thousandths.
    pub gpu_milli: u64,
    /// What they count as for fair-share and limits of GPU-minutes, thousandths of GPU-equivalents.
    pub billing_milli: u64,
}

/// What a job has while it holds resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Fencing token of this allocation.
    pub generation: Generation,
    /// What it holds.
    pub allocation: Allocation,
    /// When it was given.
    pub started: Timestamp,
    /// When it ends at the latest.
    pub deadline: Timestamp,
    /// What it counts as for fair-share and limits of GPU-minutes, thousandths of GPU-equivalents.
    #[serde(default)]
    pub billing_milli: u64,
    /// The same by model; empty in records of before it was kept.
    #[serde(default)]
    pub charges: Vec<Charge>,
    /// One entry a rank.
    pub ranks: Vec<RankStatus>,
    /// Set once it is being ended.
    pub ending: Option<Ending>,
    /// Set with it.
    #[serde(default)]
    pub leaving: Option<Leaving>,
    /// When its user last moved the deadline: that counts as use.
    #[serde(default)]
    pub extended: Option<Timestamp>,
    /// The last signal that somebody had sent to it.
    #[serde(default)]
    pub signalled: Option<Signalled>,
}

/// A signal to what runs of a job, and how many there were: a whole state, of which a container executes what is new to
/// it. Of several that come in between it learns the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signalled {
    /// Signals in this allocation, this one included.
    pub count: u32,
    /// What it is.
    pub sent: Sent,
}

/// A signal, and which processes of a job it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Its number, 1 to 31.
    pub signal: i32,
    /// For the batch script, and the shells of terminals.
    pub shells: bool,
    /// For everything else.
    pub others: bool,
}

impl Sent {
    /// Linux's highest signal that has a name of its own.
    const MAX: i32 = 31;

    /// There is such a signal, and somebody whom it is for.
    pub fn is_valid(self) -> bool {
        (1..=Self::MAX).contains(&self.signal) && (self.shells || self.others)
    }
}

impl Placed {
    /// How much its GPUs were used, by model; none of what was never measured.
    pub fn used(&self) -> BTreeMap<String, Used> {
        let mut used: BTreeMap<String, Used> = BTreeMap::new();
        for (model, one) in self.ranks.iter().flat_map(|rank| rank.metered.total()) {
            used.entry(model).or_default().add(one);
        }
        used
    }

    /// The nodes on which it failed at once.
    fn failed_soon_on(&self) -> Vec<NodeName> {
        let parts = self.allocation.nodes.iter().zip(&self.ranks);
        let failed = parts.filter(|(_, rank)| rank.failed_soon);
        failed.map(|(part, _)| part.node.clone()).collect()
    }

    /// Since when all of its containers are ready; none: they are not.
    pub fn ready_since(&self) -> Option<Timestamp> {
        let ready = self.ranks.iter().all(|rank| rank.ready);
        let last = self.ranks.iter().filter_map(|rank| rank.ready_at).max();
        // Records of before it was kept tell when it was given its nodes.
        ready.then(|| last.unwrap_or(self.started))
    }

    /// It is being ended, and waits again after that.
    pub fn comes_again(&self) -> bool {
        self.leaving.is_some_and(|leaving| leaving.again)
    }
}

/// Where a job is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waits.
    Pending,
    /// Holds resources: CONFIGURING, RUNNING or COMPLETING.
    Placed(Box<Placed>),
    /// Over.
    Ended {
        /// How.
        ending: Ending,
        /// When.
        at: Timestamp,
        /// What it last held, for the record.
        last: Option<Box<Placed>>,
    },
}

/// Who keeps a job from starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Hold {
    /// Its owner, who can let it go.
    User,
    /// An operator.
    Operator,
}

/// A time in which a job held something before it was queued again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastRun {
    /// Fencing token of what it held.
    #[serde(default)]
    pub generation: Generation,
    /// From then.
    pub started: Timestamp,
    /// Until then.
    pub ended: Timestamp,
    /// As [`Placed::billing_milli`].
    pub billing_milli: u64,
    /// How it ended: preempted, with a node, or by somebody's wish.
    #[serde(default = "PastRun::unknown")]
    pub state: JobState,
    /// The job that it gave way to.
    #[serde(default)]
    pub for_job: Option<JobId>,
    /// Nodes on which it failed before it ran, or soon after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_soon_on: Vec<NodeName>,
}

impl PastRun {
    const fn unknown() -> JobState {
        JobState::Cancelled
    }

    /// Until when its job keeps off the nodes on which it failed at once.
    pub fn keeps_off_until(&self) -> Timestamp {
        self.ended.after(KEEPS_OFF)
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Its name; a session's job carries the session's.
    pub name: String,
    /// Its kind.
    pub kind: JobKind,
    /// Whose it is.
    pub owner: UserName,
    /// Session that it is a run of.
    pub session: Option<SessionId>,
    /// What it asks for.
    pub request: Shared<ResourceRequest>,
    /// How long it may run.
    pub time_limit: Duration,
    /// When it was accepted.
    pub submitted: Timestamp,
    /// Not before this job is over: the session's former run.
    pub after: Option<JobId>,
    /// On what terms it waits and runs.
    #[serde(default)]
    pub terms: Terms,
    /// Who keeps it from starting.
    #[serde(default)]
    pub hold: Option<Hold>,
    /// It does not start before.
    #[serde(default)]
    pub begin: Option<Timestamp>,
    /// What else it waits for by its user's wish.
    #[serde(default)]
    pub conditions: Conditions,
    /// It is cancelled if it has not started by then.
    #[serde(default)]
    pub give_up: Option<Timestamp>,
    /// When it ran before, the first time first.
    #[serde(default)]
    pub past_runs: Vec<PastRun>,
    /// It is queued again when a node of it is lost.
    #[serde(default)]
    pub requeue: bool,
    /// What it runs, if it is a batch job.
    #[serde(default)]
    pub batch: Option<Arc<Batch>>,
    /// Its part in an array, if it has one.
    #[serde(default)]
    pub array: Option<Arc<ArrayPart>>,
    /// Where it is in its life.
    pub phase: Phase,
}

impl Job {
    /// What people call it: "12", "12_3", "12_[3-7,9]".
    pub fn label(&self) -> String {
        self.array
            .as_ref()
            .map_or_else(|| self.id.to_string(), |part| part.label())
    }

    /// How many jobs it counts as: one, or the tasks of an array that wait in it.
    pub fn count(&self) -> u32 {
        let tasks = self.array.as_ref().map_or(1, |part| part.tasks.len());
        u32::try_from(tasks).unwrap_or(u32::MAX)
    }

    /// The array that it is a part of, and which task it is.
    pub fn task(&self) -> Option<(JobId, u32)> {
        let part = self.array.as_ref()?;
        part.task().map(|task| (part.array, task))
    }

    /// The number of its array, or its own.
    pub fn number(&self) -> JobId {
        self.array.as_ref().map_or(self.id, |part| part.array)
    }

    /// Slurm's state of it.
    pub fn state(&self) -> JobState {
        match &self.phase {
            Phase::Pending => JobState::Pending,
            Phase::Placed(placed) if placed.ending.is_some() => JobState::Completing,
            Phase::Placed(placed) if placed.ranks.iter().all(|rank| rank.ready) => JobState::Running,
            Phase::Placed(_) => JobState::Configuring,
            Phase::Ended { ending, .. } => ending.state,
        }
    }

    /// The same job as one that holds something, in this way.
    #[must_use]
    pub fn with_placed(&self, placed: Placed) -> Self {
        Self {
            phase: Phase::Placed(Box::new(placed)),
            ..self.clone()
        }
    }

    /// What it holds now.
    pub fn placed(&self) -> Option<&Placed> {
        match &self.phase {
            Phase::Placed(placed) => Some(placed),
            Phase::Pending | Phase::Ended { .. } => None,
        }
    }

    /// What it holds or, once over, last held.
    pub fn last_placed(&self) -> Option<&Placed> {
        match &self.phase {
            Phase::Placed(placed) => Some(placed),
            Phase::Ended { last, .. } => last.as_deref(),
            Phase::Pending => None,
        }
    }

    /// Whether an allocation is one that it holds or has held.
    pub fn had(&self, generation: Generation) -> bool {
        let last = self.last_placed().map(|placed| placed.generation);
        let past = self.past_runs.iter().map(|run| run.generation);
        last.into_iter().chain(past).any(|known| known == generation)
    }

    /// Its runs that failed at once on some node, the last one first.
    pub fn failed_soon(&self) -> impl Iterator<Item = &PastRun> {
        let runs = self.past_runs.iter().rev();
        runs.filter(|run| !run.failed_soon_on.is_empty())
    }

    /// How often in a row it has been ended for another job's sake.
    pub fn preemptions(&self) -> usize {
        let runs = self.past_runs.iter().rev();
        runs.take_while(|run| run.state == JobState::Preempted).count()
    }

    /// What it is once its nodes have released what it held, if it waits again; none: it does not.
    pub fn queued_again(&self, now: Timestamp) -> Option<Self> {
        let placed = self.placed().filter(|placed| placed.comes_again())?;
        let mut past_runs = self.past_runs.clone();
        past_runs.push(PastRun {
            generation: placed.generation,
            started: placed.started,
            ended: now,
            billing_milli: placed.billing_milli,
            state: placed
                .ending
                .as_ref()
                .map_or(PastRun::unknown(), |ending| ending.state),
            for_job: placed.leaving.and_then(|leaving| leaving.for_job),
            failed_soon_on: placed.failed_soon_on(),
        });
        Some(Self {
            past_runs,
            phase: Phase::Pending,
            ..self.clone()
        })
    }

    /// What it is when it is to run once more after its end: it waits for nothing but room. None: it is not over, or
    /// never held anything.
    pub fn once_more(&self) -> Option<Self> {
        let Phase::Ended {
            ending,
            at,
            last: Some(placed),
        } = &self.phase
        else {
            return None;
        };
        let mut past_runs = self.past_runs.clone();
        past_runs.push(PastRun {
            generation: placed.generation,
            started: placed.started,
            ended: *at,
            billing_milli: placed.billing_milli,
            state: ending.state,
            for_job: None,
            failed_soon_on: placed.failed_soon_on(),
        });
        Some(Self {
            past_runs,
            hold: None,
            // They were met once, and what they name may have left the state since.
            conditions: Conditions::default(),
            give_up: None,
            phase: Phase::Pending,
            ..self.clone()
        })
    }

    /// Other jobs that it waits for, while they are not what they are to be.
    pub fn awaited(&self) -> impl Iterator<Item = JobId> + '_ {
        let dependencies = self.conditions.dependencies.iter();
        self.after.into_iter().chain(dependencies.map(|one| one.job))
    }

    /// Since when it could have started, as far as that is its own matter.
    pub fn since(&self) -> Timestamp {
        self.begin
            .map_or(self.submitted, |begin| begin.max(self.submitted))
    }

    /// The allocation it holds now, as agents name it.
    pub fn key(&self) -> Option<JobKey> {
        self.placed().map(|placed| JobKey {
            job: self.id,
            generation: placed.generation,
        })
    }
}
