//! What is done in a job, as its nodes measure it: whether somebody uses it, and how much of its GPUs, CPUs and memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::time::Timestamp;

/// By what a job is seen to be in use, the plainest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Signal {
    /// Its GPUs work.
    Gpu,
    /// Its processes have CPU time.
    Cpu,
    /// Somebody types into a terminal, or starts a command.
    Input,
    /// Somebody connects, or sends more through a connection than what keeps it open.
    Connection,
}

impl Signal {
    /// For sentences.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Input => "terminal input",
            Self::Connection => "connection",
        }
    }
}

/// One value for each signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signals<T> {
    /// Of [`Signal::Gpu`].
    pub gpu: T,
    /// Of [`Signal::Cpu`].
    pub cpu: T,
    /// Of [`Signal::Input`].
    pub input: T,
    /// Of [`Signal::Connection`].
    pub connection: T,
}

impl<T: Copy> Signals<T> {
    /// All of them, the plainest first.
    pub fn each(self) -> [(Signal, T); 4] {
        [
            (Signal::Gpu, self.gpu),
            (Signal::Cpu, self.cpu),
            (Signal::Input, self.input),
            (Signal::Connection, self.connection),
        ]
    }
}

/// From what on work counts as use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Of the busiest of a job's GPUs, per cent of that GPU's time.
    pub gpu_percent: u32,
    /// Of all processes of a job on a node together, per cent of one hardware thread.
    pub cpu_percent: u32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            gpu_percent: 5,
            cpu_percent: 10,
        }
    }
}

/// What a node says of the use of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// What was seen of it; none: it was not looked at lately, so nothing is known.
    pub seen: Option<Seen>,
    /// What was counted of it.
    pub counter: Counter,
    /// What it used of the node's CPUs and memory.
    pub host: HostUse,
}

/// What was seen of a job by somebody who looked at it again and again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// For so long without a gap, milliseconds: what was before that is not known.
    pub for_ms: u64,
    /// How long ago there was a sign of use, milliseconds; none: there was none in that time.
    pub ago_ms: Signals<Option<u64>>,
    /// Use of the busiest of its GPUs, per cent; none: it cannot be measured.
    pub gpu_percent: Option<u32>,
    /// CPU time of its processes, per cent of one hardware thread.
    pub cpu_percent: Option<u32>,
}

/// How much GPUs were used, in thousandths of a GPU times milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Busy.
    pub busy: u64,
    /// Held while that was measured: a slice or a share counts as the part that it is.
    pub measured: u64,
}

impl Used {
    /// Adds to both.
    pub fn add(&mut self, other: Self) {
        self.busy = self.busy.saturating_add(other.busy);
        self.measured = self.measured.saturating_add(other.measured);
    }

    /// Whichever was counted longer.
    fn later(self, other: Self) -> Self {
        if other.measured > self.measured {
            other
        } else {
            self
        }
    }
}

/// What a job used of a node's CPUs and memory since it started there, by its cgroup.
///
/// Memory is what its processes have of their own, in anonymous pages, and what they share in memory alone (tmpfs,
/// `/dev/shm`): what fills its limit, and what the kernel cannot take back as it takes back pages of files. Those are
/// left out, so this is what Slurm calls RSS. It is looked at again and again, and what comes and goes between two looks
/// is not seen; only where the kernel has ended processes for want of memory does its own mark of the highest use count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostUse {
    /// CPU time outside of the kernel, microseconds. With [`Self::system_us`] 0 too: not measured.
    pub user_us: u64,
    /// CPU time in the kernel, microseconds.
    pub system_us: u64,
    /// Memory when it was last looked at, bytes.
    pub memory_bytes: u64,
    /// The most memory that was seen, bytes; 0: not measured.
    pub peak_bytes: u64,
}

impl HostUse {
    /// Takes in what was said after this, or before it, or of the same moment: times and peak never fall.
    pub fn take(&mut self, said: Self) {
        // One reading: its parts belong together.
        if said.user_us.saturating_add(said.system_us) > self.user_us.saturating_add(self.system_us) {
            (self.user_us, self.system_us) = (said.user_us, said.system_us);
        }
        self.memory_bytes = said.memory_bytes;
        self.peak_bytes = self.peak_bytes.max(said.peak_bytes).max(said.memory_bytes);
    }

