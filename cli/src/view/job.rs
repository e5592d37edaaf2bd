//! Jobs, what they asked for, and what they hold.

use std::time::Duration;

use carrel_proto::v1;
use carrel_proto::v1::gpu_unit_request::Unit;
use serde::Serialize;

use super::host_use::{HostUse, HostUseFields};
use super::words::{job_kind, job_state};
use super::{ArrayFields, some, used_percent};
use crate::times;
use crate::units::rfc3339;

/// A job.
#[derive(Debug, Serialize)]
pub struct Job {
    id: u64,
    name: String,
    kind: &'static str,
    state: &'static str,
    user: String,
    reason: String,
    submitted: String,
    started: Option<String>,
    deadline: Option<String>,
    ended: Option<String>,
    nodes: Vec<NodeAllocation>,
    exit_code: Option<i32>,
    queue_position: Option<u32>,
    /// When it starts at the latest, while it waits; null: nothing is promised.
    latest_start: Option<String>,
    request: Option<Request>,
    time_limit_seconds: u64,
    image: String,
    isolation: Option<String>,
    account: Option<String>,
    qos: Option<String>,
    partition: Option<String>,
    reservation: Option<String>,
    nice: i32,
    restarts: u32,
    /// Nodes that it keeps off while it waits, because it failed there at once.
    keeps_off: Vec<KeptOff>,
    batch: Option<Batch>,
    /// Use of the busiest of its GPUs; null: it is not known.
    gpu_percent: Option<u32>,
    /// CPU time of its processes, per cent of one hardware thread.
    cpu_percent: Option<u32>,
    /// What it is used by, "gpu 97 %"; null: it does not run.
    held_by: Option<String>,
    /// Since when it is not used; null: it is, or that is not known.
    idle_since: Option<String>,
    /// When it ends if that goes on; null: it is used, or does not end for that.
    idle_ends_at: Option<String>,
    /// After how long without use it ends; null: it does not.
    idle_after_seconds: Option<u64>,
    /// Of its last run; null: it was not measured.
    used_gpu_hours: Option<f64>,
    used_percent: Option<f64>,
    #[serde(flatten)]
    host_use: HostUseFields,
    #[serde(flatten)]
    array: ArrayFields,
}

/// A node that a job keeps off for a while.
#[derive(Debug, Serialize)]
pub struct KeptOff {
    node: String,
    until: String,
}

impl From<v1::KeptOff> for KeptOff {
    fn from(one: v1::KeptOff) -> Self {
        Self {
            node: one.node,
            until: rfc3339(one.until_ms),
        }
    }
}

/// What a batch job runs.
#[derive(Debug, Serialize)]
pub struct Batch {
    /// Of a script, its arguments only.
    command: Vec<String>,
    script: bool,
    workdir: Option<String>,
    stdout: String,
    /// Null: where standard output goes.
    stderr: Option<String>,
    requeue: bool,
    submit_host: Option<String>,
    submit_dir: Option<String>,
    /// Of what mail is sent; null: of nothing.
    mail_type: Option<String>,
    /// To whom; null: its user, by name.
    mail_user: Option<String>,
    /// What its user says of it.
    comment: Option<String>,
}

impl From<v1::Batch> for Batch {
    fn from(batch: v1::Batch) -> Self {
        Self {
            command: batch.command,
            script: batch.script,
            workdir: some(batch.workdir),
            stdout: batch.stdout,
            stderr: some(batch.stderr),
            requeue: batch.requeue,
            submit_host: some(batch.submit_host),
            submit_dir: some(batch.submit_dir),
            mail_type: some(batch.mail_type),
            mail_user: some(batch.mail_user),
            comment: some(batch.comment),
        }
    }
}

/// What a job holds on one node.
#[derive(Debug, Serialize)]
pub struct NodeAllocation {
    node: String,
    gpus: Vec<Gpu>,
    cpus: u32,
    memory_bytes: u64,
    fence: Option<Fence>,
    oom_kills: u32,
    cpuset: Option<String>,
    mems: Option<String>,
    switch_path: Option<String>,
    block: Option<String>,
    /// What its container has of its gang's network: "routed", "host"; null: nothing.
    network: Option<&'static str>,
    /// Its address there; null: it has none of its own.
    address: Option<String>,
    /// CPU time there, and memory now and at most; null: it was not measured, or it does not run.
    cpu_user_seconds: Option<f64>,
    cpu_system_seconds: Option<f64>,
    memory_used_bytes: Option<u64>,
    memory_peak_bytes: Option<u64>,
}

/// A fence that held when it was tried.
#[derive(Debug, Serialize)]
pub struct Fence {
    checks: u32,
    micros: u32,
}

