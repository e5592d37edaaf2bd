//! What a job has used of CPUs and memory, as fields and in words.

use std::time::Duration;

use carrel_proto::v1;
use serde::Serialize;

use super::used_percent;
use crate::output::visible;
use crate::units;

/// Of its last run; null: it was not measured.
#[derive(Debug, Serialize)]
pub struct HostUseFields {
    /// CPU time outside of the kernel and in it, over all its nodes.
    cpu_user_seconds: Option<f64>,
    cpu_system_seconds: Option<f64>,
    /// How much that is of the CPUs that it held, while it held them.
    cpu_used_percent: Option<f64>,
    /// What it has now, over all its nodes; null: it does not run.
    memory_used_bytes: Option<u64>,
    /// The most that was seen on one node, and on which.
    memory_peak_bytes: Option<u64>,
    memory_peak_node: Option<String>,
}

/// What a job has used, beside what it held.
#[derive(Clone, Copy, Debug)]
pub struct HostUse<'a> {
    used: &'a v1::HostUseInAll,
    /// CPUs that it held.
    cpus: u32,
    /// For how long.
    held: Duration,
    /// Memory that it may have on the node with the most, bytes; 0: not known.
    limit: u64,
    nodes: usize,
}

impl<'a> HostUse<'a> {
    /// Of a job; none: it was not measured. `now_ms` is for one that runs.
    pub fn of(job: &'a v1::Job, now_ms: i64) -> Option<Self> {
        let used = job.host_use.as_ref()?;
        let most = usize::try_from(used.memory_peak_rank).unwrap_or(usize::MAX);
        let held = job.ended_ms.unwrap_or(now_ms) - job.started_ms?;
        Some(Self {
            used,
            cpus: job.nodes.iter().map(|node| node.cpus).sum(),
            held: Duration::from_millis(u64::try_from(held).unwrap_or(0)),
            limit: job.nodes.get(most).map_or(0, |node| node.memory_bytes),
            nodes: job.nodes.len(),
        })
    }

    /// Of a job of the history.
    pub fn past(job: &'a v1::HistoryJob) -> Option<Self> {
        let nodes = job.node_count.max(1);
        Some(Self {
            used: job.host_use.as_ref()?,
            cpus: job.cpus,
            held: Duration::from_millis(job.elapsed_ms),
            limit: job.memory_bytes / u64::from(nodes),
            nodes: nodes as usize,
        })
    }

    fn sum(self) -> v1::HostUse {
        self.used.sum.unwrap_or_default()
    }

    /// All CPU time; none: it was not measured.
    fn cpu(self) -> Option<Duration> {
        let sum = self.sum();
        let all = Duration::from_micros(sum.cpu_user_us.saturating_add(sum.cpu_system_us));
        (!all.is_zero()).then_some(all)
    }

    /// How much of the CPUs that it held it used, per cent.
    pub fn cpu_percent(self) -> Option<f64> {
        let of = self.held.as_secs_f64() * f64::from(self.cpus);
        (of > 0.0).then_some(100.0 * self.cpu()?.as_secs_f64() / of)
    }

    /// The most memory on one node, bytes; none: it was not measured.
    pub fn peak(self) -> Option<u64> {
        (self.used.memory_peak_bytes > 0).then_some(self.used.memory_peak_bytes)
    }

    /// "1:02:03, 43 % of 8 CPUs (0:12 of it in the kernel)"; empty: it was not measured.
    pub fn cpu_text(self) -> String {
        let Some(all) = self.cpu() else {
            return String::new();
        };
        let system = Duration::from_micros(self.sum().cpu_system_us);
        let share = match self.cpu_share() {
            share if share.is_empty() => share,
            share => format!(", {share}"),
        };
        format!(
            "{}{share} ({} of it in the kernel)",
            units::clock(all),
            units::clock(system)
        )
    }

    /// "43 % of 8 CPUs".
    fn cpu_share(self) -> String {
        let cpus = if self.cpus == 1 { "CPU" } else { "CPUs" };
        let percent = self.cpu_percent();
        percent.map_or_else(String::new, |percent| {
            format!("{percent:.0} % of {} {cpus}", self.cpus)
        })
    }

    /// "peak 3.1G of 16G on n2, 2G now"; empty: it was not measured.
    pub fn memory_text(self) -> String {
        let Some(peak) = self.peak_share() else {
            return String::new();
        };
        let place = match self.nodes {
            0 | 1 => String::new(),
            _ => format!(" on {}", visible(&self.used.memory_peak_node)),
        };
        let now = match (self.sum().memory_bytes, self.nodes) {
            (0, _) => String::new(),
            (now, 0 | 1) => format!(", {} now", units::bytes(now)),
            (now, nodes) => format!(", {} now on {nodes} nodes", units::bytes(now)),
        };
        format!("peak {peak}{place}{now}")
    }

    /// "3.1G of 16G".
    fn peak_share(self) -> Option<String> {
        let peak = units::bytes(self.peak()?);
        Some(match self.limit {
            0 => peak,
            limit => format!("{peak} of {}", units::bytes(limit)),
        })
    }

