//! The JSON that programs read: field names are a promise (docs/cli.md). Times are RFC 3339 in
//! UTC; what is absent is null.

use std::collections::BTreeMap;

use carrel_proto::v1;
use carrel_proto::v1::gpu_unit_request::Unit;
use serde::Serialize;

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
    request: Option<Request>,
    time_limit_seconds: u64,
    image: String,
    isolation: Option<String>,
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
    index: u32,
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

/// A session, with its live or last job.
#[derive(Debug, Serialize)]
pub struct Session {
    id: u64,
    name: String,
    state: &'static str,
    user: String,
    reason: String,
    image: String,
    created: String,
    ephemeral: bool,
    host_principal: String,
    ssh_alias: String,
    shares: Vec<Share>,
    job: Option<Job>,
}

/// A node.
#[derive(Debug, Serialize)]
pub struct Node {
    name: String,
    state: String,
    reason: Option<String>,
    gpus: Vec<NodeGpu>,
    gpus_total: usize,
    gpus_free: usize,
    cpus: u32,
    cpus_held: u32,
    memory_bytes: u64,
    memory_held_bytes: u64,
    driver_version: Option<String>,
    os: String,
    gpu_note: Option<String>,
    isolation: Option<String>,
    last_contact: String,
    version: String,
    images: Vec<String>,
    unknown_containers: Vec<String>,
    cpu_holders: Vec<CpuHolder>,
    features: Vec<String>,
    switch_path: Option<String>,
    block: Option<String>,
}

/// A job that has CPUs of a node for itself.
#[derive(Debug, Serialize)]
pub struct CpuHolder {
    job: u64,
    cpuset: String,
    mems: Option<String>,
}

/// A GPU of a node.
#[derive(Debug, Serialize)]
pub struct NodeGpu {
    uuid: String,
    index: u32,
    model: String,
    memory_bytes: u64,
    pci_address: String,
    numa_node: Option<u32>,
    cpu_affinity: Option<String>,
    /// To each GPU of the node, in their order; none to itself.
    links: Vec<Option<String>>,
    mig_enabled: bool,
    /// Slices that it is cut into.
    mig_instances: Vec<MigInstance>,
    /// How jobs may share it: "time-slice", "mps"; null: they may not.
    sharing: Option<&'static str>,
    drained: Option<String>,
    /// The first who holds something of it.
    job: Option<u64>,
    /// Who holds what of it.
    holders: Vec<GpuHolder>,
}

/// A MIG slice that there is.
#[derive(Debug, Serialize)]
pub struct MigInstance {
    profile: String,
    /// First of its memory slices.
    start: u32,
    uuid: String,
}

/// Who holds what of a GPU.
#[derive(Debug, Serialize)]
pub struct GpuHolder {
    job: u64,
    /// Null: all of it.
    slice: Option<String>,
    isolation: String,
}

/// What nodes run and no record knows.
#[derive(Debug, Serialize)]
pub struct Found {
    store: Option<String>,
    nodes: Vec<String>,
    jobs: Vec<FoundJob>,
}

/// A job that nodes run and no record knows.
#[derive(Debug, Serialize)]
pub struct FoundJob {
    job: String,
    name: String,
    user: Option<String>,
    cluster: String,
    session: Option<u64>,
    nodes: Vec<FoundPart>,
    nodes_total: u32,
    started: Option<String>,
    deadline: String,
    ending: bool,
    obstacle: Option<String>,
}

/// What one node holds for a found job.
#[derive(Debug, Serialize)]
pub struct FoundPart {
    node: String,
    gpus: Vec<String>,
    cpus: u32,
    memory_bytes: u64,
}

/// Why a job is where it is.
#[derive(Debug, Serialize)]
pub struct Explanation {
    job: Option<Job>,
    summary: String,
    refusals: Vec<Refusal>,
    ahead: Vec<u64>,
    latest_start: Option<String>,
    nearest: Option<String>,
    /// Of each node the slowest link.
    worst_links: Vec<String>,
    seats: Vec<Seat>,
}

