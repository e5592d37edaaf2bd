//! The handshake of byte streams: how a client or an agent that dials a
//! gateway's stream endpoint shows what it may do there.
//!
//! The gateway sends a nonce on accept; the dialler answers with a
//! [`StreamHello`] that carries `HMAC-SHA256(secret, nonce and stream)`; the
//! gateway answers a client (never an agent) with a [`StreamAccept`]. Raw bytes
//! follow. A client's secret comes with its ticket from the broker and is
//! `HMAC-SHA256(stream key, ticket)`, so that a gateway recomputes it; an
//! agent's is the one in the gateway's `GatewayAsks`. With its acceptance the
//! gateway hands out a [`Ticket`] to go on with the same stream after a cut.
//!
//! Nothing here does I/O. Frames are a 4-byte big-endian length and a message
//! of at most [`MAX_FRAME`] bytes. Whoever reads must read a frame's bytes and
//! no more: what follows the handshake belongs to the relay.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use carrel_core::stream::StreamId;
use hmac::{Hmac, KeyInit, Mac};
use prost::Message;
use sha2::Sha256;

use crate::v1::{StreamAccept, StreamHello, StreamRefusal, StreamTicket, stream_hello};

/// Length of the nonce that a gateway sends on accept.
pub const NONCE_LEN: usize = 32;
/// Length of secrets, proofs and the stream key.
pub const SECRET_LEN: usize = 32;
/// Length of `GatewayAsks.stream_id` and `StreamTicket.id`.
pub const ID_LEN: usize = 16;
/// Length of a frame's header.
pub const HEADER_LEN: usize = 4;
/// Longest message of the handshake: a ticket with the longest names is under
/// 500 bytes, an error message under 1,000; the rest is room for new fields.
pub const MAX_FRAME: usize = 4096;

/// A nonce, as sent by a gateway on accept.
pub type Nonce = [u8; NONCE_LEN];
/// A secret, a proof, or the stream key.
pub type Secret = [u8; SECRET_LEN];
/// A stream's or a ticket's id.
pub type Id = [u8; ID_LEN];

/// What is wrong with a peer's handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// A frame's header announces more than [`MAX_FRAME`].
    #[error("a handshake message of {0} bytes is longer than {MAX_FRAME}")]
    TooLong(usize),
    /// The frame is not the message that belongs here.
    #[error("the handshake message cannot be decoded")]
    Malformed,
    /// Neither ticket nor stream id.
    #[error("the handshake names neither a ticket nor a stream")]
    Nobody,
    /// An id or proof of the wrong length.
    #[error("the {0} has the wrong length")]
    Length(&'static str),
}

/// A client's permission for one stream.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// A serialized [`StreamTicket`].
    pub content: Vec<u8>,
    /// Its secret, which never crosses the wire.
    pub secret: Secret,
}

impl Ticket {
    /// With the secret that a holder of the stream key computes.
    pub fn new(stream_key: &Secret, content: &StreamTicket) -> Self {
        let content = content.encode_to_vec();
        let secret = ticket_secret(stream_key, &content);
        Self { content, secret }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").finish_non_exhaustive()
    }
}

/// HMAC-SHA256 over parts that stand one after the other.
pub(crate) fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length (RFC 2104)");
    for part in parts {
        mac.update(part);
    }
    mac
}

/// `HMAC-SHA256(stream key, ticket)`: the secret of a serialized [`StreamTicket`].
pub fn ticket_secret(stream_key: &[u8], ticket: &[u8]) -> Secret {
    mac(stream_key, &[ticket]).finalize().into_bytes().into()
}

/// `HMAC-SHA256(secret, nonce and stream)`: shows possession of the secret to whoever sent the
/// nonce. `stream` is a client's [`StreamHello::stream`], empty for an agent.
pub fn proof(secret: &[u8], nonce: &Nonce, stream: &[u8]) -> Secret {
    mac(secret, &[nonce, stream]).finalize().into_bytes().into()
}

/// Whether `given` is [`proof`]`(secret, nonce, stream)`; takes the same time whatever differs.
pub fn verify_proof(secret: &[u8], nonce: &Nonce, stream: &[u8], given: &[u8]) -> bool {
    mac(secret, &[nonce, stream]).verify_slice(given).is_ok()
}

