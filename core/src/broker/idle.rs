//! Whether a session is used, by what its nodes say, and when it ends if it is not.
//!
//! Nothing here runs by a timer: what a node says is looked at when it says it, so that silence ends nobody. A session
//! that is about to end as idle is told of it first ([`IdleEnd`]), and ends only after all its nodes have acted on that.

use std::time::Duration;

use super::desired::{held_on, rank_on};
use super::{Broker, State};
use crate::model::activity::{Activity, HostUse, Seen, Signal};
use crate::model::ids::{JobId, JobKey, NodeName};
use crate::model::job::{Ending, Job, JobKind, JobState, Placed, RankStatus};
use crate::model::node::{Observed, ObservedPhase};
use crate::model::resources::NodeAllocation;
use crate::model::time::Timestamp;

/// What was seen so lately is going on.
const NOW: Duration = Duration::from_secs(45);
/// Between two times at which counted use is written down while a job runs.
const KEEP: Duration = Duration::from_mins(5);
/// CPU time that is written down while a job runs, microseconds.
const WORTH_US: u64 = 1_000_000;

/// When a session ends that is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// After so long without use.
    pub after: Duration,
    /// So long before, its user is warned.
    pub warn: Duration,
}

/// A session that is about to end as idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleEnd {
    /// Not before this.
    pub ends: Timestamp,
    /// Since when all its nodes tell of it; none: they may not all have heard.
    pub told: Option<Timestamp>,
}

/// What a session was last used by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBy {
    /// Something that its nodes saw.
    Signal(Signal),
    /// Its user moved its deadline.
    Extended,
    /// It started.
    Started,
    /// Nobody looked at what it does before then: it counts as use.
    Unseen,
}

/// The last use of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastUse {
    /// When.
    pub at: Timestamp,
    /// By what.
    pub by: UsedBy,
}

/// What is shown of the use of a job that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobUse {
    /// Use of the busiest of its GPUs, per cent; none: it is not known.
    pub gpu_percent: Option<u32>,
    /// CPU time of all its processes, per cent of one hardware thread.
    pub cpu_percent: Option<u32>,
    /// Live SSH connections.
    pub connections: u32,
    /// Since when it is not used; none: it is, or that is not known.
    pub idle_since: Option<Timestamp>,
    /// When it ends if that goes on; none: it does not end for that, or is used.
    pub ends: Option<Timestamp>,
    /// Its user has been warned.
    pub warned: bool,
    /// After how long without use it ends; none: it does not.
    pub after: Option<Duration>,
    /// What it is used by, for people.
    pub held_by: String,
}

impl State {
    /// When a job ends that is not used; none: it does not end for that.
    pub fn idle_policy(&self, job: &Job) -> Option<IdlePolicy> {
        match job.kind {
            JobKind::Interactive => {}
            JobKind::Batch => return None,
        }
        let session = job.session.and_then(|id| self.sessions.get(&id));
        let own = session.and_then(|session| session.spec.container.idle);
        let after = own.into_iter().chain(self.settings.idle.after).min()?;
        Some(IdlePolicy {
            after,
            // Sooner it would tell nothing.
            warn: self.settings.idle.warn.min(after / 2),
        })
    }

    /// How long before its end as idle a job's user is told of it, the longest first.
    pub fn idle_warnings(&self, job: &Job) -> Vec<Duration> {
        let Some(policy) = self.idle_policy(job) else {
            return Vec::new();
        };
        let mut warnings = vec![policy.warn];
        let later = self.settings.warnings(policy.warn.saturating_mul(2)).into_iter();
        warnings.extend(later.filter(|before| *before < policy.warn));
        warnings
    }

    /// What a rank's node says of its use, and when it came; none: nothing that counts now.
    fn said(
        &self,
        job: &Job,
        placed: &Placed,
        rank: usize,
        now: Timestamp,
    ) -> Option<(Timestamp, &Activity)> {
        let link = self.links.get(&placed.allocation.nodes[rank].node)?;
        let heard = link.connected && link.last_contact.after(self.settings.contact_timeout) > now;
        let observed = link.observed.as_ref().filter(|_| heard)?;
        let key = JobKey {
            job: job.id,
            generation: placed.generation,
        };
        Some((link.last_contact, observed.activity.get(&key)?))
    }

