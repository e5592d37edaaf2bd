//! Permission for one look at what a job's first node keeps of its output.

use carrel_core::model::job::{JobKind, Phase};
use carrel_proto::stream::{Id, Ticket};
use carrel_proto::v1::{GetJobRequest, OpenStreamResponse, StreamTicket};
use tonic::{Code, Status};

use super::open_stream::{endpoints, no_gateway};
use super::refuse::{self, with_hint};
use super::ticket::VALIDITY;
use super::{Call, job_ref};

pub(super) async fn open_log(call: Call, request: GetJobRequest) -> Result<OpenStreamResponse, Status> {
    let snapshot = call.snapshot();
    let caller = &call.asker.caller;
    let name = job_ref(request.id, &request.tasks)?;
    let job = call.job(snapshot.state(), &name).await?;
    let id = job.label();
    if job.owner != caller.user {
        caller.must_reach_others(call.right).map_err(refuse::status)?;
    }
    if job.kind != JobKind::Batch {
        let hint = format!("`carrel attach {}` shows its terminals", job.name);
        return Err(with_hint(
            Code::FailedPrecondition,
            format!("job {id} is a session's: nothing is kept of what its programs write"),
            &hint,
        ));
    }
    let Some(placed) = job.last_placed() else {
        let (message, hint) = match job.phase {
            Phase::Pending | Phase::Placed(_) => (
                format!("job {id} waits, and has written nothing yet"),
                format!("`carrel logs -f {id}` waits with it, `carrel explain {id}` says why"),
            ),
            Phase::Ended { .. } => (
                format!("job {id} never ran"),
                format!("`carrel show {id}` says why"),
            ),
        };
        return Err(with_hint(Code::FailedPrecondition, message, &hint));
    };
    let Some(first) = placed.allocation.nodes.first() else {
        return Err(Status::internal("an allocation without nodes"));
    };
    let endpoints = endpoints(&call);
    if endpoints.is_empty() {
        return Err(no_gateway());
    }
    let now = call.context.clock.now();
    let ticket_id: Id = rand::random();
    let content = StreamTicket {
        id: ticket_id.to_vec(),
        job: job.id.0,
        generation: placed.generation.0,
        node: first.node.to_string(),
        user: caller.user.to_string(),
        session: 0,
        expires_ms: now.after(VALIDITY).millis(),
        made_ms: now.millis(),
        stream: Vec::new(),
        log: true,
    };
    let ticket = Ticket::new(call.context.gateways.stream_key(), &content);
    Ok(OpenStreamResponse {
        endpoints,
        ticket: ticket.content,
        secret: ticket.secret.to_vec(),
        host_principal: String::new(),
        host_key: String::new(),
    })
}
