//! Permission for one byte stream.

use std::sync::Arc;

use carrel_core::broker::State;
use carrel_core::model::ids::JobId;
use carrel_core::model::job::Job;
use carrel_proto::inside;
use carrel_proto::stream::{Endpoint, Id, Ticket};
use carrel_proto::v1::{OpenStreamRequest, OpenStreamResponse, StreamTicket};
use tonic::{Code, Status};

use super::refuse::{self, with_hint};
use super::ticket::{ticket_for, ticket_for_job};
use super::{Call, convert, job_ref, session_ref};

pub(super) async fn open_stream(
    call: Call,
    request: OpenStreamRequest,
) -> Result<OpenStreamResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let user = &call.asker.caller.user;
    let now = call.context.clock.now();
    let (content, base) = if request.job == 0 {
        let session = call.session(state, &session_ref(&request.name)?)?;
        let content = ticket_for(state, &session, request.rank, user, now)?;
        (content, convert::host_principal(state, &session))
    } else {
        let job = own_job(&call, state, request.job).await?;
        // What its host certificate says is for those who do not know its key.
        (ticket_for_job(&job, request.rank, user, now)?, String::new())
    };
    let endpoints = endpoints(&call);
    if endpoints.is_empty() {
        return Err(no_gateway());
    }
    let host_key = host_key(state, &content);
    let id: Id = rand::random();
    let content = StreamTicket {
        id: id.to_vec(),
        ..content
    };
    let ticket = Ticket::new(call.context.gateways.stream_key(), &content);
    let host_principal = if request.rank == 0 || base.is_empty() {
        base
    } else {
        format!("{}.{base}", request.rank)
    };
    Ok(OpenStreamResponse {
        endpoints,
        ticket: ticket.content,
        secret: ticket.secret.to_vec(),
        host_principal,
        host_key,
        nodes: Vec::new(),
    })
}

/// A job of the caller's: nobody enters what is another's.
async fn own_job(call: &Call, state: &State, id: u64) -> Result<Arc<Job>, Status> {
    let job = call.job(state, &job_ref(id, "")?).await?;
    // From inside a job its own containers are reached, and not those of what it has submitted.
    if call.asker.caller.job().is_some_and(|own| own.job != job.id) {
        return Err(Status::permission_denied(
            "from inside a job only its own containers can be reached",
        ));
    }
    if job.owner != call.asker.caller.user {
        call.asker
            .caller
            .must_reach_others(call.right)
            .map_err(refuse::status)?;
    }
    Ok(job)
}

/// The host key of the rank that a ticket is for, as its node told it; empty: it has told none.
fn host_key(state: &State, ticket: &StreamTicket) -> String {
    let job = state.jobs.get(&JobId(ticket.job)).and_then(|job| job.placed());
    let found = job.and_then(|placed| {
        let mut parts = placed.allocation.nodes.iter().zip(&placed.ranks);
        parts.find(|(part, _)| part.node.as_str() == ticket.node)
    });
    found.map(|(_, rank)| rank.host_key.clone()).unwrap_or_default()
}

pub(super) fn no_gateway() -> Status {
    with_hint(
        Code::Unavailable,
        "no gateway is up that could carry the stream",
        "an administrator starts one with `carrel-broker gateway`",
    )
}

/// Stream endpoints that the caller can dial, in order of preference.
pub(super) fn endpoints(call: &Call) -> Vec<String> {
    let all = call
        .context
        .gateways
        .list()
        .into_iter()
        .flat_map(|gateway| gateway.client_streams);
    let mut all = all.filter(|endpoint| match endpoint.parse() {
        Ok(Endpoint::Unix(_)) => call.asker.local,
        Ok(Endpoint::Tcp(_)) => true,
        Err(_) => false,
    });
    if call.asker.caller.job().is_some() {
        // A container reaches its node's agent, which knows the gateways.
        return all.next().map(|_| inside::streams()).into_iter().collect();
    }
    all.collect()
}