    /// The last use of a job; none: a node of it is silent, or has not looked at it, so that nobody knows.
    pub fn last_use(&self, job: &Job, now: Timestamp) -> Option<LastUse> {
        if job.state() != JobState::Running {
            return None;
        }
        let placed = job.placed()?;
        let mut signals =
            [Signal::Gpu, Signal::Cpu, Signal::Input, Signal::Connection].map(|one| (one, None));
        let mut last = LastUse {
            at: placed.started,
            by: UsedBy::Started,
        };
        let mut later = |at: Timestamp, by: UsedBy| {
            if at > last.at {
                last = LastUse { at, by };
            }
        };
        for rank in 0..placed.ranks.len() {
            let (heard, activity) = self.said(job, placed, rank, now)?;
            let seen = activity.seen?;
            let then = |ago: u64| Timestamp(heard.0.saturating_sub(ago));
            later(then(seen.for_ms), UsedBy::Unseen);
            for ((_, known), (_, ago)) in signals.iter_mut().zip(seen.ago_ms.each()) {
                *known = (*known).max(ago.map(then));
            }
        }
        if let Some(at) = placed.extended {
            later(at, UsedBy::Extended);
        }
        // Of several that go on, the plainest is named.
        let going_on = |at: Timestamp| at.after(NOW) >= now;
        let first = signals.iter().find(|(_, at)| at.is_some_and(going_on));
        for (signal, at) in signals {
            if let Some(at) = at {
                later(at, UsedBy::Signal(signal));
            }
        }
        if let Some((signal, _)) = first {
            last.by = UsedBy::Signal(*signal);
        }
        Some(last)
    }

    /// What is shown of the use of a job; none: it does not run.
    pub fn job_use(&self, job: &Job) -> Option<JobUse> {
        let now = self.ticked;
        let placed = job.placed().filter(|placed| placed.ending.is_none())?;
        if job.state() != JobState::Running {
            return None;
        }
        let seen: Vec<Seen> = (0..placed.ranks.len())
            .filter_map(|rank| self.said(job, placed, rank, now)?.1.seen)
            .collect();
        let policy = self.idle_policy(job);
        let last = self.last_use(job, now);
        let about = self.idle.get(&job.id);
        let ends = policy.zip(last).map(|(policy, last)| last.at.after(policy.after));
        let ends = about.map(|about| about.ends).max(ends);
        let used = about.is_none() && last.is_some_and(|last| last.goes_on(now));
        let gpu_percent = seen.iter().filter_map(|seen| seen.gpu_percent).max();
        let cpu_percent = seen.iter().filter_map(|seen| seen.cpu_percent);
        let cpu_percent = cpu_percent.reduce(u32::saturating_add);
        let held_by = match (last, about, ends) {
            (None, ..) => "not measured".to_owned(),
            (Some(last), Some(_), Some(ends)) => format!(
                "nothing for {}: ends in {}",
                length(now.since(last.at)),
                length(ends.since(now))
            ),
            (Some(last), ..) => held_by(last, now, gpu_percent, cpu_percent),
        };
        Some(JobUse {
            gpu_percent,
            cpu_percent,
            connections: self.connections(job, placed),
            idle_since: last.filter(|_| !used).map(|last| last.at),
            ends: ends.filter(|_| !used),
            warned: about.is_some(),
            after: policy.map(|policy| policy.after),
            held_by,
        })
    }

