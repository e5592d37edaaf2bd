//! Conversions between messages and [`carrel_core::model`].
//!
//! To a message, a conversion cannot fail (`From`). From a message, which a peer
//! wrote, it can (`TryFrom`): names are checked, enumerations must be known, and
//! lists that belong together must have equal lengths. Nothing here asserts
//! anything of a peer's message.

mod constraints;
mod desired;
mod gang;
mod inventory;
mod mig;
mod observed;
mod queue;
mod request;
mod reservation;
mod rights;
mod start;
mod terms;

use carrel_core::model::features::BadExpression;
use carrel_core::model::host_list::BadHostList;
use carrel_core::model::ids::{BadName, ClusterId, Incarnation, SessionId};
use thiserror::Error;

use crate::v1;

pub use desired::desired;
pub use gang::rank_network;

/// Longest cluster id that is accepted, bytes; ours have 32.
const MAX_CLUSTER_ID: usize = 64;
/// Longest text for people that is taken over from a peer, bytes. Longer ones are cut.
const MAX_TEXT: usize = 4096;

/// What is wrong with a peer's message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConvertError {
    /// A field that must be there is not.
    #[error("the message has no {0}")]
    Missing(&'static str),
    /// A name is not one.
    #[error(transparent)]
    Name(#[from] BadName),
    /// An enumeration's value that this version does not know.
    #[error("{field} has the unknown value {value}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// The value that came.
        value: i32,
    },
    /// A host list is none.
    #[error(transparent)]
    HostList(#[from] BadHostList),
    /// An expression over features is none.
    #[error(transparent)]
    Features(#[from] BadExpression),
    /// Anything else.
    #[error("{field} is not valid: {why}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What it must be.
        why: &'static str,
    },
}

/// A text for people, cut to [`MAX_TEXT`].
fn text(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let mut end = MAX_TEXT;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

/// 0 stands for none.
fn session(id: u64) -> Option<SessionId> {
    (id != 0).then_some(SessionId(id))
}

/// None is written as 0.
fn session_number(id: Option<SessionId>) -> u64 {
    id.map_or(0, |id| id.0)
}

fn cluster(id: &str) -> Result<ClusterId, ConvertError> {
    let valid = (1..=MAX_CLUSTER_ID).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric());
    if valid {
        Ok(ClusterId(id.into()))
    } else {
        Err(ConvertError::Invalid {
            field: "cluster",
            why: "1 to 64 letters and digits",
        })
    }
}

impl From<Incarnation> for v1::Incarnation {
    fn from(incarnation: Incarnation) -> Self {
        Self {
            number: incarnation.number,
            nonce: incarnation.nonce,
        }
    }
}

impl From<v1::Incarnation> for Incarnation {
    fn from(incarnation: v1::Incarnation) -> Self {
        Self {
            number: incarnation.number,
            nonce: incarnation.nonce,
        }
    }
}

#[cfg(test)]
mod tests;
