//! Why a job waits, or stands where it stands.

use carrel_core::broker::{explain, queue_position};
use carrel_core::model::ids::JobId;
use carrel_proto::v1::{Explanation, GetJobRequest, Refusal};
use tonic::Status;

use super::{Call, convert, refuse};

pub(super) async fn explain_job(call: Call, request: GetJobRequest) -> Result<Explanation, Status> {
    let snapshot = call.snapshot();
    let job = snapshot
        .state()
        .job_for(&call.asker.caller, JobId(request.id))
        .map_err(refuse::status)?
        .clone();
    let now = call.context.clock.now();
    let waits = job.placed().is_none();
    let explained = move || {
        let state = snapshot.state();
        let why = explain(state, &job, now);
        let refusals = why.refusals.iter().map(|(reason, hosts)| Refusal {
            reason: reason.to_string(),
            hosts: *hosts,
        });
        let parts = job.last_placed().map(|placed| placed.allocation.nodes.as_slice());
        let seats = parts.unwrap_or_default().iter().zip(&why.seats);
        Explanation {
            job: Some(convert::job(state, &job, queue_position(state, job.id))),
            summary: why.summary,
            refusals: refusals.collect(),
            ahead: why.ahead.iter().map(|id| id.0).collect(),
            latest_start_ms: why.start.map(carrel_core::model::time::Timestamp::millis),
            nearest: why.nearest.unwrap_or_default(),
            seats: seats
                .map(|(part, seat)| convert::seat(state, part, seat))
                .collect(),
        }
    };
    // Only of what waits there is anything to foresee.
    if waits {
        call.context.foresee(explained).await
    } else {
        Ok(explained())
    }
}