    /// The fields.
    pub fn fields(this: Option<Self>) -> HostUseFields {
        let seconds = |micros: u64| Duration::from_micros(micros).as_secs_f64();
        let timed = this.filter(|this| this.cpu().is_some());
        let now = this.map(|this| this.sum().memory_bytes);
        let peak = this.and_then(Self::peak);
        HostUseFields {
            cpu_user_seconds: timed.map(|this| seconds(this.sum().cpu_user_us)),
            cpu_system_seconds: timed.map(|this| seconds(this.sum().cpu_system_us)),
            cpu_used_percent: this.and_then(Self::cpu_percent),
            memory_used_bytes: now.filter(|bytes| *bytes > 0),
            memory_peak_bytes: peak,
            memory_peak_node: this
                .filter(|_| peak.is_some())
                .map(|this| this.used.memory_peak_node.clone()),
        }
    }
}

/// How well a job that is over used what it held: "CPU 43 % of 8 CPUs, memory 3.1G of 16G, GPU 87 %"; empty: it is not
/// over, or nothing was measured.
pub fn efficiency(job: &v1::Job) -> String {
    let Some(ended) = job.ended_ms else {
        return String::new();
    };
    let used = HostUse::of(job, ended);
    let cpu = used.map(HostUse::cpu_share).filter(|share| !share.is_empty());
    let gpu = job.measured.and_then(used_percent);
    let parts = [
        cpu.map(|share| format!("CPU {share}")),
        used.and_then(HostUse::peak_share)
            .map(|share| format!("memory {share}")),
        gpu.map(|percent| format!("GPU {percent:.0} %")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, memory_bytes: u64) -> v1::NodeAllocation {
        v1::NodeAllocation {
            node: name.into(),
            cpus: 4,
            memory_bytes,
            ..v1::NodeAllocation::default()
        }
    }

    fn job() -> v1::Job {
        v1::Job {
            started_ms: Some(1_000_000),
            ended_ms: Some(1_100_000),
            nodes: vec![node("n1", 8 << 30), node("n2", 16 << 30)],
            measured: Some(v1::MeasuredUse {
                used_gpu_hours: 0.87,
                measured_gpu_hours: 1.0,
            }),
            host_use: Some(v1::HostUseInAll {
                sum: Some(v1::HostUse {
                    cpu_user_us: 300_000_000,
                    cpu_system_us: 44_000_000,
                    memory_bytes: 0,
                    memory_peak_bytes: 4 << 30,
                }),
                nodes: 2,
                memory_peak_bytes: 3_328 << 20,
                memory_peak_node: "n2".into(),
                memory_peak_rank: 1,
                ..v1::HostUseInAll::default()
            }),
            ..v1::Job::default()
        }
    }

    #[test]
    fn what_was_used_is_said_beside_what_was_held() {
        let over = job();
        assert_eq!(
            efficiency(&over),
            "CPU 43 % of 8 CPUs, memory 3.2G of 16G, GPU 87 %"
        );
        let used = HostUse::of(&over, 0).expect("measured");
        assert_eq!(used.cpu_text(), "5:44, 43 % of 8 CPUs (0:44 of it in the kernel)");
        assert_eq!(used.memory_text(), "peak 3.2G of 16G on n2");

        let mut runs = v1::Job {
            ended_ms: None,
            nodes: vec![node("n1", 8 << 30)],
            ..job()
        };
        assert_eq!(efficiency(&runs), "", "it is not over");
        let measured = runs.host_use.as_mut().expect("measured");
        measured.memory_peak_rank = 0;
        measured.sum.as_mut().expect("measured").memory_bytes = 2 << 30;
        let used = HostUse::of(&runs, 1_200_000).expect("measured");
        assert_eq!(used.memory_text(), "peak 3.2G of 8G, 2G now");
        assert!(used.cpu_text().contains("43 % of 4 CPUs"), "{}", used.cpu_text());
    }

    #[test]
    fn what_was_not_measured_is_left_out() {
        let unknown = v1::Job {
            host_use: None,
            measured: None,
            ..job()
        };
        assert_eq!(efficiency(&unknown), "");
        let fields = serde_json::to_value(HostUse::fields(None)).expect("JSON");
        assert!(
            fields
                .as_object()
                .expect("an object")
                .values()
                .all(serde_json::Value::is_null)
        );
        // CPU time alone.
        let mut timed = job();
        timed.measured = None;
        timed.host_use.as_mut().expect("measured").memory_peak_bytes = 0;
        assert_eq!(efficiency(&timed), "CPU 43 % of 8 CPUs");
        let used = HostUse::of(&timed, 0).expect("measured");
        assert_eq!(used.memory_text(), "");
        let fields = serde_json::to_value(HostUse::fields(Some(used))).expect("JSON");
        assert_eq!(fields["cpu_user_seconds"], 300.0);
        assert_eq!(fields["cpu_used_percent"], 43.0);
        assert!(fields["memory_peak_bytes"].is_null() && fields["memory_peak_node"].is_null());
    }
}
