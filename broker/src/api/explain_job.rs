//! Why a job waits, or stands where it stands.

use carrel_core::broker::{State, explain, queue_position};
use carrel_core::model::job::{Job, Phase};
use carrel_core::model::time::Timestamp;
use carrel_core::queue::Points;
use carrel_proto::v1::{self, Explanation, GetJobRequest, Refusal};
use tonic::Status;

use super::{Call, convert, job_ref};

fn priority(state: &State, job: &Job, now: Timestamp) -> v1::Priority {
    let priority = state.priority(job, now);
    let level = priority.standing.map(|standing| standing.level);
    let factor = |line: &Points| v1::PriorityFactor {
        name: line.name.to_owned(),
        factor: line.factor,
        weight: line.weight,
        points: line.points,
    };
    v1::Priority {
        top: priority.top,
        total: priority.total(),
        factors: priority.points.iter().map(factor).collect(),
        level_fair_share: level.filter(|level| level.is_finite()),
        used_gpu_hours: priority.used_hours,
    }
}

pub(super) async fn explain_job(call: Call, request: GetJobRequest) -> Result<Explanation, Status> {
    let snapshot = call.snapshot();
    let name = job_ref(request.id, &request.tasks)?;
    let job = call.job(snapshot.state(), &name).await?;
    let now = call.context.clock.now();
    let waits = matches!(job.phase, Phase::Pending);
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
            latest_start_ms: why.start.map(Timestamp::millis),
            nearest: why.nearest.unwrap_or_default(),
            seats: seats
                .map(|(part, seat)| convert::seat(state, part, seat))
                .collect(),
            priority: waits.then(|| priority(state, &job, now)),
        }
    };
    // Only of what waits there is anything to foresee.
    if waits {
        call.context.foresee(explained).await
    } else {
        Ok(explained())
    }
}
