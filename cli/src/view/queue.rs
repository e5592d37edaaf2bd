//! Accounts, QOS, partitions, and the queue.

use carrel_proto::v1;
use serde::Serialize;

use super::job::Request;
use super::some;
use super::words::{job_kind, job_state};
use crate::units::rfc3339;

/// What jobs may have at most; null: as much as there is.
#[derive(Debug, Default, Serialize)]
pub struct Limits {
    /// Thousandths.
    gpu_milli: Option<u64>,
    running: Option<u32>,
    jobs: Option<u32>,
    time_seconds: Option<u64>,
    gpu_minutes: Option<u64>,
}

/// What is held and waits under a name, and what was used.
#[derive(Debug, Serialize)]
pub struct Held {
    gpu_milli: u64,
    running: u32,
    jobs: u32,
    /// Weighed and decayed.
    used_gpu_hours: f64,
}

/// An account.
#[derive(Debug, Serialize)]
pub struct Account {
    name: String,
    parent: Option<String>,
    description: String,
    shares: u32,
    limits: Limits,
    user_limits: Limits,
    members: Vec<Member>,
    held: Held,
}

/// A user in an account.
#[derive(Debug, Serialize)]
pub struct Member {
    user: String,
    shares: u32,
    limits: Limits,
    held: Held,
    /// From 0, served last, to 1, served first.
    fair_share: Option<f64>,
}

/// The same, with the account.
#[derive(Debug, Serialize)]
pub struct MemberOf {
    account: String,
    #[serde(flatten)]
    member: Member,
}

/// A user: what holds in all accounts, and in each.
#[derive(Debug, Serialize)]
pub struct UserTerms {
    user: String,
    default_account: Option<String>,
    limits: Limits,
    accounts: Vec<MemberOf>,
}

/// A QOS.
#[derive(Debug, Serialize)]
pub struct Qos {
    name: String,
    description: String,
    priority: u32,
    /// "requeue", "cancel"; null: never.
    preemptible: Option<&'static str>,
    preempts: bool,
    /// None: all.
    accounts: Vec<String>,
    usage_factor: f64,
    /// Between the terminate signal and the kill of a job that gives way; null: as for all jobs.
    grace_s: Option<u64>,
    limits: Limits,
    user_limits: Limits,
    held: Held,
}

/// A partition.
#[derive(Debug, Serialize)]
pub struct Partition {
    name: String,
    description: String,
    default: bool,
    only: Option<String>,
    without: Option<String>,
    features: Option<String>,
    /// Those that are in it now, as a host list.
    nodes: String,
    node_count: u32,
    priority: u32,
    default_time_seconds: Option<u64>,
    /// None: all.
    accounts: Vec<String>,
    qos: Option<String>,
    limits: Limits,
    user_limits: Limits,
    held: Held,
}

/// A job as the queue shows it.
#[derive(Debug, Serialize)]
pub struct QueuedJob {
    id: u64,
    name: String,
    user: String,
    kind: &'static str,
    state: &'static str,
    account: String,
    qos: String,
    partition: String,
    reservation: Option<String>,
    nice: i32,
    request: Option<Request>,
    time_limit_seconds: u64,
    submitted: String,
    /// 1 is next; null: it runs, or may not start yet.
    position: Option<u32>,
    priority: Option<i64>,
    top: bool,
    reason: String,
    start: Option<String>,
    /// "started", "promised" (at the latest), "forecast" (about then); null: nothing is said.
    start_kind: Option<&'static str>,
    nodes: Option<String>,
    #[serde(flatten)]
    array: super::ArrayFields,
}

/// How a job's place in the queue came to be.
#[derive(Debug, Serialize)]
pub struct Priority {
    total: i64,
    top: bool,
    factors: Vec<Factor>,
    level_fair_share: Option<f64>,
    used_gpu_hours: f64,
}

/// One line of it.
#[derive(Debug, Serialize)]
struct Factor {
    name: String,
    factor: f64,
    weight: u32,
    points: i64,
}

/// How jobs of a QOS give way; none: they never do.
pub fn preemption(how: v1::Preemption) -> Option<&'static str> {
    match how {
        v1::Preemption::Unspecified | v1::Preemption::Never => None,
        v1::Preemption::Requeue => Some("requeue"),
        v1::Preemption::Cancel => Some("cancel"),
    }
}

fn limits(limits: Option<v1::Limits>) -> Limits {
    limits.map(Limits::from).unwrap_or_default()
}

fn held(held: Option<v1::Held>) -> Held {
    Held::from(held.unwrap_or_default())
}

