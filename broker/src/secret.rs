//! Secrets handed out once, of which only the hash is kept.

use sha2::{Digest, Sha256};

/// Bytes of randomness: cannot be guessed, so that a plain hash is enough at rest.
const RANDOM_BYTES: usize = 32;
/// Longest text that is hashed at all.
const MAX_LENGTH: usize = 256;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// 62^43 > 2^256.
const BASE62_LENGTH: usize = 43;

/// Marks an API token, for secret scanners and people.
pub const TOKEN_PREFIX: &str = "carrel_";
/// Marks a node's one-time token.
pub const NODE_TOKEN_PREFIX: &str = "carrelnode_";

/// A new secret, `<prefix><43 letters and digits>`, and its hash.
pub fn generate(prefix: &str) -> (String, [u8; 32]) {
    let bytes: [u8; RANDOM_BYTES] = rand::random();
    let text = format!("{prefix}{}", base62(bytes));
    let hash = Sha256::digest(&text).into();
    (text, hash)
}

/// The hash of a secret that a client gives; none for what cannot be one.
pub fn hash(text: &str, prefix: &str) -> Option<[u8; 32]> {
    let text = text.trim();
    (text.len() <= MAX_LENGTH && text.starts_with(prefix)).then(|| Sha256::digest(text).into())
}

/// Random hexadecimal digits, for handles that are not secret.
pub fn handle() -> String {
    format!("{:012x}", rand::random::<u64>() >> 16)
}

/// A big-endian number in base 62, padded.
fn base62(mut number: [u8; RANDOM_BYTES]) -> String {
    let mut digits = [0; BASE62_LENGTH];
    for digit in digits.iter_mut().rev() {
        let mut remainder = 0u32;
        for byte in &mut number {
            let value = remainder << 8 | u32::from(*byte);
            *byte = (value / 62) as u8;
            remainder = value % 62;
        }
        *digit = DIGITS[remainder as usize];
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_recognised_by_their_hash() {
        let (text, hashed) = generate(TOKEN_PREFIX);
        assert_eq!(text.len(), TOKEN_PREFIX.len() + BASE62_LENGTH);
        assert_eq!(hash(&text, TOKEN_PREFIX), Some(hashed));
        assert_eq!(hash(&format!(" {text}\n"), TOKEN_PREFIX), Some(hashed));
        assert_eq!(hash(&text, NODE_TOKEN_PREFIX), None);
        assert_eq!(hash(&"x".repeat(MAX_LENGTH + 1), ""), None);
        assert_ne!(generate(TOKEN_PREFIX).0, text);
    }

    #[test]
    fn base62_is_positional() {
        let mut number = [0; RANDOM_BYTES];
        number[RANDOM_BYTES - 1] = 61;
        assert!(base62(number).ends_with("0z"));
        number[RANDOM_BYTES - 1] = 62;
        assert!(base62(number).ends_with("10"));
        assert_eq!(base62([0xff; RANDOM_BYTES]).len(), BASE62_LENGTH);
    }
}
