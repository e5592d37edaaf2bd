//! Jobs that are over, and those that run.

use std::collections::BTreeSet;
use std::str::FromStr;

use carrel_core::broker::{State, state_reason};
use carrel_core::model::array::JobRef;
use carrel_core::model::host_list;
use carrel_core::model::ids::{JobId, NodeName};
use carrel_core::model::job::{Job, JobState, Phase};
use carrel_core::model::time::Timestamp;
use carrel_proto::v1::{self, HistoryJob, ListHistoryRequest, ListHistoryResponse};
use tonic::Status;

use super::refuse::{self, invalid};
use super::{Call, convert};
use crate::store::{Entry, HistoryFilter, Place};

/// Jobs of one answer, where nothing else is said, and at most.
const USUAL: usize = 100;
const MOST: usize = 1_000;
/// Names, states, ids of one request, each.
pub(super) const MAX_WANTED: usize = 1_000;

pub(super) async fn list_history(
    call: Call,
    request: ListHistoryRequest,
) -> Result<ListHistoryResponse, Status> {
    let (filter, after, most) = wanted(&call, request)?;
    // The state first: what leaves it after that is in the history by then.
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let asker = call.asker.caller.clone();
    let known = state.jobs.values().map(AsRef::as_ref);
    let known = known.filter(|job| state.within_reach(&asker, job));
    let known = known.filter(|job| filter.takes(&Entry::of(job)) && Entry::of(job).place() < after);
    let mut known: Vec<&Job> = known.collect();
    let page = call
        .context
        .look_up(move |history| history.page(&filter, after, most))
        .await?;
    // What comes after what was looked at belongs to the next answer.
    known.retain(|job| page.looked_to.is_none_or(|to| Entry::of(job).place() > to));
    let ids: BTreeSet<JobId> = known.iter().map(|job| job.id).collect();
    // Those that have left the state as well.
    let past = page.jobs.iter().filter(|job| !ids.contains(&job.id));
    let past = past.filter(|job| state.within_reach(&asker, job));
    let mut jobs: Vec<&Job> = known.iter().copied().chain(past).collect();
    jobs.sort_by_key(|job| std::cmp::Reverse(Entry::of(job).place()));
    let next = if jobs.len() > most {
        jobs.truncate(most);
        jobs.last().map(|job| Entry::of(job).place())
    } else {
        page.looked_to
    };
    let now = call.context.clock.now();
    Ok(ListHistoryResponse {
        jobs: jobs.into_iter().map(|job| message(state, job, now)).collect(),
        next: next
            .map(|Place { ended_ms, id }| format!("{ended_ms}:{id}"))
            .unwrap_or_default(),
    })
}

fn wanted(call: &Call, request: ListHistoryRequest) -> Result<(HistoryFilter, Place, usize), Status> {
    // Who names jobs means them, whose ever they are.
    let by_id = !(request.ids.is_empty() && request.jobs.is_empty()) && request.users.is_empty();
    let by_id = by_id && call.asker.caller.must_reach_others(call.right).is_ok();
    let users = users(call, request.all_users || by_id, request.users)?;
    let counts = [
        request.accounts.len(),
        request.partitions.len(),
        request.names.len(),
        request.ids.len() + request.jobs.len(),
        request.states.len(),
    ];
    if counts.iter().any(|count| *count > MAX_WANTED) {
        return Err(invalid(format!(
            "one request names at most {MAX_WANTED} of a kind"
        )));
    }
    let states = request.states.iter().map(|state| {
        let state = v1::JobState::try_from(*state).ok();
        let state = state.and_then(|state| JobState::try_from(state).ok());
        state.ok_or_else(|| invalid("there is no such state of a job"))
    });
    let ids = request.ids.into_iter().map(|id| JobId(id).into());
    let named = request.jobs.iter().map(|name| name.parse::<JobRef>());
    let named = named.collect::<Result<Vec<JobRef>, _>>();
    let named = named.map_err(|error| invalid(error.to_string()))?.into_iter();
    let filter = HistoryFilter {
        since_ms: request.since_ms,
        until_ms: request.until_ms,
        users,
        accounts: request.accounts,
        partitions: request.partitions,
        states: states.collect::<Result<_, _>>()?,
        names: request.names,
        jobs: named.chain(ids).collect(),
    };
    let after = match request.after.as_str() {
        "" => Place::FIRST,
        text => place(text)
            .ok_or_else(|| invalid("that is no place in the history: hand back what an answer said"))?,
    };
    let most = match request.limit as usize {
        0 => USUAL,
        limit => limit.min(MOST),
    };
    Ok((filter, after, most))
}