/// What a job has, or would have, on one node.
#[derive(Debug, Serialize)]
pub struct Seat {
    node: String,
    gpus: Vec<Gpu>,
    /// Among its whole GPUs, row by row; null to itself.
    links: Vec<Vec<Option<String>>>,
    /// The slowest of them, and the indices of the GPUs that it joins.
    worst_link: Option<String>,
    worst_pair: Option<[u32; 2]>,
    numa_nodes: Vec<u32>,
    nics: Vec<String>,
    cpus: u32,
    memory_bytes: u64,
}

/// What would come of a request.
#[derive(Debug, Serialize)]
pub struct Plan {
    /// What was asked for comes first.
    choices: Vec<Choice>,
    refusals: Vec<Refusal>,
    nearest: Option<String>,
}

/// One way to have what was asked for, or nearly.
#[derive(Debug, Serialize)]
pub struct Choice {
    request: Option<Request>,
    /// At the latest; null: that cannot be said.
    start: Option<String>,
    now: bool,
    seats: Vec<Seat>,
}

/// What kept hosts out.
#[derive(Debug, Serialize)]
pub struct Refusal {
    reason: String,
    hosts: u32,
}

/// A user of the broker's directory.
#[derive(Debug, Serialize)]
pub struct User {
    name: String,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    home: String,
    shell: String,
    role: &'static str,
    group_names: BTreeMap<u32, String>,
}

/// An API token; never its secret.
#[derive(Debug, Serialize)]
pub struct Token {
    id: String,
    user: String,
    label: String,
    scope: &'static str,
    created: Option<String>,
    expires: String,
    last_used: Option<String>,
    last_used_from: Option<String>,
    by_sign_in: bool,
}

/// One user whom a session is shared with.
#[derive(Debug, Serialize)]
pub struct Share {
    user: String,
    mode: &'static str,
}

/// A record of the audit log.
#[derive(Debug, Serialize)]
pub struct AuditRecord {
    number: u64,
    at: String,
    user: Option<String>,
    origin: String,
    action: String,
    subject: String,
    outcome: String,
    detail: String,
}

/// A terminal of a session.
#[derive(Debug, Serialize)]
pub struct Terminal {
    id: u32,
    name: Option<String>,
    command: Option<String>,
    columns: u32,
    rows: u32,
    viewers: u32,
    read_only_viewers: u32,
    created: String,
    idle_seconds: u64,
    running: bool,
    exit_code: Option<u32>,
    exit_signal: Option<i32>,
}

impl From<v1::Terminal> for Terminal {
    fn from(terminal: v1::Terminal) -> Self {
        let by_signal = terminal.exit.filter(|exit| exit.signal != 0);
        let by_itself = terminal.exit.filter(|exit| exit.signal == 0);
        Self {
            id: terminal.id,
            name: some(terminal.name),
            command: some(terminal.command),
            columns: terminal.columns,
            rows: terminal.rows,
            viewers: terminal.writers + terminal.readers,
            read_only_viewers: terminal.readers,
            created: rfc3339(terminal.created_ms),
            idle_seconds: terminal.idle_ms / 1000,
            running: terminal.exit.is_none(),
            exit_code: by_itself.map(|exit| exit.status),
            exit_signal: by_signal.map(|exit| exit.signal),
        }
    }
}

/// Whether a terminal's command runs, or how it ended.
pub fn terminal_state(terminal: &v1::Terminal) -> String {
    match terminal.exit {
        None => "running".into(),
        Some(v1::TerminalExit { status, signal: 0 }) => format!("exited {status}"),
        Some(v1::TerminalExit { signal, .. }) => format!("killed by signal {signal}"),
    }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Slurm's word for a job's state.
pub fn job_state(state: v1::JobState) -> &'static str {
    use v1::JobState as S;
    match state {
        S::Unspecified => "UNKNOWN",
        S::Pending => "PENDING",
        S::Configuring => "CONFIGURING",
        S::Running => "RUNNING",
        S::Completing => "COMPLETING",
        S::Completed => "COMPLETED",
        S::Failed => "FAILED",
        S::Cancelled => "CANCELLED",
        S::Timeout => "TIMEOUT",
        S::Preempted => "PREEMPTED",
        S::NodeFail => "NODE_FAIL",
        S::OutOfMemory => "OUT_OF_MEMORY",
        S::Suspended => "SUSPENDED",
    }
}

