//! The secret of a stream, and how its dialler proves that it knows it.
//!
//! Both sides of a new stream tell a public key in their prefaces and compute
//! `HMAC-SHA256(X25519(own, peer's), "carrel stream", id, dialler's key, acceptor's key)`.
//! Nothing here does I/O or draws numbers.

use carrel_core::stream::claim::{Challenge, Claim, PROOF_BYTES};
use carrel_core::stream::{KEY_BYTES, StreamId};
use curve25519_dalek::montgomery::MontgomeryPoint;
use hmac::Mac;

use crate::stream::{Secret, mac};

/// A key of X25519 (RFC 7748), for one stream.
#[derive(Clone)]
pub struct StreamKey {
    private: [u8; KEY_BYTES],
    public: [u8; KEY_BYTES],
}

impl StreamKey {
    /// From 32 random bytes.
    pub fn new(random: [u8; KEY_BYTES]) -> Self {
        Self {
            private: random,
            public: MontgomeryPoint::mul_base_clamped(random).0,
        }
    }

    /// For the preface.
    pub fn public(&self) -> [u8; KEY_BYTES] {
        self.public
    }

    /// The secret of a stream that this side dialled.
    /// `None`: the acceptor's key is one that no honest side has.
    pub fn dialled(&self, id: StreamId, acceptor: &[u8; KEY_BYTES]) -> Option<Secret> {
        self.secret(id, acceptor, [&self.public, acceptor])
    }

    /// The secret of a stream that this side accepted.
    /// `None`: the dialler's key is one that no honest side has.
    pub fn accepted(&self, id: StreamId, dialler: &[u8; KEY_BYTES]) -> Option<Secret> {
        self.secret(id, dialler, [dialler, &self.public])
    }

    fn secret(&self, id: StreamId, peer: &[u8; KEY_BYTES], keys: [&[u8; KEY_BYTES]; 2]) -> Option<Secret> {
        let shared = MontgomeryPoint(*peer).mul_clamped(self.private).0;
        // A point of low order: the result would not depend on the own key (RFC 7748, 6.1).
        if shared == [0; KEY_BYTES] {
            return None;
        }
        let parts: [&[u8]; 4] = [b"carrel stream", &id.0, keys[0], keys[1]];
        Some(mac(&shared, &parts).finalize().into_bytes().into())
    }
}

/// What answers a challenge.
pub fn claim_proof(secret: &Secret, claim: &Claim, challenge: &Challenge) -> [u8; PROOF_BYTES] {
    mac(secret, &[&claim.encode(), &challenge.encode()])
        .finalize()
        .into_bytes()
        .into()
}

/// Whether `given` is [`claim_proof`]; takes the same time whatever differs.
pub fn verify_claim(
    secret: &Secret,
    claim: &Claim,
    challenge: &Challenge,
    given: &[u8; PROOF_BYTES],
) -> bool {
    mac(secret, &[&claim.encode(), &challenge.encode()])
        .verify_slice(given)
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: StreamId = StreamId([7; 16]);

    #[test]
    fn both_sides_and_no_other_come_to_the_same_secret() {
        let (dialler, acceptor) = (StreamKey::new([1; 32]), StreamKey::new([2; 32]));
        let secret = dialler.dialled(ID, &acceptor.public());
        assert!(secret.is_some());
        assert_eq!(acceptor.accepted(ID, &dialler.public()), secret);
        assert_ne!(acceptor.dialled(ID, &dialler.public()), secret);
        assert_ne!(dialler.dialled(StreamId([8; 16]), &acceptor.public()), secret);
        let stranger = StreamKey::new([3; 32]);
        assert_ne!(stranger.dialled(ID, &acceptor.public()), secret);
        assert_ne!(stranger.accepted(ID, &dialler.public()), secret);
    }

    /// RFC 7748, 6.1: Alice's keys.
    #[test]
    fn keys_are_x25519() {
        let random: [u8; 32] = [
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45,
            0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
        ];
        let public = StreamKey::new(random).public();
        assert_eq!(public[..4], [0x85, 0x20, 0xf0, 0x09]);
        assert_eq!(public[28..], [0xaa, 0x9b, 0x4e, 0x6a]);
    }

    #[test]
    fn keys_of_low_order_are_refused() {
        let key = StreamKey::new([1; 32]);
        let mut one = [0; 32];
        one[0] = 1;
        for low in [[0; 32], one] {
            assert_eq!(key.dialled(ID, &low), None);
            assert_eq!(key.accepted(ID, &low), None);
        }
    }

    #[test]
    fn a_proof_holds_for_its_claim_and_challenge_only() {
        let secret = [5; 32];
        let claim = Claim {
            id: ID,
            nonce: [1; 32],
        };
        let challenge = Challenge { nonce: [2; 32] };
        let proof = claim_proof(&secret, &claim, &challenge);
        assert!(verify_claim(&secret, &claim, &challenge, &proof));
        let other = Claim {
            nonce: [3; 32],
            ..claim
        };
        assert!(!verify_claim(&secret, &other, &challenge, &proof));
        assert!(!verify_claim(
            &secret,
            &claim,
            &Challenge { nonce: [3; 32] },
            &proof
        ));
        assert!(!verify_claim(&[6; 32], &claim, &challenge, &proof));
    }
}