    /// What a job uses, or last used, of CPUs and memory on each of its nodes, by rank: as kept, and as its nodes have
    /// said since. Memory of now is nothing once it is over, and while its node is not heard.
    pub fn host_use(&self, job: &Job) -> Vec<HostUse> {
        let Some(placed) = job.last_placed() else {
            return Vec::new();
        };
        let key = JobKey {
            job: job.id,
            generation: placed.generation,
        };
        let parts = placed.allocation.nodes.iter().zip(&placed.ranks);
        let of = |(part, status): (&NodeAllocation, &RankStatus)| {
            let mut host = status.metered.host;
            let link = self.links.get(&part.node);
            let observed = link.and_then(|link| link.observed.as_ref());
            if let Some(said) = observed.and_then(|observed| observed.activity.get(&key)) {
                host.take(said.host);
            }
            let heard = link.is_some_and(|link| link.connected);
            if !heard || job.state() != JobState::Running {
                host.memory_bytes = 0;
            }
            host
        };
        parts.map(of).collect()
    }

    fn connections(&self, job: &Job, placed: &Placed) -> u32 {
        let of = |node: &NodeName| {
            let observed = self.links.get(node)?.observed.as_ref()?;
            let mut jobs = observed.jobs.iter();
            let own = jobs.find(|seen| seen.key.job == job.id && seen.key.generation == placed.generation)?;
            Some(own.connections)
        };
        let nodes = placed.allocation.nodes.iter();
        nodes.filter_map(|part| of(&part.node)).sum()
    }

    /// All nodes of a job have acted on it as it stands now.
    fn all_know(&self, id: JobId, placed: &Placed) -> bool {
        placed.allocation.nodes.iter().all(|part| {
            self.links.get(&part.node).is_some_and(|link| {
                let since = link.since.get(&id).copied().unwrap_or(1);
                link.connected && link.has_applied(&self.cluster, since)
            })
        })
    }
}

impl LastUse {
    /// It is used, as far as anybody can tell.
    fn goes_on(self, now: Timestamp) -> bool {
        matches!(self.by, UsedBy::Signal(_)) && self.at.after(NOW) >= now
    }
}

/// "gpu 97 %", "terminal input 2 min ago".
fn held_by(last: LastUse, now: Timestamp, gpu: Option<u32>, cpu: Option<u32>) -> String {
    let ago = || format!("{} ago", length(now.since(last.at)));
    let percent = |signal: Signal, percent: Option<u32>| match percent {
        Some(percent) => format!("{} {percent} %", signal.name()),
        None => signal.name().to_owned(),
    };
    match last.by {
        UsedBy::Signal(Signal::Gpu) if last.goes_on(now) => percent(Signal::Gpu, gpu),
        UsedBy::Signal(Signal::Cpu) if last.goes_on(now) => percent(Signal::Cpu, cpu),
        UsedBy::Signal(signal) => format!("{} {}", signal.name(), ago()),
        UsedBy::Extended => format!("extended {}", ago()),
        UsedBy::Started => format!("started {}", ago()),
        UsedBy::Unseen => format!("first looked at {}", ago()),
    }
}

/// Not worth a write: a job that does nothing has some CPU time all the same.
fn is_about_the_same(one: HostUse, other: HostUse) -> bool {
    let times = [one, other].map(|host| host.cpu_us().unwrap_or(0) / WORTH_US);
    times[0] == times[1] && one.peak_bytes == other.peak_bytes
}

/// "3 h 10 min", "2 min", "40 s".
fn length(time: Duration) -> String {
    let (hours, minutes) = (time.as_secs() / 3600, time.as_secs() / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{} s", time.as_secs()),
        (0, _) => format!("{minutes} min"),
        (_, 0) => format!("{hours} h"),
        _ => format!("{hours} h {minutes} min"),
    }
}

impl Broker {
    /// Looks at the sessions of a node that has just spoken: warns those that are not used, and ends those that
    /// were warned for long enough.
    pub(super) fn see_idle(&mut self, now: Timestamp, node: &NodeName) {
        for id in held_on(&self.state, node) {
            let Some(job) = self.state.jobs.get(&id).cloned() else {
                continue;
            };
            let Some(policy) = self.state.idle_policy(&job) else {
                self.forget_idle(&job);
                continue;
            };
            // Who is not heard is neither used nor idle.
            let Some(last) = self.state.last_use(&job, now) else {
                continue;
            };
            let due = last.at.after(policy.after);
            let near = now.after(policy.warn) >= due;
            match self.state.idle.get(&id).copied() {
                None if near => {
                    let ends = due.max(now.after(policy.warn));
                    self.put_idle(&job, Some(IdleEnd { ends, told: None }));
                }
                None => {}
                Some(_) if !near => self.put_idle(&job, None),
                Some(about) => self.go_on_idle(now, &job, (policy, last), about),
            }
        }
    }