/// A session's state.
pub fn session_state(state: v1::SessionState) -> &'static str {
    use v1::SessionState as S;
    match state {
        S::Unspecified => "UNKNOWN",
        S::Stopped => "STOPPED",
        S::Pending => "PENDING",
        S::Starting => "STARTING",
        S::Running => "RUNNING",
        S::Parked => "PARKED",
        S::Stopping => "STOPPING",
    }
}

/// A role.
pub fn role(role: v1::Role) -> &'static str {
    match role {
        v1::Role::Unspecified | v1::Role::User => "user",
        v1::Role::Operator => "operator",
        v1::Role::Admin => "admin",
    }
}

/// What a token is good for.
pub fn token_scope(scope: v1::TokenScope) -> &'static str {
    match scope {
        v1::TokenScope::Read => "read",
        v1::TokenScope::Sessions => "sessions",
        v1::TokenScope::Unspecified | v1::TokenScope::Full => "full",
    }
}

/// How far a session is shared.
pub fn share_mode(mode: v1::ShareMode) -> &'static str {
    match mode {
        v1::ShareMode::ReadOnly => "ro",
        v1::ShareMode::Unspecified | v1::ShareMode::Full => "full",
    }
}

fn job_kind(kind: v1::JobKind) -> &'static str {
    match kind {
        v1::JobKind::Unspecified => "unknown",
        v1::JobKind::Interactive => "interactive",
        v1::JobKind::Batch => "batch",
    }
}

impl From<v1::Job> for Job {
    fn from(job: v1::Job) -> Self {
        Self {
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
            request: job.request.map(Into::into),
            time_limit_seconds: job.time_limit_s,
            image: job.image,
            isolation: some(job.isolation),
        }
    }
}

impl From<v1::NodeAllocation> for NodeAllocation {
    fn from(held: v1::NodeAllocation) -> Self {
        let gpus = held.gpus.into_iter().map(|g| Gpu {
            uuid: g.uuid,
            index: g.index,
            model: g.model,
            slice: some(g.slice),
            isolation: g.isolation,
        });
        Self {
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
        }
    }
}