    /// All CPU time, microseconds; none: it was not measured.
    pub fn cpu_us(&self) -> Option<u64> {
        let all = self.user_us.saturating_add(self.system_us);
        (all > 0).then_some(all)
    }

    /// Nothing was measured.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Use that one agent process has counted of a job's GPUs, by model. It only grows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// When counting began, boot milliseconds of the node: tells this counter from one before it.
    pub since: u64,
    /// By the GPU's model; one that could not be measured has none.
    pub by_model: BTreeMap<String, Used>,
}

/// Use of a job's GPUs, and of CPUs and memory, on one node, whatever agents have counted it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metered {
    /// What was counted before the counter of now.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    before: BTreeMap<String, Used>,
    /// The counter of now, as it last was.
    counter: Counter,
    /// What it used of the node's CPUs and memory.
    #[serde(default, skip_serializing_if = "HostUse::is_nothing")]
    pub host: HostUse,
    /// When this was last kept.
    pub kept: Timestamp,
}

impl Metered {
    /// Takes in what a node says. Hearing the same again, or something older, changes nothing.
    pub fn take(&mut self, said: &Counter) {
        if said.since != self.counter.since {
            let former = std::mem::take(&mut self.counter);
            for (model, used) in former.by_model {
                self.before.entry(model).or_default().add(used);
            }
            self.counter.since = said.since;
        }
        for (model, used) in &said.by_model {
            let known = self.counter.by_model.entry(model.clone()).or_default();
            *known = known.later(*used);
        }
    }

    /// Takes in all that a node says.
    pub fn take_all(&mut self, said: &Activity) {
        self.take(&said.counter);
        self.host.take(said.host);
    }

    /// The counter of now is another one than this.
    pub fn is_of_another(&self, said: &Counter) -> bool {
        said.since != self.counter.since
    }

    /// All of it, by model; none of what was never measured.
    pub fn total(&self) -> BTreeMap<String, Used> {
        let mut total = self.before.clone();
        for (model, used) in &self.counter.by_model {
            total.entry(model.clone()).or_default().add(*used);
        }
        total.retain(|_, used| used.measured > 0);
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(since: u64, busy: u64, measured: u64) -> Counter {
        Counter {
            since,
            by_model: [("H100".to_owned(), Used { busy, measured })].into(),
        }
    }

    #[test]
    fn what_agents_count_one_after_the_other_adds_up() {
        let mut metered = Metered::default();
        assert!(metered.total().is_empty());
        for (said, total) in [
            (counter(5, 10, 20), (10, 20)),
            (counter(5, 30, 40), (30, 40)),
            // Again, and late.
            (counter(5, 30, 40), (30, 40)),
            (counter(5, 10, 20), (30, 40)),
            // Another agent begins anew.
            (counter(900, 0, 0), (30, 40)),
            (counter(900, 5, 8), (35, 48)),
        ] {
            metered.take(&said);
            let used = metered.total()["H100"];
            assert_eq!((used.busy, used.measured), total, "{said:?}");
        }
    }

    #[test]
    fn cpu_time_and_the_peak_of_memory_never_fall() {
        let said = |user_us, system_us, memory_bytes, peak_bytes| HostUse {
            user_us,
            system_us,
            memory_bytes,
            peak_bytes,
        };
        let mut host = HostUse::default();
        assert!(host.is_nothing() && host.cpu_us().is_none());
        for (one, sum) in [
            (said(5, 1, 100, 0), said(5, 1, 100, 100)),
            (said(9, 3, 40, 70), said(9, 3, 40, 100)),
            // A new agent that has seen no peak, and a late word.
            (said(10, 3, 50, 50), said(10, 3, 50, 100)),
            (said(9, 3, 60, 100), said(10, 3, 60, 100)),
            // At its end its memory is gone, and the kernel's mark is known.
            (said(12, 4, 0, 300), said(12, 4, 0, 300)),
        ] {
            host.take(one);
            assert_eq!(host, sum, "{one:?}");
        }
        assert_eq!(host.cpu_us(), Some(16));
    }

    #[test]
    fn what_was_never_measured_is_not_nothing() {
        let mut metered = Metered::default();
        metered.take(&Counter {
            since: 1,
            by_model: BTreeMap::new(),
        });
        metered.take(&counter(1, 0, 0));
        assert!(metered.total().is_empty());
        metered.take(&counter(1, 0, 7));
        assert_eq!(metered.total()["H100"].busy, 0);
    }
}
