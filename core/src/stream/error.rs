//! What ends a stream for good.

use thiserror::Error;

use super::frame::{CloseReason, FrameError};

/// Why a stream cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// A preface or frame that is not one.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The transport carries another stream.
    #[error("the peer speaks of another stream")]
    WrongStream,
    /// The peer asks to go on from where this side cannot.
    #[error("the peer wants to go on from byte {wanted}; kept are {from} to {to}")]
    Offset {
        /// What it wants.
        wanted: u64,
        /// First byte kept.
        from: u64,
        /// Last byte written.
        to: u64,
    },
    /// Data or an end out of order, or data after the end.
    #[error("data at byte {got} where byte {expected} was due")]
    Order {
        /// Where it says it stands.
        got: u64,
        /// What was due.
        expected: u64,
    },
    /// More data than the window allows.
    #[error("the peer sent more than its window")]
    Window,
    /// An acknowledgement of what was never sent, or that takes one back.
    #[error("acknowledgement of byte {got}; sent are {from} to {to}")]
    Acknowledgement {
        /// What it says.
        got: u64,
        /// Acknowledged before.
        from: u64,
        /// Sent.
        to: u64,
    },
    /// The peer gave the stream up.
    #[error("the peer closed the stream ({reason:?}): {text}")]
    Closed {
        /// Why.
        reason: CloseReason,
        /// In words.
        text: String,
    },
}