/// Masks, or unmasks, the secret of a resumption ticket on its way to who proved `secret`: both
/// ends compute the mask, and each nonce's is used once.
fn masked(secret: &[u8], nonce: &Nonce, resumption: &[u8], plain: &Secret) -> Secret {
    let mask = mac(secret, &[b"carrel resumption", nonce, resumption]);
    let mut out: Secret = mask.finalize().into_bytes().into();
    out.iter_mut().zip(plain).for_each(|(out, plain)| *out ^= plain);
    out
}

/// A message with its header, ready to be written.
pub fn frame(message: &impl Message) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    message.encode_raw(&mut bytes);
    let len = (bytes.len() - HEADER_LEN) as u32;
    bytes[..HEADER_LEN].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// Length of the message behind a header.
pub fn frame_len(header: [u8; HEADER_LEN]) -> Result<usize, HandshakeError> {
    let len = u32::from_be_bytes(header) as usize;
    if len > MAX_FRAME {
        Err(HandshakeError::TooLong(len))
    } else {
        Ok(len)
    }
}

/// A client's hello, framed: for the stream that it is about to begin or to go on with.
pub fn client_hello(ticket: &Ticket, nonce: &Nonce, stream: StreamId) -> Vec<u8> {
    let who = stream_hello::Who::Ticket(ticket.content.clone());
    frame(&StreamHello {
        who: Some(who),
        proof: proof(&ticket.secret, nonce, &stream.0).to_vec(),
        stream: stream.0.to_vec(),
    })
}

/// An agent's hello, framed.
pub fn agent_hello(stream_id: &[u8], secret: &[u8], nonce: &Nonce) -> Vec<u8> {
    let who = stream_hello::Who::StreamId(stream_id.to_vec());
    frame(&StreamHello {
        who: Some(who),
        proof: proof(secret, nonce, &[]).to_vec(),
        stream: Vec::new(),
    })
}

/// Who dialled, as it says; believed only once the proof is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A client, with a serialized [`StreamTicket`].
    Client {
        /// The serialized ticket.
        ticket: Vec<u8>,
        /// The stream, if a ticket to go on with it is wanted.
        stream: Option<StreamId>,
    },
    /// An agent that was asked for a stream.
    Agent {
        /// `GatewayAsks.stream_id`.
        stream_id: Id,
    },
}

/// A parsed [`StreamHello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who dialled.
    pub caller: Caller,
    /// The proof, to be checked with [`verify_proof`].
    pub proof: Secret,
}

/// Reads the message of a hello's frame.
pub fn parse_hello(body: &[u8]) -> Result<Hello, HandshakeError> {
    let hello = StreamHello::decode(body).map_err(|_| HandshakeError::Malformed)?;
    let proof = hello
        .proof
        .try_into()
        .map_err(|_| HandshakeError::Length("proof"))?;
    let caller = match hello.who {
        Some(stream_hello::Who::Ticket(ticket)) => Caller::Client {
            ticket,
            stream: stream_of(&hello.stream)?,
        },
        Some(stream_hello::Who::StreamId(id)) => Caller::Agent {
            stream_id: id.try_into().map_err(|_| HandshakeError::Length("stream id"))?,
        },
        None => return Err(HandshakeError::Nobody),
    };
    Ok(Hello { caller, proof })
}

/// A stream's id in a message: 16 bytes, or none.
pub fn stream_of(bytes: &[u8]) -> Result<Option<StreamId>, HandshakeError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let id = bytes.try_into().map_err(|_| HandshakeError::Length("stream"))?;
    Ok(Some(StreamId(id)))
}

/// Reads a serialized ticket, and its id with the right length.
pub fn parse_ticket(ticket: &[u8]) -> Result<(Id, StreamTicket), HandshakeError> {
    let ticket = StreamTicket::decode(ticket).map_err(|_| HandshakeError::Malformed)?;
    let id = ticket
        .id
        .as_slice()
        .try_into()
        .map_err(|_| HandshakeError::Length("ticket id"))?;
    Ok((id, ticket))
}

/// A gateway's answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The stream stands; with a ticket to go on with it after a cut.
    Accepted(Option<Ticket>),
    /// Why not, for people, and what to do.
    Refused(StreamRefusal, String),
}

