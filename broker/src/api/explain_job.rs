//! Why a job waits, or stands where it stands.

use carrel_core::broker::{explain, queue_position};
use carrel_core::model::ids::JobId;
use carrel_core::model::topology::Link;
use carrel_proto::v1::{Explanation, GetJobRequest, Refusal};
use tonic::Status;

use super::{Call, convert, refuse};

pub(super) async fn explain_job(call: Call, request: GetJobRequest) -> Result<Explanation, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let job = state
        .job_for(&call.asker.caller, JobId(request.id))
        .map_err(refuse::status)?;
    let why = explain(state, job);
    let refusals = why.refusals.iter().map(|(reason, hosts)| Refusal {
        reason: reason.to_string(),
        hosts: *hosts,
    });
    let link = |link: &Option<Link>| link.map(|link| link.to_string()).unwrap_or_default();
    Ok(Explanation {
        job: Some(convert::job(state, job, queue_position(state, job.id))),
        summary: why.summary,
        refusals: refusals.collect(),
        ahead: why.ahead.iter().map(|id| id.0).collect(),
        // First come, first served has no plan to read a time from.
        latest_start_ms: None,
        nearest: why.nearest.unwrap_or_default(),
        worst_links: why.worst_links.iter().map(link).collect(),
    })
}
