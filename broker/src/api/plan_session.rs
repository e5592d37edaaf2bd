//! What would come of a request, and when.

use carrel_core::broker::{Choice, Plan, State, plan, seats};
use carrel_core::model::time::Timestamp;
use carrel_proto::v1::{self, PlanSessionRequest, Refusal};
use tonic::Status;

use super::refuse::{self, invalid};
use super::{Call, convert, open_session};

pub(super) async fn plan_session(call: Call, request: PlanSessionRequest) -> Result<v1::Plan, Status> {
    let spec = request
        .spec
        .ok_or_else(|| invalid("the request does not say what it is for"))?;
    let spec = open_session::spec(spec)?;
    let snapshot = call.snapshot();
    let caller = call.asker.caller.clone();
    let now = call.context.clock.now();
    call.context
        .foresee(move || {
            let state = snapshot.state();
            let plan = plan(state, &caller, spec, now).map_err(refuse::status)?;
            Ok(message(state, plan, now))
        })
        .await?
}

fn message(state: &State, plan: Plan, now: Timestamp) -> v1::Plan {
    let why = plan.why_not.as_ref();
    let refusals = why
        .iter()
        .flat_map(|why| &why.refusals)
        .map(|(reason, hosts)| Refusal {
            reason: reason.to_string(),
            hosts: *hosts,
        });
    v1::Plan {
        choices: plan.choices.iter().map(|one| choice(state, one, now)).collect(),
        refusals: refusals.collect(),
        nearest: why.and_then(|why| why.nearest.clone()).unwrap_or_default(),
    }
}

fn choice(state: &State, choice: &Choice, now: Timestamp) -> v1::Choice {
    let seats = choice.start.iter().flat_map(|start| {
        let parts = &start.allocation.nodes;
        let had = seats(state, &start.allocation);
        parts
            .iter()
            .zip(had)
            .map(|(part, seat)| convert::seat(state, part, &seat))
    });
    v1::Choice {
        request: Some((&choice.request).into()),
        start_ms: choice.start.as_ref().map(|start| start.at.millis()),
        now: choice.is_now(now),
        seats: seats.collect(),
    }
}