impl From<v1::CpuHolder> for CpuHolder {
    fn from(v1::CpuHolder { job, cpuset, mems }: v1::CpuHolder) -> Self {
        Self {
            job,
            cpuset,
            mems: some(mems),
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

impl From<v1::Session> for Session {
    fn from(session: v1::Session) -> Self {
        Self {
            state: session_state(session.state()),
            id: session.id,
            ssh_alias: crate::ssh::alias::name_of(&session.called),
            name: session.name,
            user: session.user,
            reason: session.reason,
            image: session.image,
            created: rfc3339(session.created_ms),
            ephemeral: session.ephemeral,
            host_principal: session.host_principal,
            shares: session.shares.into_iter().map(Into::into).collect(),
            job: session.job.map(Into::into),
        }
    }
}

impl From<v1::Node> for Node {
    fn from(node: v1::Node) -> Self {
        let inventory = node.inventory.unwrap_or_default();
        let holders = node.gpu_holders.into_iter().map(|gpu| gpu.holders);
        let holders = holders.chain(std::iter::repeat(Vec::new()));
        let links = crate::topology::links(&inventory);
        let gpus: Vec<NodeGpu> = inventory
            .gpus
            .into_iter()
            .zip(holders)
            .zip(links)
            .map(|(gpu, links)| NodeGpu {
                links,
                ..NodeGpu::from(gpu)
            })
            .collect();
        Self {
            name: node.name,
            state: node.state,
            reason: some(node.reason),
            gpus_total: gpus.len(),
            gpus_free: gpus
                .iter()
                .filter(|g| g.holders.is_empty() && g.drained.is_none())
                .count(),
            gpus,
            cpus: inventory.cpus,
            cpus_held: node.cpus_held,
            memory_bytes: inventory.memory_bytes,
            memory_held_bytes: node.memory_held,
            driver_version: some(inventory.driver_version),
            os: inventory.os,
            gpu_note: some(inventory.gpu_note),
            isolation: some(inventory.isolation),
            last_contact: rfc3339(node.last_contact_ms),
            version: node.version,
            images: node.images,
            unknown_containers: node.unknown,
            cpu_holders: node.cpu_holders.into_iter().map(Into::into).collect(),
            features: inventory.features,
            switch_path: some(node.switch_path),
            block: some(node.block),
        }
    }
}

impl From<v1::GpuHolder> for GpuHolder {
    fn from(holder: v1::GpuHolder) -> Self {
        Self {
            job: holder.job,
            slice: some(holder.slice),
            isolation: holder.isolation,
        }
    }
}

impl From<v1::MigInstance> for MigInstance {
    fn from(instance: v1::MigInstance) -> Self {
        Self {
            profile: instance.profile,
            start: instance.start,
            uuid: instance.uuid,
        }
    }
}

impl From<(v1::GpuInfo, Vec<v1::GpuHolder>)> for NodeGpu {
    fn from((gpu, holders): (v1::GpuInfo, Vec<v1::GpuHolder>)) -> Self {
        let sharing = match gpu.sharing() {
            v1::Sharing::Unspecified => None,
            v1::Sharing::TimeSlice => Some("time-slice"),
            v1::Sharing::Mps => Some("mps"),
        };
        Self {
            uuid: gpu.uuid,
            index: gpu.index,
            model: gpu.model,
            memory_bytes: gpu.memory_bytes,
            pci_address: gpu.pci_address,
            numa_node: gpu.numa_node,
            cpu_affinity: some(gpu.cpu_affinity),
            links: Vec::new(),
            mig_enabled: gpu.mig.is_some(),
            mig_instances: gpu
                .mig
                .into_iter()
                .flat_map(|mig| mig.instances)
                .map(Into::into)
                .collect(),
            sharing,
            drained: some(gpu.drained),
            job: holders.first().map(|holder| holder.job),
            holders: holders.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<v1::ListFoundResponse> for Found {
    fn from(found: v1::ListFoundResponse) -> Self {
        Self {
            store: some(found.store),
            nodes: found.nodes,
            jobs: found.jobs.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<v1::FoundJob> for FoundJob {
    fn from(job: v1::FoundJob) -> Self {
        let part = |part: v1::FoundPart| FoundPart {
            node: part.node,
            gpus: part.gpus,
            cpus: part.cpus,
            memory_bytes: part.memory_bytes,
        };
        Self {
            job: job.key,
            name: job.name,
            user: some(job.user),
            cluster: job.cluster,
            session: (job.session > 0).then_some(job.session),
            nodes: job.parts.into_iter().map(part).collect(),
            nodes_total: job.nodes,
            started: (job.started_ms > 0).then(|| rfc3339(job.started_ms)),
            deadline: rfc3339(job.deadline_ms),
            ending: job.ending,
            obstacle: some(job.obstacle),
        }
    }
}

impl From<v1::Gpu> for Gpu {
    fn from(gpu: v1::Gpu) -> Self {
        Self {
            uuid: gpu.uuid,
            index: gpu.index,
            model: gpu.model,
            slice: some(gpu.slice),
            isolation: gpu.isolation,
        }
    }
}

impl From<v1::Refusal> for Refusal {
    fn from(refusal: v1::Refusal) -> Self {
        Self {
            reason: refusal.reason,
            hosts: refusal.hosts,
        }
    }
}

impl From<v1::Seat> for Seat {
    fn from(seat: v1::Seat) -> Self {
        let links: Vec<Option<String>> = seat.links.into_iter().map(some).collect();
        let joined = !seat.worst_link.is_empty();
        Self {
            node: seat.node,
            links: links.chunks(seat.gpus.len().max(1)).map(<[_]>::to_vec).collect(),
            gpus: seat.gpus.into_iter().map(Into::into).collect(),
            worst_pair: joined.then_some([seat.worst_a, seat.worst_b]),
            worst_link: some(seat.worst_link),
            numa_nodes: seat.numa_nodes,
            nics: seat.nics,
            cpus: seat.cpus,
            memory_bytes: seat.memory_bytes,
        }
    }
}

impl From<v1::Plan> for Plan {
    fn from(plan: v1::Plan) -> Self {
        let choice = |choice: v1::Choice| Choice {
            request: choice.request.map(Into::into),
            start: choice.start_ms.map(rfc3339),
            now: choice.now,
            seats: choice.seats.into_iter().map(Into::into).collect(),
        };
        Self {
            choices: plan.choices.into_iter().map(choice).collect(),
            refusals: plan.refusals.into_iter().map(Into::into).collect(),
            nearest: some(plan.nearest),
        }
    }
}

impl From<v1::Explanation> for Explanation {
    fn from(why: v1::Explanation) -> Self {
        Self {
            job: why.job.map(Into::into),
            summary: why.summary,
            refusals: why.refusals.into_iter().map(Into::into).collect(),
            ahead: why.ahead,
            latest_start: why.latest_start_ms.map(rfc3339),
            nearest: some(why.nearest),
            worst_links: why.seats.iter().map(|seat| seat.worst_link.clone()).collect(),
            seats: why.seats.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<v1::User> for User {
    fn from(user: v1::User) -> Self {
        Self {
            role: role(user.role()),
            name: user.name,
            uid: user.uid,
            gid: user.gid,
            groups: user.groups,
            home: user.home,
            shell: user.shell,
            group_names: user.group_names,
        }
    }
}

impl From<v1::Share> for Share {
    fn from(share: v1::Share) -> Self {
        Self {
            mode: share_mode(share.mode()),
            user: share.user,
        }
    }
}

impl From<v1::AuditRecord> for AuditRecord {
    fn from(record: v1::AuditRecord) -> Self {
        Self {
            number: record.number,
            at: rfc3339(record.at_ms),
            user: some(record.user),
            origin: record.origin,
            action: record.action,
            subject: record.subject,
            outcome: record.outcome,
            detail: record.detail,
        }
    }
}

impl From<v1::TokenInfo> for Token {
    fn from(token: v1::TokenInfo) -> Self {
        Self {
            scope: token_scope(token.scope()),
            id: token.id,
            user: token.user,
            label: token.label,
            created: (token.created_ms > 0).then(|| rfc3339(token.created_ms)),
            expires: rfc3339(token.expires_ms),
            last_used: token.last_used_ms.map(rfc3339),
            last_used_from: some(token.last_used_from),
            by_sign_in: token.by_sign_in,
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
                       "switch_path": null, "block": null}],
            "exit_code": null,
        });
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&json[name], value, "{name}");
        }
    }

    #[test]
    fn drained_and_held_gpus_are_not_free() {
        let gpu = |index, drained: &str| v1::GpuInfo {
            index,
            drained: drained.into(),
            ..Default::default()
        };
        let node = v1::Node {
            inventory: Some(v1::Inventory {
                gpus: vec![gpu(0, ""), gpu(1, "ECC"), gpu(2, "")],
                ..Default::default()
            }),
            gpu_holders: vec![
                v1::GpuHolders {
                    holders: vec![v1::GpuHolder {
                        job: 9,
                        ..Default::default()
                    }],
                },
                v1::GpuHolders::default(),
            ],
            ..Default::default()
        };
        let json = serde_json::to_value(Node::from(node)).unwrap();
        assert_eq!((&json["gpus_total"], &json["gpus_free"]), (&3.into(), &1.into()));
        assert_eq!(
            (&json["gpus"][0]["holders"][0]["job"], &json["gpus"][2]["holders"]),
            (&9.into(), &serde_json::json!([]))
        );
    }
}