    /// A session that has been warned is still not used.
    fn go_on_idle(
        &mut self,
        now: Timestamp,
        job: &Job,
        (policy, last): (IdlePolicy, LastUse),
        about: IdleEnd,
    ) {
        let all_know = job
            .placed()
            .is_some_and(|placed| self.state.all_know(job.id, placed));
        if !all_know {
            return;
        }
        let Some(_) = about.told else {
            // Who heard it late has as much time from then on; some of it may be lost on the way.
            let late = now.after(policy.warn * 3 / 4) > about.ends;
            let ends = if late { now.after(policy.warn) } else { about.ends };
            let told = Some(now);
            if late {
                self.put_idle(job, Some(IdleEnd { ends, told }));
            } else {
                self.state.idle.insert(job.id, IdleEnd { ends, told });
            }
            return;
        };
        if now < about.ends || now < last.at.after(policy.after) {
            return;
        }
        let reason = format!(
            "idle since {}: nobody typed or worked through a connection, and neither GPUs nor CPUs did anything, for {}",
            last.at.utc(),
            length(now.since(last.at))
        );
        self.end_job(
            now,
            job.id,
            Ending {
                state: JobState::Timeout,
                reason,
                exit_code: None,
            },
        );
    }

    /// A session is used again.
    pub(super) fn forget_idle(&mut self, job: &Job) {
        if self.state.idle.contains_key(&job.id) {
            self.put_idle(job, None);
        }
    }

    fn put_idle(&mut self, job: &Job, about: Option<IdleEnd>) {
        match about {
            Some(about) => self.state.idle.insert(job.id, about),
            None => self.state.idle.remove(&job.id),
        };
        let parts = job.placed().map(|placed| placed.allocation.nodes.clone());
        for part in parts.into_iter().flatten() {
            self.touch_job(&part.node, job.id);
        }
    }

    /// Keeps what a node has counted of a job's use of GPUs, CPUs and memory: now and then, and when it ends.
    pub(super) fn keep_use(
        &mut self,
        now: Timestamp,
        (node, id): (&NodeName, JobId),
        former: Option<&Observed>,
        observed: &Observed,
    ) {
        let Some(job) = self.state.jobs.get(&id).cloned() else {
            return;
        };
        let Some(placed) = job.placed() else { return };
        let Some(rank) = rank_on(placed, node) else { return };
        let key = JobKey {
            job: id,
            generation: placed.generation,
        };
        let said = observed.activity.get(&key);
        let former = former.and_then(|former| former.activity.get(&key));
        if said.or(former).is_none() {
            return;
        }
        let mut metered = placed.ranks[rank].metered.clone();
        // A new agent may have seen nothing of it yet.
        let another = said.is_none_or(|said| metered.is_of_another(&said.counter));
        if another && let Some(former) = former {
            // What the agent before this one had counted since it was last kept.
            metered.take_all(former);
        }
        // A new agent has not seen the peak of memory that the one before it had.
        if let Some(said) = said {
            metered.take_all(said);
        }
        let mut seen = observed.jobs.iter().filter(|seen| seen.key == key);
        let ends = seen.any(|seen| match seen.phase {
            ObservedPhase::Stopping | ObservedPhase::Released => true,
            ObservedPhase::Preparing | ObservedPhase::Ready => false,
        });
        let due = another || ends || metered.kept.after(KEEP) <= now;
        let kept = &placed.ranks[rank].metered;
        let same_host = if ends {
            metered.host == kept.host
        } else {
            is_about_the_same(metered.host, kept.host)
        };
        if !due || metered.total() == kept.total() && same_host && !(another && said.is_some()) {
            return;
        }
        metered.kept = now;
        let mut placed = placed.clone();
        placed.ranks[rank].metered = metered;
        self.put_job(job.with_placed(placed));
    }
}
