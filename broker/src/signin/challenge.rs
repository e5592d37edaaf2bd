//! Challenges: what somebody signs to prove that a key is theirs.
//!
//! A challenge carries its own time and a code that only this process can make, so that nothing
//! is kept for those that are asked for; only those that were answered well are remembered, until
//! they would expire. It names the cluster and the authority by which the broker is known: a client
//! that sees another authority than the one it trusts is talking to somebody in between.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use carrel_core::model::time::Timestamp;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Time to sign one: to find a passphrase, or to touch a security key.
const VALIDITY: Duration = Duration::from_mins(2);
/// Good answers within [`VALIDITY`]: more than people sign in, and some 500 KiB.
const MAX_USED: usize = 10_000;
/// Longest challenge that is looked at; ours have some 300 bytes.
const MAX_LENGTH: usize = 1024;

type Nonce = [u8; 32];

/// Why a challenge does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOurs {
    /// Somebody else's, or that of a former start of the broker.
    #[error("the challenge is not this broker's")]
    Foreign,
    /// Too late.
    #[error("the challenge has expired")]
    Expired,
    /// It was answered already.
    #[error("the challenge was used already")]
    Used,
    /// Too many were answered within their time.
    #[error("too many sign-ins at this moment")]
    TooMany,
}

/// Makes challenges, and knows its own.
#[derive(Debug)]
pub struct Challenges {
    head: String,
    key: [u8; 32],
    used: Mutex<BTreeMap<Nonce, Timestamp>>,
}

/// A challenge that is ours and in time. Not yet used.
#[derive(Debug)]
pub struct Challenge {
    nonce: Nonce,
    expires: Timestamp,
}

impl Challenges {
    /// Of a cluster, whose broker is known by this authority ("sha256:…").
    pub fn new(cluster: String, authority: String) -> Self {
        Self {
            head: format!("carrel sign-in\ncluster {cluster}\nauthority {authority}\n"),
            key: rand::random(),
            used: Mutex::default(),
        }
    }

    /// A new one, and until when it counts.
    pub fn make(&self, now: Timestamp) -> (Vec<u8>, Timestamp) {
        let nonce: Nonce = rand::random();
        let expires = now.after(VALIDITY);
        let text = format!("{}nonce {}\nexpires {}\n", self.head, hex(&nonce), expires.0);
        let code = self.code(text.as_bytes()).finalize().into_bytes();
        (format!("{text}code {}\n", hex(&code)).into_bytes(), expires)
    }

    /// Looks at one that came back.
    pub fn check(&self, challenge: &[u8], now: Timestamp) -> Result<Challenge, NotOurs> {
        let (nonce, expires) = self.parse(challenge).ok_or(NotOurs::Foreign)?;
        if expires <= now {
            return Err(NotOurs::Expired);
        }
        Ok(Challenge { nonce, expires })
    }

    /// Uses one up: it counts once.
    pub fn take(&self, challenge: &Challenge, now: Timestamp) -> Result<(), NotOurs> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|_, expires| *expires > now);
        if used.contains_key(&challenge.nonce) {
            return Err(NotOurs::Used);
        }
        if used.len() >= MAX_USED {
            return Err(NotOurs::TooMany);
        }
        used.insert(challenge.nonce, challenge.expires);
        Ok(())
    }

    fn parse(&self, challenge: &[u8]) -> Option<(Nonce, Timestamp)> {
        if challenge.len() > MAX_LENGTH {
            return None;
        }
        let text = std::str::from_utf8(challenge).ok()?;
        let at = text.rfind("code ")?;
        let (signed, code) = text.split_at(at);
        let code = unhex(code.strip_prefix("code ")?.strip_suffix('\n')?)?;
        self.code(signed.as_bytes()).verify_slice(&code).ok()?;
        // It is ours: it has our form.
        let rest = signed.strip_prefix(&self.head)?.strip_prefix("nonce ")?;
        let (nonce, rest) = rest.split_once('\n')?;
        let expires = rest.strip_prefix("expires ")?.strip_suffix('\n')?;
        Some((unhex(nonce)?, Timestamp(expires.parse().ok()?)))
    }

    fn code(&self, text: &[u8]) -> Hmac<Sha256> {
        let mut code =
            Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length (RFC 2104)");
        code.update(text);
        code
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Nonce> {
    let digits = text.as_bytes();
    let mut bytes = Nonce::default();
    if digits.len() != bytes.len() * 2 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |d: u8| char::from(d).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn challenges() -> Challenges {
        Challenges::new("c0ffee".into(), "sha256:00".into())
    }

    #[test]
    fn a_challenge_counts_once_and_in_time() {
        let challenges = challenges();
        let (text, expires) = challenges.make(NOW);
        let checked = challenges.check(&text, NOW).expect("ours");
        assert_eq!(challenges.take(&checked, NOW), Ok(()));
        assert_eq!(challenges.take(&checked, NOW), Err(NotOurs::Used));
        let (other, _) = challenges.make(NOW);
        assert_ne!(text, other);
        assert_eq!(challenges.check(&other, expires).err(), Some(NotOurs::Expired));
        // What cannot come again is forgotten.
        let (later, _) = challenges.make(expires);
        let later = challenges.check(&later, expires).expect("ours");
        challenges.take(&later, expires).expect("unused");
        assert_eq!(challenges.used.lock().expect("it").len(), 1);
    }

    #[test]
    fn what_is_not_ours_is_not_taken() {
        let challenges = challenges();
        let (text, _) = challenges.make(NOW);
        assert_eq!(
            self::challenges().check(&text, NOW).err(),
            Some(NotOurs::Foreign),
            "a restart"
        );
        let text = String::from_utf8(text).expect("text");
        let longer = text.replace("expires 1", "expires 9");
        for bad in [
            "",
            "code ",
            &longer,
            &text[1..],
            &text.repeat(9),
            &text.to_uppercase(),
        ] {
            assert_eq!(
                challenges.check(bad.as_bytes(), NOW).err(),
                Some(NotOurs::Foreign),
                "{bad}"
            );
        }
        assert!(challenges.check(&[0xff; 300], NOW).is_err());
    }

    #[test]
    fn it_says_whose_it_is() {
        let (text, _) = challenges().make(NOW);
        let text = String::from_utf8(text).expect("text");
        assert!(
            text.starts_with("carrel sign-in\ncluster c0ffee\nauthority sha256:00\nnonce "),
            "{text}"
        );
    }
}
