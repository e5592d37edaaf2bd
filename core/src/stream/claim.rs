//! Coming back to a stream: how a dialler shows that it is the one that began it.
//!
//! On a new transport the dialler claims the stream by its id, is challenged, and answers with a
//! proof, `HMAC-SHA256(secret, claim and challenge)`. Both sides computed the secret from the keys
//! in the stream's first prefaces, so that it never crossed the wire, and both nonces are fresh:
//! whoever only watches transports, or replays them, takes nothing over. Whoever may change bytes on
//! the way could cut the stream in any case. After the proof both sides send their prefaces. A claim
//! that is not granted is answered by [`Endpoint::refuse`](super::Endpoint::refuse).
//!
//! | claim, 56 bytes | challenge, 40 bytes | proof, 32 bytes |
//! |---|---|---|
//! | 8 [`CLAIM_MAGIC`] | 8 [`CLAIM_MAGIC`] | 32 HMAC-SHA256 |
//! | 16 stream id | 32 nonce | |
//! | 32 nonce | | |

use super::frame::{FrameError, StreamId, field};

/// First bytes of a transport that comes back to a stream, and of the answer to it; as long as
/// [`MAGIC`](super::MAGIC).
pub const CLAIM_MAGIC: [u8; 8] = *b"CARRELR1";
/// Length of a claim.
pub const CLAIM_BYTES: usize = 56;
/// Length of a challenge.
pub const CHALLENGE_BYTES: usize = 40;
/// Length of a proof.
pub const PROOF_BYTES: usize = 32;
/// Length of the nonces.
pub const CLAIM_NONCE_BYTES: usize = 32;

/// The dialler's wish to go on with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The stream.
    pub id: StreamId,
    /// Drawn by the dialler for this claim.
    pub nonce: [u8; CLAIM_NONCE_BYTES],
}

impl Claim {
    /// As sent.
    pub fn encode(&self) -> [u8; CLAIM_BYTES] {
        let mut out = [0; CLAIM_BYTES];
        out[..8].copy_from_slice(&CLAIM_MAGIC);
        out[8..24].copy_from_slice(&self.id.0);
        out[24..].copy_from_slice(&self.nonce);
        out
    }

    /// From what was received.
    pub fn decode(bytes: &[u8; CLAIM_BYTES]) -> Result<Self, FrameError> {
        if bytes[..8] != CLAIM_MAGIC {
            return Err(FrameError::Magic);
        }
        Ok(Self {
            id: StreamId(field(bytes, 8)),
            nonce: field(bytes, 24),
        })
    }
}

/// The answer to a claim on a stream that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Drawn by the acceptor for this claim.
    pub nonce: [u8; CLAIM_NONCE_BYTES],
}

impl Challenge {
    /// As sent.
    pub fn encode(&self) -> [u8; CHALLENGE_BYTES] {
        let mut out = [0; CHALLENGE_BYTES];
        out[..8].copy_from_slice(&CLAIM_MAGIC);
        out[8..].copy_from_slice(&self.nonce);
        out
    }

    /// From what was received.
    pub fn decode(bytes: &[u8; CHALLENGE_BYTES]) -> Result<Self, FrameError> {
        if bytes[..8] != CLAIM_MAGIC {
            return Err(FrameError::Magic);
        }
        Ok(Self {
            nonce: field(bytes, 8),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn claims_and_challenges_come_back_as_sent_and_nothing_else_is_one(
            id in any::<[u8; 16]>(), nonce in any::<[u8; 32]>(), at in 0..8_usize, bit in 0..8_u8,
        ) {
            let claim = Claim { id: StreamId(id), nonce };
            let challenge = Challenge { nonce };
            prop_assert_eq!(Claim::decode(&claim.encode()), Ok(claim));
            prop_assert_eq!(Challenge::decode(&challenge.encode()), Ok(challenge));
            let (mut bad_claim, mut bad_challenge) = (claim.encode(), challenge.encode());
            bad_claim[at] ^= 1 << bit;
            bad_challenge[at] ^= 1 << bit;
            prop_assert_eq!(Claim::decode(&bad_claim), Err(FrameError::Magic));
            prop_assert_eq!(Challenge::decode(&bad_challenge), Err(FrameError::Magic));
        }
    }
}
