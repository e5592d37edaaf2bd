//! Permission for one byte stream.

use carrel_proto::stream::{Endpoint, Id, Ticket};
use carrel_proto::v1::{OpenStreamRequest, OpenStreamResponse, StreamTicket};
use tonic::{Code, Status};

use super::refuse::with_hint;
use super::ticket::ticket_for;
use super::{Call, convert, session_ref};

pub(super) async fn open_stream(
    call: Call,
    request: OpenStreamRequest,
) -> Result<OpenStreamResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let session = call.session(state, &session_ref(&request.name)?)?;
    let now = call.context.clock.now();
    let content = ticket_for(state, &session, request.rank, &call.asker.caller.user, now)?;
    let endpoints = endpoints(&call);
    if endpoints.is_empty() {
        return Err(no_gateway());
    }
    let id: Id = rand::random();
    let content = StreamTicket {
        id: id.to_vec(),
        ..content
    };
    let ticket = Ticket::new(call.context.gateways.stream_key(), &content);
    let base = convert::host_principal(state, &session);
    let host_principal = if request.rank == 0 {
        base
    } else {
        format!("{}.{base}", request.rank)
    };
    Ok(OpenStreamResponse {
        endpoints,
        ticket: ticket.content,
        secret: ticket.secret.to_vec(),
        host_principal,
    })
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
    all.filter(|endpoint| match endpoint.parse() {
        Ok(Endpoint::Unix(_)) => call.asker.local,
        Ok(Endpoint::Tcp(_)) => true,
        Err(_) => false,
    })
    .collect()
}