/// The gateway's acceptance, framed. `shown` is the secret of the ticket that the client showed.
pub fn accept_frame(resumption: Option<&Ticket>, shown: &[u8], nonce: &Nonce) -> Vec<u8> {
    let mut accept = StreamAccept::default();
    if let Some(ticket) = resumption {
        accept.masked_secret = masked(shown, nonce, &ticket.content, &ticket.secret).to_vec();
        accept.resumption.clone_from(&ticket.content);
    }
    frame(&accept)
}

/// The gateway's refusal, framed. A long reason is cut so that the frame stays readable to the client.
pub fn refuse_frame(refusal: StreamRefusal, reason: &str) -> Vec<u8> {
    const LONGEST: usize = MAX_FRAME - 16;
    let mut end = reason.len().min(LONGEST);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    frame(&StreamAccept {
        error: reason[..end].to_owned(),
        refusal: refusal.into(),
        ..StreamAccept::default()
    })
}

/// Reads the message of an answer's frame. `shown` is the secret of the ticket that was shown.
pub fn parse_answer(body: &[u8], shown: &[u8], nonce: &Nonce) -> Result<Answer, HandshakeError> {
    let accept = StreamAccept::decode(body).map_err(|_| HandshakeError::Malformed)?;
    if !accept.error.is_empty() {
        return Ok(Answer::Refused(accept.refusal(), accept.error));
    }
    if accept.resumption.is_empty() {
        return Ok(Answer::Accepted(None));
    }
    let length = |_| HandshakeError::Length("secret");
    let secret = Secret::try_from(accept.masked_secret).map_err(length)?;
    Ok(Answer::Accepted(Some(Ticket {
        secret: masked(shown, nonce, &accept.resumption, &secret),
        content: accept.resumption,
    })))
}

/// A stream endpoint, written `unix:/path` or `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A Unix socket on the same machine.
    Unix(PathBuf),
    /// `host:port`, an IPv6 address in brackets.
    Tcp(String),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