/// Whose jobs are meant, none meaning everybody's; others' are not for everybody.
pub(super) fn users(call: &Call, all: bool, named: Vec<String>) -> Result<Vec<String>, Status> {
    if named.len() > MAX_WANTED {
        return Err(invalid(format!("one request names at most {MAX_WANTED} users")));
    }
    let caller = &call.asker.caller;
    let own = caller.user.to_string();
    if all || named.iter().any(|user| *user != own) {
        caller.must_reach_others(call.right).map_err(refuse::status)?;
    }
    Ok(if named.is_empty() && !all {
        vec![own]
    } else {
        named
    })
}

fn place(text: &str) -> Option<Place> {
    let (ended, id) = text.split_once(':')?;
    Some(Place {
        ended_ms: i64::from_str(ended).ok()?,
        id: u64::from_str(id).ok()?,
    })
}

fn message(state: &State, job: &Job, now: Timestamp) -> HistoryJob {
    let placed = job.last_placed();
    let ended = match job.phase {
        Phase::Ended { at, .. } => Some(at),
        Phase::Pending | Phase::Placed(_) => None,
    };
    let parts = placed.iter().flat_map(|placed| &placed.allocation.nodes);
    let nodes: BTreeSet<NodeName> = parts.map(|part| part.node.clone()).collect();
    let elapsed = placed.map(|placed| ended.unwrap_or(now).since(placed.started));
    let message = convert::job_because(state, job, None, state_reason(state, job));
    HistoryJob {
        id: message.id,
        name: message.name,
        user: message.user,
        kind: message.kind,
        state: message.state,
        terms: message.terms,
        submitted_ms: message.submitted_ms,
        started_ms: message.started_ms,
        ended_ms: message.ended_ms,
        elapsed_ms: elapsed.map_or(0, |elapsed| elapsed.as_millis() as u64),
        gpu_milli: placed.map_or(0, |placed| placed.allocation.gpu_milli()),
        models: models(placed.map(|placed| placed.charges.as_slice()).unwrap_or_default()),
        nodes: host_list::format(&nodes),
        node_count: nodes.len() as u32,
        exit_code: message.exit_code,
        reason: message.reason,
        restarts: job.past_runs.len() as u32,
        time_limit_s: message.time_limit_s,
        session: message.session,
        measured: message.measured,
        host_use: message.host_use,
        array: message.array,
        request: message.request,
        cpus: placed
            .iter()
            .flat_map(|placed| &placed.allocation.nodes)
            .map(|part| part.cpus)
            .sum(),
        memory_bytes: placed
            .iter()
            .flat_map(|placed| &placed.allocation.nodes)
            .map(|part| part.memory_bytes)
            .sum(),
        workdir: job
            .batch
            .as_ref()
            .map(|batch| batch.workdir.clone())
            .unwrap_or_default(),
        comment: job
            .batch
            .as_ref()
            .map(|batch| batch.comment.clone())
            .unwrap_or_default(),
    }
}

fn models(charges: &[carrel_core::model::job::Charge]) -> Vec<String> {
    let models = charges.iter().map(|charge| charge.model.clone());
    models.filter(|model| !model.is_empty()).collect()
}
