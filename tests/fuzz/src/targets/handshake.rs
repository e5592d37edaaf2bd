//! The gateway's handshake: hellos that it hears from anybody, answers that clients hear.

use carrel_core::stream::StreamId;
use carrel_proto::stream::{
    Nonce, Ticket, accept_frame, agent_hello, client_hello, frame_len, parse_answer, parse_hello,
    parse_ticket, refuse_frame, ticket_secret, verify_proof,
};
use carrel_proto::v1::{StreamRefusal, StreamTicket};

use crate::Target;

/// A frame as a gateway reads it.
pub const HELLO: Target = Target {
    name: "hello",
    run: hello,
    seeds: || {
        vec![
            client_hello(&ticket(), &NONCE, StreamId([7; 16])),
            agent_hello(&[1; 16], &[2; 32], &NONCE),
        ]
    },
};

/// A frame as `carrel proxy` reads it.
pub const ANSWER: Target = Target {
    name: "answer",
    run: answer,
    seeds: || {
        vec![
            accept_frame(Some(&ticket()), b"shown", &NONCE),
            accept_frame(None, b"shown", &NONCE),
            refuse_frame(StreamRefusal::Gone, "the session is gone"),
        ]
    },
};

const NONCE: Nonce = [5; size_of::<Nonce>()];

fn ticket() -> Ticket {
    let content = StreamTicket {
        id: vec![6; 16],
        expires_ms: 1_700_000_000_000,
        ..StreamTicket::default()
    };
    Ticket::new(&[8; 32], &content)
}

/// The body of a frame, if there is a whole one.
fn body(data: &[u8]) -> Option<&[u8]> {
    let (header, rest) = data.split_first_chunk()?;
    rest.get(..frame_len(*header).ok()?)
}

fn hello(data: &[u8]) {
    let Some(Ok(hello)) = body(data).map(parse_hello) else {
        return;
    };
    let believed = verify_proof(&[2; 32], &NONCE, &[1], &hello.proof);
    assert!(!believed, "nobody has made this proof");
    if let carrel_proto::stream::Caller::Client { ticket, .. } = &hello.caller {
        // Read before it is verified; its secret is the stream key's.
        let _ = parse_ticket(ticket);
        let _ = ticket_secret(&[8; 32], ticket);
    }
}

fn answer(data: &[u8]) {
    if let Some(body) = body(data) {
        // An error is an answer as well.
        let _ = parse_answer(body, b"shown", &NONCE);
    }
}
