//! The handshake of byte streams: how a client or an agent that dials a
//! gateway's stream endpoint shows what it may do there.
//!
//! The gateway sends a nonce on accept; the dialler answers with a
//! [`StreamHello`] that carries `HMAC-SHA256(secret, nonce)`; the gateway
//! answers a client (never an agent) with a [`StreamAccept`]. Raw bytes follow.
//! A client's secret comes with its ticket from the broker and is
//! `HMAC-SHA256(stream key, ticket)`, so that a gateway recomputes it; an
//! agent's is the one in the gateway's `GatewayAsks`.
//!
//! Nothing here does I/O. Frames are a 4-byte big-endian length and a message
//! of at most [`MAX_FRAME`] bytes. Whoever reads must read a frame's bytes and
//! no more: what follows the handshake belongs to the relay.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use prost::Message;
use sha2::Sha256;

use crate::v1::{StreamAccept, StreamHello, StreamTicket, stream_hello};

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

fn mac(key: &[u8], data: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length (RFC 2104)");
    mac.update(data);
    mac
}

/// `HMAC-SHA256(stream key, ticket)`: the secret of a serialized [`StreamTicket`].
pub fn ticket_secret(stream_key: &[u8], ticket: &[u8]) -> Secret {
    mac(stream_key, ticket).finalize().into_bytes().into()
}

/// `HMAC-SHA256(secret, nonce)`: shows possession of the secret to whoever sent the nonce.
pub fn proof(secret: &[u8], nonce: &Nonce) -> Secret {
    mac(secret, nonce).finalize().into_bytes().into()
}

/// Whether `given` is [`proof`]`(secret, nonce)`; takes the same time whatever differs.
pub fn verify_proof(secret: &[u8], nonce: &Nonce, given: &[u8]) -> bool {
    mac(secret, nonce).verify_slice(given).is_ok()
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

/// A client's hello, framed.
pub fn client_hello(ticket: &[u8], secret: &[u8], nonce: &Nonce) -> Vec<u8> {
    let who = stream_hello::Who::Ticket(ticket.to_vec());
    frame(&StreamHello {
        who: Some(who),
        proof: proof(secret, nonce).to_vec(),
    })
}

/// An agent's hello, framed.
pub fn agent_hello(stream_id: &[u8], secret: &[u8], nonce: &Nonce) -> Vec<u8> {
    let who = stream_hello::Who::StreamId(stream_id.to_vec());
    frame(&StreamHello {
        who: Some(who),
        proof: proof(secret, nonce).to_vec(),
    })
}

/// Who dialled, as it says; believed only once the proof is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A client, with a serialized [`StreamTicket`].
    Client {
        /// The serialized ticket.
        ticket: Vec<u8>,
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
        Some(stream_hello::Who::Ticket(ticket)) => Caller::Client { ticket },
        Some(stream_hello::Who::StreamId(id)) => Caller::Agent {
            stream_id: id.try_into().map_err(|_| HandshakeError::Length("stream id"))?,
        },
        None => return Err(HandshakeError::Nobody),
    };
    Ok(Hello { caller, proof })
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

/// The gateway's answer to a client, framed: an empty error accepts. A long
/// error is cut so that the frame stays readable to the client.
pub fn accept_frame(error: &str) -> Vec<u8> {
    const LONGEST: usize = MAX_FRAME - 16;
    let mut end = error.len().min(LONGEST);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    frame(&StreamAccept {
        error: error[..end].to_owned(),
    })
}

/// Reads the message of an accept's frame: the gateway's error, or none.
pub fn parse_accept(body: &[u8]) -> Result<Option<String>, HandshakeError> {
    let accept = StreamAccept::decode(body).map_err(|_| HandshakeError::Malformed)?;
    Ok((!accept.error.is_empty()).then_some(accept.error))
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
        let given = proof(&secret, &NONCE);
        assert!(verify_proof(&secret, &NONCE, &given));
        assert!(!verify_proof(&secret, &[8; NONCE_LEN], &given));
        assert!(!verify_proof(&ticket_secret(b"kez", b"ticket"), &NONCE, &given));
        assert!(!verify_proof(&secret, &NONCE, &given[..31]));
        assert!(!verify_proof(&secret, &NONCE, &[]));
    }

    #[test]
    fn hellos_come_back_as_sent() {
        let secret = [1; SECRET_LEN];
        let client = client_hello(b"a ticket", &secret, &NONCE);
        let hello = parse_hello(body(&client)).expect("a client's hello");
        assert_eq!(
            hello.caller,
            Caller::Client {
                ticket: b"a ticket".to_vec()
            }
        );
        assert!(verify_proof(&secret, &NONCE, &hello.proof));

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
        let good = client_hello(&[3; 100], &[1; SECRET_LEN], &NONCE);
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

    #[test]
    fn a_long_error_still_fits_its_frame() {
        let long = accept_frame(&"ü".repeat(MAX_FRAME));
        let error = parse_accept(body(&long)).expect("an accept").expect("an error");
        assert!(error.len() > MAX_FRAME - 32);
        assert_eq!(parse_accept(body(&accept_frame(""))), Ok(None));
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
