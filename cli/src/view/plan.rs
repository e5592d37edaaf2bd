//! Why a job is where it is, and what would come of a request.

use carrel_proto::v1;
use serde::Serialize;

use super::job::{Gpu, Job, Request};
use super::some;
use crate::units::rfc3339;

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
    /// Of a job that waits.
    priority: Option<super::Priority>,
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
    switch_path: Option<String>,
    block: Option<String>,
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
            switch_path: some(seat.switch_path),
            block: some(seat.block),
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
            priority: why.priority.map(Into::into),
        }
    }
}
