//! The resumable stream: what carrel-init and `carrel proxy` hear from each other.

use bytes::Bytes;
use carrel_core::stream::claim::{CHALLENGE_BYTES, CLAIM_BYTES, CLAIM_NONCE_BYTES, Challenge, Claim};
use carrel_core::stream::{
    Endpoint, INITIAL_CREDIT, KEY_BYTES, Limits, PREFACE_BYTES, Preface, Read, StreamId,
};

use crate::Target;

/// Frames after a preface, in pieces as a network cuts them.
pub const FRAMES: Target = Target {
    name: "stream",
    run: frames,
    seeds: conversation,
};

/// A claim on a stream, and the challenge that answers it.
pub const CLAIMS: Target = Target {
    name: "claim",
    run: claims,
    seeds: || {
        let claim = Claim {
            id: ID,
            nonce: [3; CLAIM_NONCE_BYTES],
        };
        let challenge = Challenge {
            nonce: [4; CLAIM_NONCE_BYTES],
        };
        vec![claim.encode().to_vec(), challenge.encode().to_vec()]
    },
};

const ID: StreamId = StreamId([9; 16]);
const LIMITS: Limits = Limits {
    replay: INITIAL_CREDIT,
    window: INITIAL_CREDIT,
};

fn attached(key: u8) -> Endpoint {
    let mut endpoint = Endpoint::new(ID, [key; KEY_BYTES], LIMITS);
    endpoint.attach();
    endpoint
}

fn sent(endpoint: &mut Endpoint) -> Vec<u8> {
    let mut wire = Vec::new();
    while let Some(transmit) = endpoint.poll_transmit() {
        wire.extend_from_slice(transmit.head());
        wire.extend_from_slice(&transmit.body);
    }
    wire
}

/// The first byte says where the rest is cut; an endpoint that heard it whole hears the same.
fn frames(data: &[u8]) {
    let Some((cut, wire)) = data.split_first() else {
        return;
    };
    let cut = wire.len() * usize::from(*cut) / 256;
    let hear = |pieces: &[&[u8]]| {
        let mut endpoint = attached(1);
        endpoint.write(Bytes::from_static(b"to be replayed"));
        sent(&mut endpoint);
        let heard = pieces.iter().try_for_each(|piece| endpoint.handle_bytes(piece));
        let mut read = Vec::new();
        while let Read::Data(bytes) = endpoint.read() {
            read.extend_from_slice(&bytes);
        }
        // What it says to that, and how much it holds, is bounded.
        let said = sent(&mut endpoint).len();
        assert!(said < 1 << 20, "{said} bytes were said");
        assert!(
            read.len() <= LIMITS.window as usize,
            "{} bytes were held",
            read.len()
        );
        endpoint.detach();
        (heard.is_ok(), read)
    };
    assert_eq!(hear(&[wire]), hear(&[&wire[..cut], &wire[cut..]]));
}

/// What one end says of itself: hello, data, an end.
fn conversation() -> Vec<Vec<u8>> {
    let mut near = attached(2);
    near.write(Bytes::from_static(b"hello"));
    let mut hello = vec![40];
    hello.extend(sent(&mut near));
    let mut all = hello.clone();
    let mut far = attached(1);
    far.handle_bytes(&hello[1..]).expect("well-formed");
    while let Read::Data(_) = far.read() {}
    far.write(Bytes::from_static(b"and back"));
    near.handle_bytes(&sent(&mut far)).expect("well-formed");
    near.beat();
    near.finish();
    all.extend(sent(&mut near));
    vec![hello, all]
}

fn claims(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<CLAIM_BYTES>()
        && let Ok(claim) = Claim::decode(bytes)
    {
        assert_eq!(claim.encode(), *bytes);
    }
    if let Some(bytes) = data.first_chunk::<CHALLENGE_BYTES>()
        && let Ok(challenge) = Challenge::decode(bytes)
    {
        assert_eq!(challenge.encode(), *bytes);
    }
    if let Some(bytes) = data.first_chunk::<PREFACE_BYTES>()
        && let Ok(preface) = Preface::decode(bytes)
    {
        assert_eq!(preface.encode(), *bytes);
    }
}