impl From<v1::Limits> for Limits {
    fn from(limits: v1::Limits) -> Self {
        Self {
            gpu_milli: limits.gpu_milli,
            running: limits.running,
            jobs: limits.submitted,
            time_seconds: limits.time_s,
            gpu_minutes: limits.gpu_minutes,
        }
    }
}

impl From<v1::Held> for Held {
    fn from(held: v1::Held) -> Self {
        Self {
            gpu_milli: held.gpu_milli,
            running: held.running,
            jobs: held.submitted,
            used_gpu_hours: held.used_gpu_hours,
        }
    }
}

impl From<v1::Member> for Member {
    fn from(member: v1::Member) -> Self {
        Self {
            user: member.user,
            shares: member.shares,
            limits: limits(member.limits),
            held: held(member.held),
            fair_share: member.fair_share,
        }
    }
}

impl MemberOf {
    /// A user in this account.
    pub fn new(account: String, member: v1::Member) -> Self {
        Self {
            account,
            member: member.into(),
        }
    }
}

impl UserTerms {
    /// A user, what is set for them in all accounts, and the accounts that they are in.
    pub fn new(user: String, person: Option<v1::Person>, members: Vec<(String, v1::Member)>) -> Self {
        let person = person.unwrap_or_default();
        let members = members.into_iter();
        Self {
            user,
            default_account: some(person.default_account),
            limits: limits(person.limits),
            accounts: members
                .map(|(account, member)| MemberOf::new(account, member))
                .collect(),
        }
    }
}

impl From<v1::Account> for Account {
    fn from(account: v1::Account) -> Self {
        Self {
            name: account.name,
            parent: some(account.parent),
            description: account.description,
            shares: account.shares,
            limits: limits(account.limits),
            user_limits: limits(account.per_user),
            members: account.members.into_iter().map(Into::into).collect(),
            held: held(account.held),
        }
    }
}

impl From<v1::Qos> for Qos {
    fn from(qos: v1::Qos) -> Self {
        Self {
            preemptible: preemption(qos.preemptible()),
            name: qos.name,
            description: qos.description,
            priority: qos.priority,
            preempts: qos.preempts,
            accounts: qos.accounts,
            usage_factor: f64::from(qos.usage_milli) / 1_000.0,
            grace_s: qos.grace_s,
            limits: limits(qos.limits),
            user_limits: limits(qos.per_user),
            held: held(qos.held),
        }
    }
}

impl From<v1::Partition> for Partition {
    fn from(partition: v1::Partition) -> Self {
        Self {
            name: partition.name,
            description: partition.description,
            default: partition.default,
            only: some(partition.only),
            without: some(partition.without),
            features: some(partition.features),
            nodes: partition.nodes,
            node_count: partition.node_count,
            priority: partition.priority,
            default_time_seconds: (partition.default_time_s > 0).then_some(partition.default_time_s),
            accounts: partition.accounts,
            qos: some(partition.qos),
            limits: limits(partition.limits),
            user_limits: limits(partition.per_user),
            held: held(partition.held),
        }
    }
}

impl From<v1::QueuedJob> for QueuedJob {
    fn from(job: v1::QueuedJob) -> Self {
        let terms = job.terms.clone().unwrap_or_default();
        Self {
            kind: job_kind(job.kind()),
            state: job_state(job.state()),
            start_kind: match job.start_kind() {
                v1::StartKind::Unspecified => None,
                v1::StartKind::Started => Some("started"),
                v1::StartKind::Promised => Some("promised"),
                v1::StartKind::Forecast => Some("forecast"),
            },
            id: job.id,
            name: job.name,
            user: job.user,
            account: terms.account,
            qos: terms.qos,
            partition: terms.partition,
            reservation: some(terms.reservation),
            nice: terms.nice,
            request: job.request.map(Into::into),
            time_limit_seconds: job.time_limit_s,
            submitted: rfc3339(job.submitted_ms),
            position: (job.position > 0).then_some(job.position),
            priority: job.priority,
            top: job.top,
            reason: job.reason,
            start: job.start_ms.map(rfc3339),
            nodes: some(job.nodes),
            array: job.array.into(),
        }
    }
}

impl From<v1::Priority> for Priority {
    fn from(priority: v1::Priority) -> Self {
        let factor = |line: v1::PriorityFactor| Factor {
            name: line.name,
            factor: line.factor,
            weight: line.weight,
            points: line.points,
        };
        Self {
            total: priority.total,
            top: priority.top,
            factors: priority.factors.into_iter().map(factor).collect(),
            level_fair_share: priority.level_fair_share,
            used_gpu_hours: priority.used_gpu_hours,
        }
    }
}
