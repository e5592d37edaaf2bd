//! Jobs, by id.

use std::collections::BTreeMap;

use carrel_core::broker::{Reasons, State};
use carrel_core::model::ids::JobId;
use carrel_proto::v1::{ListJobsRequest, ListJobsResponse};
use tonic::Status;

use super::{Call, convert};
use crate::limits::MAX_LISTED_JOBS;

pub(super) async fn list_jobs(call: Call, request: ListJobsRequest) -> Result<ListJobsResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let positions = positions(state);
    let caller = &call.asker.caller;
    let wanted = state.jobs.values().rev().filter(|job| {
        state.within_reach(caller, job)
            && (request.all_users || job.owner == caller.user)
            && (request.ended || !job.state().is_final())
    });
    let mut reasons = Reasons::of(state);
    let messages = wanted.take(MAX_LISTED_JOBS).map(|job| {
        let reason = reasons.reason(job);
        convert::job_because(state, job, positions.get(&job.id).copied(), reason)
    });
    let mut jobs: Vec<_> = messages.collect();
    jobs.reverse();
    Ok(ListJobsResponse { jobs })
}

/// The place in the queue, from 1, of every pending job that may start.
pub(super) fn positions(state: &State) -> BTreeMap<JobId, usize> {
    let order = state.in_order().into_iter().enumerate();
    let order = order.filter(|(_, id)| state.pending.class_of(*id).is_some());
    order.map(|(index, id)| (id, index + 1)).collect()
}