/// A text that is no [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no endpoint: write unix:/absolute/path or host:port")]
pub struct BadEndpoint(pub String);

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = || BadEndpoint(text.chars().take(200).collect());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(bad())
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        if host.is_empty() || bare_ipv6 || port.parse::<u16>().is_err() {
            return Err(bad());
        }
        Ok(Self::Tcp(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: Nonce = [7; NONCE_LEN];

    fn body(frame: &[u8]) -> &[u8] {
        let (header, body) = frame.split_first_chunk().expect("a header");
        assert_eq!(frame_len(*header), Ok(body.len()));
        body
    }

    /// RFC 4231, test case 2: both ends must compute plain HMAC-SHA256.
    #[test]
    fn secrets_are_hmac_sha256() {
        let secret = ticket_secret(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(secret[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        assert_eq!(secret[28..], [0x64, 0xec, 0x38, 0x43]);
    }

    #[test]
    fn a_proof_holds_for_its_secret_and_nonce_only() {
        let secret = ticket_secret(b"key", b"ticket");
        let given = proof(&secret, &NONCE, b"stream");
        assert!(verify_proof(&secret, &NONCE, b"stream", &given));
        assert!(!verify_proof(&secret, &[8; NONCE_LEN], b"stream", &given));
        assert!(!verify_proof(&secret, &NONCE, b"other", &given));
        assert!(!verify_proof(
            &ticket_secret(b"kez", b"ticket"),
            &NONCE,
            b"stream",
            &given
        ));
        assert!(!verify_proof(&secret, &NONCE, b"stream", &given[..31]));
        assert!(!verify_proof(&secret, &NONCE, b"stream", &[]));
    }

    #[test]
    fn hellos_come_back_as_sent() {
        let secret = [1; SECRET_LEN];
        let ticket = Ticket {
            content: b"a ticket".to_vec(),
            secret,
        };
        let client = client_hello(&ticket, &NONCE, StreamId([3; 16]));
        let hello = parse_hello(body(&client)).expect("a client's hello");
        assert_eq!(
            hello.caller,
            Caller::Client {
                ticket: b"a ticket".to_vec(),
                stream: Some(StreamId([3; 16])),
            }
        );
        assert!(verify_proof(&secret, &NONCE, &[3; 16], &hello.proof));

        let agent = agent_hello(&[9; ID_LEN], &secret, &NONCE);
        let hello = parse_hello(body(&agent)).expect("an agent's hello");
        assert_eq!(
            hello.caller,
            Caller::Agent {
                stream_id: [9; ID_LEN]
            }
        );
    }

    #[test]
    fn hostile_frames_are_refused_without_being_read() {
        assert_eq!(frame_len(*b"SSH-"), Err(HandshakeError::TooLong(0x5353_482d)));
        assert_eq!(
            frame_len((MAX_FRAME as u32 + 1).to_be_bytes()),
            Err(HandshakeError::TooLong(MAX_FRAME + 1))
        );
        assert_eq!(frame_len((MAX_FRAME as u32).to_be_bytes()), Ok(MAX_FRAME));

        assert_eq!(parse_hello(b"\xff\xff\xff"), Err(HandshakeError::Malformed));
        assert_eq!(parse_hello(b""), Err(HandshakeError::Length("proof")));
        let nobody = StreamHello {
            who: None,
            proof: vec![0; SECRET_LEN],
            stream: Vec::new(),
        };
        assert_eq!(parse_hello(&nobody.encode_to_vec()), Err(HandshakeError::Nobody));
        let short = agent_hello(&[9; 3], &[1; SECRET_LEN], &NONCE);
        assert_eq!(
            parse_hello(body(&short)),
            Err(HandshakeError::Length("stream id"))
        );
        assert_eq!(parse_ticket(b"\x0a\xff"), Err(HandshakeError::Malformed));
        assert_eq!(
            parse_ticket(b"").map(|_| ()),
            Err(HandshakeError::Length("ticket id"))
        );
    }

    /// Every prefix and every flipped bit of a hello parses or errs; none panics.
    #[test]
    fn damaged_hellos_never_panic() {
        let ticket = Ticket {
            content: vec![3; 100],
            secret: [1; SECRET_LEN],
        };
        let good = client_hello(&ticket, &NONCE, StreamId([3; 16]));
        let good = body(&good);
        for end in 0..good.len() {
            parse_hello(&good[..end]).ok();
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            parse_hello(&bad).ok();
        }
    }

    /// The next ticket's secret reaches who proved the last one's, and is on the wire for nobody else.
    #[test]
    fn a_resumption_ticket_is_for_who_showed_the_ticket_before() {
        let shown = [1; SECRET_LEN];
        let next = Ticket::new(
            &[5; SECRET_LEN],
            &StreamTicket {
                id: vec![2; ID_LEN],
                stream: vec![3; 16],
                ..StreamTicket::default()
            },
        );
        let wire = accept_frame(Some(&next), &shown, &NONCE);
        assert!(!wire.windows(SECRET_LEN).any(|window| window == next.secret));
        let answer = parse_answer(body(&wire), &shown, &NONCE);
        assert_eq!(answer, Ok(Answer::Accepted(Some(next.clone()))));
        for (secret, nonce) in [([2; SECRET_LEN], NONCE), (shown, [8; NONCE_LEN])] {
            let Ok(Answer::Accepted(Some(got))) = parse_answer(body(&wire), &secret, &nonce) else {
                panic!("it can be read");
            };
            assert_ne!(got.secret, next.secret);
        }
        let none = accept_frame(None, &shown, &NONCE);
        assert_eq!(
            parse_answer(body(&none), &shown, &NONCE),
            Ok(Answer::Accepted(None))
        );
    }

    #[test]
    fn a_long_reason_still_fits_its_frame() {
        let long = refuse_frame(StreamRefusal::Gone, &"ü".repeat(MAX_FRAME));
        let answer = parse_answer(body(&long), &[], &NONCE).expect("an answer");
        let Answer::Refused(StreamRefusal::Gone, reason) = answer else {
            panic!("{answer:?}");
        };
        assert!(reason.len() > MAX_FRAME - 32);
    }

    #[test]
    fn endpoints_read_and_print_alike() {
        for good in ["unix:/run/x.sock", "head:7001", "10.0.0.1:80", "[::1]:443"] {
            assert_eq!(good.parse::<Endpoint>().expect(good).to_string(), good);
        }
        for bad in ["", "unix:x", "head", ":1", "head:", "head:99999", "::1:443"] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }
}
