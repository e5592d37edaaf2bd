//! Identifiers. Each is a type of its own, so that none is taken for another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number_id! {
    /// A job. Counts up from 1; never used twice by one cluster.
    JobId
}
number_id! {
    /// A session. Counts up from 1; never used twice by one cluster.
    SessionId
}

/// A fencing token: which allocation of a job is meant.
///
/// Ordered first by the number of the broker's incarnation, so that a later
/// allocation is greater, whatever was restarted; then by bits of its nonce,
/// so that two starts that took the same number (a restored backup) give
/// different ones; then by a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// Bits below the incarnation's number.
    const START_BITS: u32 = 40;
    /// Bits for the count within one incarnation: a thousand allocations a second for three days.
    const COUNT_BITS: u32 = 28;

    /// The least generation of the incarnations of a number.
    pub fn first_of(number: u64) -> Self {
        Self(number << Self::START_BITS)
    }

    /// Those of one incarnation come after this one.
    pub fn before(incarnation: Incarnation) -> Self {
        let nonce_bits = Self::START_BITS - Self::COUNT_BITS;
        let nonce = incarnation.nonce & ((1 << nonce_bits) - 1);
        Self(Self::first_of(incarnation.number).0 | nonce << Self::COUNT_BITS)
    }

    /// The next one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:x}",
            self.0 >> Self::START_BITS,
            self.0 & ((1 << Self::START_BITS) - 1)
        )
    }
}

impl FromStr for Generation {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let parse = || {
            let (number, rest) = text.split_once('.')?;
            let number: u64 = number.parse().ok()?;
            let rest = u64::from_str_radix(rest, 16).ok()?;
            let fits = number >> (u64::BITS - Self::START_BITS) == 0 && rest >> Self::START_BITS == 0;
            fits.then_some(Self(number << Self::START_BITS | rest))
        };
        parse().ok_or_else(|| BadName {
            what: "generation",
            text: text.chars().take(80).collect(),
            rule: "a number, '.', and hexadecimal digits",
        })
    }
}

/// One allocation of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobKey {
    /// The job.
    pub job: JobId,
    /// Which allocation of it.
    pub generation: Generation,
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.job, self.generation)
    }
}

impl FromStr for JobKey {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let parts = text
            .split_once('@')
            .and_then(|(job, generation)| Some((job.parse().ok()?, generation.parse().ok()?)));
        let (job, generation) = parts.ok_or_else(|| BadName {
            what: "allocation",
            text: text.chars().take(80).collect(),
            rule: "a job id, '@', and a generation, as in 7@3.1",
        })?;
        Ok(Self {
            job: JobId(job),
            generation,
        })
    }
}

/// A start of a broker. The number grows with each start; the nonce, random,
/// tells apart two starts that took the same number (a restored backup).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// Orders the starts of one store.
    pub number: u64,
    /// Random.
    pub nonce: u64,
}

/// A text that is not a name of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} {text:?} is not valid: {rule}")]
pub struct BadName {
    /// Kind of name.
    pub what: &'static str,
    /// What was given.
    pub text: String,
    /// What it must be.
    pub rule: &'static str,
}

macro_rules! name_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            /// That of the texts; a name beside its own copy, as in most lookups, is not read.
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                if std::sync::Arc::ptr_eq(&self.0, &other.0) {
                    std::cmp::Ordering::Equal
                } else {
                    self.0.cmp(&other.0)
                }
            }
        }

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = BadName;

            fn from_str(text: &str) -> Result<Self, BadName> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.into()))
                } else {
                    let shown = text.chars().take(80).collect();
                    Err(BadName { what: $what, text: shown, rule: $rule })
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;

            fn try_from(text: String) -> Result<Self, BadName> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes
            .iter()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        && !bytes.starts_with(b"-")
        && !bytes.ends_with(b"-")
}

fn is_host_name(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|label| {
            let bytes = label.as_bytes();
            (1..=63).contains(&bytes.len())
                && bytes
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || *b == b'-' || *b == b'_')
                && !bytes.starts_with(b"-")
        })
}

fn is_user_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=64).contains(&bytes.len())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"._-@".contains(b))
        && !bytes.starts_with(b"-")
        && !bytes.starts_with(b".")
}

fn is_gpu_uuid(text: &str) -> bool {
    (1..=96).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_/".contains(&b))
}

name_id! {
    /// A session's name: a DNS label (RFC 1123), since it becomes a host name.
    SessionName, "session name", "1 to 63 of a-z, 0-9 and '-', not at either end '-'", is_label
}
name_id! {
    /// A node's name: a host name.
    NodeName, "node name", "a host name", is_host_name
}
name_id! {
    /// A user's login name.
    UserName, "user name", "1 to 64 of letters, digits and . _ - @", is_user_name
}
name_id! {
    /// An account's name.
    AccountName, "account name", "1 to 64 of letters, digits and . _ - @", is_user_name
}
name_id! {
    /// A QOS's name.
    QosName, "QOS name", "1 to 64 of letters, digits and . _ - @", is_user_name
}
name_id! {
    /// A partition's name.
    PartitionName, "partition name", "1 to 64 of letters, digits and . _ - @", is_user_name
}
name_id! {
    /// A reservation's name.
    ReservationName, "reservation name", "1 to 64 of letters, digits and . _ - @", is_user_name
}
name_id! {
    /// A GPU's (or MIG instance's) UUID, as the driver prints it.
    GpuUuid, "GPU UUID", "letters, digits and - _ /", is_gpu_uuid
}

impl AccountName {
    /// The account of whoever is in none.
    pub fn default_account() -> Self {
        Self("default".into())
    }
}

impl QosName {
    /// The QOS of whoever asks for none.
    pub fn normal() -> Self {
        Self("normal".into())
    }
}

impl PartitionName {
    /// All nodes, where no operator has divided them.
    pub fn all() -> Self {
        Self("all".into())
    }
}

impl SessionName {
    /// The first of all names, for ranges over them.
    pub(crate) fn first() -> Self {
        Self("0".into())
    }
}

/// A cluster's id: 32 hexadecimal digits drawn when its store was made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub std::sync::Arc<str>);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_of_a_later_incarnation_are_greater() {
        let old = Generation::first_of(7).next().next();
        assert!(Generation::first_of(8) > old);
        assert_eq!(old.to_string(), "7.2");
    }

    #[test]
    fn two_starts_of_one_number_give_different_generations() {
        let start = |nonce| Generation::before(Incarnation { number: 7, nonce });
        let (one, other) = (start(0x1f05).next(), start(0x2f06).next());
        assert_ne!(one, other);
        assert!(one > Generation::first_of(7) && other < Generation::first_of(8));
        let key = JobKey {
            job: JobId(41),
            generation: one,
        };
        assert_eq!(key.to_string().parse(), Ok(key));
        for bad in [
            "41",
            "41@7",
            "x@7.1",
            "41@7.x",
            "41@7.10000000000",
            "41@99999999.1",
        ] {
            assert!(bad.parse::<JobKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn session_names_are_dns_labels() {
        for good in ["dev", "a", "exp-7", "0"] {
            assert!(good.parse::<SessionName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "Dev", "a.b", "a b", "ü", &"a".repeat(64)] {
            assert!(bad.parse::<SessionName>().is_err(), "{bad}");
        }
    }
}
