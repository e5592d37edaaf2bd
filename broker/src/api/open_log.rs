//! Permission for one look at what a job's first node keeps of its output, or all of its nodes do of its steps' tasks.

use carrel_core::model::job::{JobKind, Phase};
use carrel_proto::stream::{Id, Ticket};
use carrel_proto::v1::{NodeTicket, OpenLogRequest, OpenStreamResponse, StreamTicket};
use tonic::{Code, Status};

use super::open_stream::{endpoints, no_gateway};
use super::refuse::{self, with_hint};
use super::ticket::VALIDITY;
use super::{Call, job_ref};

pub(super) async fn open_log(call: Call, request: OpenLogRequest) -> Result<OpenStreamResponse, Status> {
    let snapshot = call.snapshot();
    let caller = &call.asker.caller;
    let name = job_ref(request.id, &request.tasks)?;
    let job = call.job(snapshot.state(), &name).await?;
    let id = job.label();
    if job.owner != caller.user {
        caller.must_reach_others(call.right).map_err(refuse::status)?;
    }
    if job.kind != JobKind::Batch && !request.all_nodes {
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
    let nodes = &placed.allocation.nodes;
    let Some(first) = nodes.first() else {
        return Err(Status::internal("an allocation without nodes"));
    };
    let endpoints = endpoints(&call);
    if endpoints.is_empty() {
        return Err(no_gateway());
    }
    let now = call.context.clock.now();
    let ticket = |node: String| {
        let ticket_id: Id = rand::random();
        let content = StreamTicket {
            id: ticket_id.to_vec(),
            job: job.id.0,
            generation: placed.generation.0,
            node,
            user: caller.user.to_string(),
            session: 0,
            expires_ms: now.after(VALIDITY).millis(),
            made_ms: now.millis(),
            stream: Vec::new(),
            log: true,
        };
        Ticket::new(call.context.gateways.stream_key(), &content)
    };
    let mut answer = OpenStreamResponse {
        endpoints,
        ..OpenStreamResponse::default()
    };
    if request.all_nodes {
        let permit = |node: String| {
            let ticket = ticket(node.clone());
            NodeTicket {
                node,
                ticket: ticket.content,
                secret: ticket.secret.to_vec(),
            }
        };
        answer.nodes = nodes.iter().map(|rank| permit(rank.node.to_string())).collect();
    } else {
        let ticket = ticket(first.node.to_string());
        (answer.ticket, answer.secret) = (ticket.content, ticket.secret.to_vec());
    }
    Ok(answer)
}
