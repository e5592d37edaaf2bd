//! What waits, in order, and when it starts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use carrel_core::broker::{Caller, Queued, State, queued, starts_of, state_reason};
use carrel_core::model::host_list;
use carrel_core::model::ids::{JobId, NodeName};
use carrel_core::model::job::Job;
use carrel_core::model::time::Timestamp;
use carrel_proto::v1::{self, ListQueueRequest, ListQueueResponse, QueuedJob, StartKind};
use tonic::Status;

use super::{Call, convert};
use crate::limits::MAX_LISTED_JOBS;

/// Starts that are not foreseen in so long are said to be unknown.
const FORESIGHT: Duration = Duration::from_secs(2);

pub(super) async fn list_queue(call: Call, request: ListQueueRequest) -> Result<ListQueueResponse, Status> {
    let snapshot = call.snapshot();
    let now = call.context.clock.now();
    let foreseen = request.start;
    let caller = call.asker.caller.clone();
    let work = move || {
        let begun = Instant::now();
        let state = snapshot.state();
        let starts = if request.start {
            starts_of(state, now, || begun.elapsed() < FORESIGHT)
        } else {
            BTreeMap::new()
        };
        answer(state, &caller, &request, &starts, now)
    };
    if foreseen {
        call.context.foresee(work).await
    } else {
        Ok(work())
    }
}

fn answer(
    state: &State,
    caller: &Caller,
    request: &ListQueueRequest,
    starts: &BTreeMap<JobId, Timestamp>,
    now: Timestamp,
) -> ListQueueResponse {
    let is_wanted = |job: &Job| {
        let is = |wanted: &str, own: &str| wanted.is_empty() || wanted == own;
        is(&request.user, job.owner.as_str())
            && is(&request.account, job.terms.account.as_str())
            && is(&request.partition, job.terms.partition.as_str())
            && state.within_reach(caller, job)
    };
    let mut running: Vec<&Job> = Vec::new();
    if request.running {
        let held = state.deadlines.iter();
        running.extend(held.filter_map(|(_, id)| state.jobs.get(id).map(AsRef::as_ref)));
        running.retain(|job| is_wanted(job));
        running.sort_by_key(|job| job.id);
    }
    let mut waiting = queued(state, now);
    waiting.retain(|waits| is_wanted(&waits.job));
    let count = running.len() + waiting.len();
    let running = running.into_iter().map(|job| holds(state, job));
    let waiting = waiting.into_iter().map(|waits| waits_for(state, waits, starts));
    ListQueueResponse {
        jobs: running.chain(waiting).take(MAX_LISTED_JOBS).collect(),
        left_out: count.saturating_sub(MAX_LISTED_JOBS) as u64,
    }
}

fn message(job: &Job) -> QueuedJob {
    QueuedJob {
        id: job.id.0,
        name: job.name.clone(),
        user: job.owner.to_string(),
        kind: v1::JobKind::from(job.kind).into(),
        state: v1::JobState::from(job.state()).into(),
        terms: Some((&job.terms).into()),
        request: Some((&*job.request).into()),
        time_limit_s: job.time_limit.as_secs(),
        submitted_ms: job.submitted.millis(),
        top: job.terms.top.is_some(),
        array: convert::array(job),
        ..QueuedJob::default()
    }
}

fn holds(state: &State, job: &Job) -> QueuedJob {
    let placed = job.placed();
    let nodes = placed.iter().flat_map(|placed| &placed.allocation.nodes);
    let nodes: BTreeSet<NodeName> = nodes.map(|part| part.node.clone()).collect();
    QueuedJob {
        reason: state_reason(state, job),
        start_ms: placed.map(|placed| placed.started.millis()),
        start_kind: StartKind::Started.into(),
        nodes: host_list::format(&nodes),
        ..message(job)
    }
}

fn waits_for(state: &State, waits: Queued, starts: &BTreeMap<JobId, Timestamp>) -> QueuedJob {
    let start = starts.get(&waits.job.id);
    let kind = match start {
        None => StartKind::Unspecified,
        Some(_) if state.promises.contains_key(&waits.job.id) => StartKind::Promised,
        Some(_) => StartKind::Forecast,
    };
    let position = waits.position.map(u32::try_from);
    QueuedJob {
        position: position.map_or(0, |position| position.unwrap_or(u32::MAX)),
        priority: waits.priority,
        reason: waits.reason,
        start_ms: start.map(|start| start.millis()),
        start_kind: kind.into(),
        ..message(&waits.job)
    }
}
