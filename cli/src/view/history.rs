//! What was: jobs as the history shows them, and what they have held.

use carrel_proto::v1;
use serde::Serialize;

use super::host_use::{HostUse, HostUseFields};
use super::words::{job_kind, job_state};
use super::{some, used_percent};
use crate::units::rfc3339;

/// A job that is over, or runs.
#[derive(Debug, Serialize)]
pub struct HistoryJob {
    id: u64,
    name: String,
    user: String,
    kind: &'static str,
    state: &'static str,
    account: String,
    qos: String,
    partition: String,
    submitted: String,
    /// Of its last run; null: it never held anything.
    started: Option<String>,
    /// Null: it is not over.
    ended: Option<String>,
    elapsed_seconds: u64,
    /// Thousandths.
    gpu_milli: u64,
    gpu_models: Vec<String>,
    /// A host list; null: none.
    nodes: Option<String>,
    node_count: u32,
    exit_code: Option<i32>,
    reason: String,
    /// How often it was queued again.
    restarts: u32,
    time_limit_seconds: u64,
    /// Of its last run; null: it was not measured.
    used_gpu_hours: Option<f64>,
    used_percent: Option<f64>,
    #[serde(flatten)]
    host_use: HostUseFields,
    #[serde(flatten)]
    array: super::ArrayFields,
}

impl From<v1::HistoryJob> for HistoryJob {
    fn from(job: v1::HistoryJob) -> Self {
        let (kind, state) = (job.kind(), job.state());
        let host_use = HostUse::fields(HostUse::past(&job));
        let terms = job.terms.unwrap_or_default();
        Self {
            id: job.id,
            name: job.name,
            user: job.user,
            kind: job_kind(kind),
            state: job_state(state),
            account: terms.account,
            qos: terms.qos,
            partition: terms.partition,
            submitted: rfc3339(job.submitted_ms),
            started: job.started_ms.map(rfc3339),
            ended: job.ended_ms.map(rfc3339),
            elapsed_seconds: job.elapsed_ms / 1_000,
            gpu_milli: job.gpu_milli,
            gpu_models: job.models,
            nodes: some(job.nodes),
            node_count: job.node_count,
            exit_code: job.exit_code,
            reason: job.reason,
            restarts: job.restarts,
            time_limit_seconds: job.time_limit_s,
            used_gpu_hours: job.measured.map(|measured| measured.used_gpu_hours),
            used_percent: job.measured.and_then(used_percent),
            host_use,
            array: job.array.into(),
        }
    }
}

/// A report of use.
#[derive(Debug, Serialize)]
pub struct Usage {
    since: String,
    until: String,
    rows: Vec<UsageRow>,
    total: Total,
}

/// What one line of it sums up; null where it is not told apart.
#[derive(Debug, Serialize)]
pub struct UsageRow {
    /// A day of UTC, "2026-11-22".
    day: Option<String>,
    account: Option<String>,
    user: Option<String>,
    gpu_model: Option<String>,
    gpu_hours: f64,
    billed_gpu_hours: f64,
    /// One that was queued again counts each time.
    runs: u64,
    /// Null: nothing was measured.
    used_gpu_hours: Option<f64>,
    used_percent: Option<f64>,
}

/// Over all lines.
#[derive(Debug, Serialize)]
pub struct Total {
    gpu_hours: f64,
    billed_gpu_hours: f64,
    used_gpu_hours: Option<f64>,
    used_percent: Option<f64>,
}

/// What all lines together have measured; none: nothing was.
pub fn measured_in_all(rows: &[v1::UsageRow]) -> Option<v1::MeasuredUse> {
    rows.iter()
        .filter_map(|row| row.measured)
        .reduce(|sum, one| v1::MeasuredUse {
            used_gpu_hours: sum.used_gpu_hours + one.used_gpu_hours,
            measured_gpu_hours: sum.measured_gpu_hours + one.measured_gpu_hours,
        })
}

impl Usage {
    /// Of Unix milliseconds.
    pub fn new(since: i64, until: i64, rows: &[v1::UsageRow]) -> Self {
        let row = |row: &v1::UsageRow| UsageRow {
            day: row.day_ms.map(|at| rfc3339(at).chars().take(10).collect()),
            account: some(row.account.clone()),
            user: some(row.user.clone()),
            gpu_model: some(row.model.clone()),
            gpu_hours: row.gpu_hours,
            billed_gpu_hours: row.billed_gpu_hours,
            runs: row.runs,
            used_gpu_hours: row.measured.map(|measured| measured.used_gpu_hours),
            used_percent: row.measured.and_then(used_percent),
        };
        let measured = measured_in_all(rows);
        Self {
            since: rfc3339(since),
            until: rfc3339(until),
            rows: rows.iter().map(row).collect(),
            total: Total {
                gpu_hours: rows.iter().map(|row| row.gpu_hours).sum(),
                billed_gpu_hours: rows.iter().map(|row| row.billed_gpu_hours).sum(),
                used_gpu_hours: measured.map(|measured| measured.used_gpu_hours),
                used_percent: measured.and_then(used_percent),
            },
        }
    }
}
