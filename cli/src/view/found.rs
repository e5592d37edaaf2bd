//! What nodes run and no record knows.

use carrel_proto::v1;
use serde::Serialize;

use super::some;
use crate::units::rfc3339;

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