/// A GPU of an allocation.
#[derive(Debug, Serialize)]
pub struct Gpu {
    uuid: String,
    /// Null: its node does not list it any more.
    index: Option<u32>,
    model: String,
    /// What of it; null: all of it.
    slice: Option<String>,
    /// "exclusive", "mig", "mps", "cooperative".
    isolation: String,
}

/// What a job asked for on each node.
#[derive(Debug, Serialize)]
pub struct Request {
    nodes: u32,
    gpus_per_node: u32,
    /// What each GPU is: "gpu", a MIG profile, "share"; null: the slice or GPU that is large enough.
    gpu_unit: Option<String>,
    /// Thousandths of a GPU, of a share.
    gpu_milli: Option<u32>,
    /// Memory of each, at least.
    gpu_memory_bytes: Option<u64>,
    gpu_model: Option<String>,
    nvlink: bool,
    cpus_per_node: u32,
    memory_bytes_per_node: u64,
    /// Whole nodes: the counts are the least that each has.
    exclusive: bool,
    /// All of each node's memory.
    all_memory: bool,
    constraints: Option<Constraints>,
    patience: Option<Patience>,
    more: Vec<Request>,
}

/// Which nodes may be a job's.
#[derive(Debug, Serialize)]
pub struct Constraints {
    nodelist: Option<String>,
    exclude: Option<String>,
    features: Option<String>,
    switches: Option<u32>,
    segment: Option<u32>,
    contiguous: bool,
}

/// For how long a request insists; none: for ever.
#[derive(Debug, Serialize)]
pub struct Patience {
    nvlink_seconds: Option<u64>,
    switches_seconds: Option<u64>,
}

impl From<v1::Job> for Job {
    fn from(job: v1::Job) -> Self {
        let terms = job.terms.clone().unwrap_or_default();
        let activity = job.activity.clone().unwrap_or_default();
        let host_use = HostUse::fields(HostUse::of(&job, times::now_ms()));
        Self {
            host_use,
            kind: job_kind(job.kind()),
            state: job_state(job.state()),
            id: job.id,
            name: job.name,
            user: job.user,
            reason: job.reason,
            submitted: rfc3339(job.submitted_ms),
            started: job.started_ms.map(rfc3339),
            deadline: job.deadline_ms.map(rfc3339),
            ended: job.ended_ms.map(rfc3339),
            nodes: job.nodes.into_iter().map(Into::into).collect(),
            exit_code: job.exit_code,
            queue_position: (job.queue_position > 0).then_some(job.queue_position),
            latest_start: job.latest_start_ms.map(rfc3339),
            request: job.request.map(Into::into),
            time_limit_seconds: job.time_limit_s,
            image: job.image,
            isolation: some(job.isolation),
            account: some(terms.account),
            qos: some(terms.qos),
            partition: some(terms.partition),
            reservation: some(terms.reservation),
            nice: terms.nice,
            restarts: job.restarts,
            keeps_off: job.keeps_off.into_iter().map(Into::into).collect(),
            batch: job.batch.map(Into::into),
            gpu_percent: activity.gpu_percent,
            cpu_percent: activity.cpu_percent,
            held_by: some(activity.held_by),
            idle_since: activity.idle_since_ms.map(rfc3339),
            idle_ends_at: activity.idle_ends_ms.map(rfc3339),
            idle_after_seconds: (activity.idle_after_s > 0).then_some(activity.idle_after_s),
            used_gpu_hours: job.measured.map(|measured| measured.used_gpu_hours),
            used_percent: job.measured.and_then(used_percent),
            array: job.array.into(),
        }
    }
}

impl From<v1::NodeAllocation> for NodeAllocation {
    fn from(held: v1::NodeAllocation) -> Self {
        let network = super::words::rank_network(held.network.as_ref());
        let address = match held.network.and_then(|network| network.kind) {
            Some(v1::rank_network::Kind::Address(address)) => Some(address),
            Some(v1::rank_network::Kind::Host(_)) | None => None,
        };
        let gpus = held.gpus.into_iter().map(Gpu::from);
        let host_use = held.host_use;
        let seconds = |micros: u64| Duration::from_micros(micros).as_secs_f64();
        let timed = host_use.filter(|used| used.cpu_user_us > 0 || used.cpu_system_us > 0);
        let bytes = |bytes: Option<u64>| bytes.filter(|bytes| *bytes > 0);
        Self {
            cpu_user_seconds: timed.map(|used| seconds(used.cpu_user_us)),
            cpu_system_seconds: timed.map(|used| seconds(used.cpu_system_us)),
            memory_used_bytes: bytes(host_use.map(|used| used.memory_bytes)),
            memory_peak_bytes: bytes(host_use.map(|used| used.memory_peak_bytes)),
            node: held.node,
            gpus: gpus.collect(),
            cpus: held.cpus,
            memory_bytes: held.memory_bytes,
            fence: held
                .fence
                .map(|v1::FenceReport { checks, micros }| Fence { checks, micros }),
            oom_kills: held.oom_kills,
            cpuset: some(held.cpuset),
            mems: some(held.mems),
            switch_path: some(held.switch_path),
            block: some(held.block),
            network,
            address,
        }
    }
}

impl From<v1::ResourceRequest> for Request {
    fn from(request: v1::ResourceRequest) -> Self {
        let (gpu_unit, gpu_milli) = match request.unit.and_then(|unit| unit.unit) {
            None | Some(Unit::Least(false)) => (Some("gpu".to_owned()), None),
            Some(Unit::Least(true)) => (None, None),
            Some(Unit::MigProfile(profile)) => (Some(profile), None),
            Some(Unit::Share(share)) => (Some("share".to_owned()), Some(share.milli)),
        };
        Self {
            nodes: request.nodes,
            gpus_per_node: request.gpus_per_node,
            gpu_unit,
            gpu_milli,
            gpu_memory_bytes: (request.gpu_memory_bytes > 0).then_some(request.gpu_memory_bytes),
            gpu_model: some(request.gpu_model),
            nvlink: request.nvlink,
            cpus_per_node: request.cpus_per_node,
            memory_bytes_per_node: request.memory_bytes_per_node,
            exclusive: request.exclusive,
            all_memory: request.all_memory,
            constraints: request.constraints.map(Into::into),
            patience: request.patience.map(Into::into),
            more: request.more.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<v1::NodeConstraints> for Constraints {
    fn from(wishes: v1::NodeConstraints) -> Self {
        let count = |count: u32| (count > 0).then_some(count);
        Self {
            nodelist: some(wishes.nodelist),
            exclude: some(wishes.exclude),
            features: some(wishes.features),
            switches: count(wishes.switches),
            segment: count(wishes.segment),
            contiguous: wishes.contiguous,
        }
    }
}

impl From<v1::Patience> for Patience {
    fn from(patience: v1::Patience) -> Self {
        Self {
            nvlink_seconds: patience.nvlink_ms.map(|ms| ms / 1000),
            switches_seconds: patience.switches_ms.map(|ms| ms / 1000),
        }
    }
}

impl From<v1::Gpu> for Gpu {
    fn from(gpu: v1::Gpu) -> Self {
        Self {
            uuid: gpu.uuid,
            index: (!gpu.gone).then_some(gpu.index),
            model: gpu.model,
            slice: some(gpu.slice),
            isolation: gpu.isolation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_s_documented_fields() {
        let job = v1::Job {
            id: 17,
            name: "dev".into(),
            kind: v1::JobKind::Interactive.into(),
            state: v1::JobState::Running.into(),
            user: "alice".into(),
            submitted_ms: 1_767_225_600_000,
            started_ms: Some(1_767_225_601_000),
            nodes: vec![v1::NodeAllocation {
                node: "h100-01".into(),
                gpus: vec![v1::Gpu {
                    uuid: "GPU-1".into(),
                    index: 3,
                    model: "NVIDIA H100".into(),
                    ..v1::Gpu::default()
                }],
                cpus: 8,
                memory_bytes: 1 << 30,
                fence: Some(v1::FenceReport {
                    checks: 40,
                    micros: 900,
                }),
                cpuset: "0-3,48-51".into(),
                host_use: Some(v1::HostUse {
                    cpu_user_us: 2_500_000,
                    cpu_system_us: 0,
                    memory_bytes: 0,
                    memory_peak_bytes: 4_096,
                }),
                network: Some(v1::RankNetwork {
                    kind: Some(v1::rank_network::Kind::Address("10.214.0.7".into())),
                }),
                ..Default::default()
            }],
            ..Default::default()
        };
        let json = serde_json::to_value(Job::from(job)).unwrap();
        let expected = serde_json::json!({
            "id": 17, "name": "dev", "kind": "interactive", "state": "RUNNING", "user": "alice", "reason": "",
            "submitted": "2026-01-01T00:00:00Z", "started": "2026-01-01T00:00:01Z", "deadline": null,
            "nodes": [{"node": "h100-01", "gpus": [{"uuid": "GPU-1", "index": 3, "model": "NVIDIA H100", "slice": null, "isolation": ""}],
                       "cpus": 8, "memory_bytes": 1_073_741_824, "fence": {"checks": 40, "micros": 900}, "oom_kills": 0,
                       "cpuset": "0-3,48-51", "mems": null,
                       "switch_path": null, "block": null,
                       "network": "routed", "address": "10.214.0.7",
                       "cpu_user_seconds": 2.5, "cpu_system_seconds": 0.0,
                       "memory_used_bytes": null, "memory_peak_bytes": 4_096}],
            "cpu_user_seconds": null, "cpu_used_percent": null, "memory_peak_bytes": null, "memory_peak_node": null,
            "exit_code": null,
        });
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&json[name], value, "{name}");
        }
    }
}
