//! What goes over a transport: one preface each way, then frames.
//!
//! Preface, 72 bytes, big-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 2 | version, 1 |
//! | 2 | flags: 1 this transport resumes a stream; 2 the peer's end was consumed; 4 refused: a close follows |
//! | 4 | receive window: how many bytes the peer may send beyond what was consumed |
//! | 16 | stream id, random, drawn by the dialler |
//! | 8 | bytes consumed so far: the peer goes on from there |
//! | 32 | public key, by which both sides agree on what the dialler needs to [claim](super::claim) the stream |
//!
//! Frame: 16 bytes of header, then `length` bytes of body:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | kind: 1 data, 2 acknowledgement, 3 end, 4 close, 5 heartbeat |
//! | 1 | flags: of an acknowledgement, 1: the end was consumed too; of a close, the reason |
//! | 2 | zero |
//! | 4 | length of the body |
//! | 8 | offset: of data and end, where they stand in the stream; of an acknowledgement, bytes consumed |

use thiserror::Error;

/// First bytes of a framed connection; as long as `SSH-2.0-`, which begins a raw one.
pub const MAGIC: [u8; 8] = *b"CARRELS1";

/// Length of a preface.
pub const PREFACE_BYTES: usize = 72;

/// Length of a [`Preface`]'s public key.
pub const KEY_BYTES: usize = 32;

/// Largest body of a data frame: enough that headers and system calls cost nothing.
pub const MAX_DATA: usize = 128 * 1024;

/// Largest text of a close frame.
pub const MAX_CLOSE_TEXT: usize = 512;

/// Credit that both sides have before they know the other's window; the least window there is.
pub const INITIAL_CREDIT: u32 = 256 * 1024;

/// Length of a frame's header.
pub(super) const HEADER_BYTES: usize = 16;

const VERSION: u16 = 1;
const FLAG_RESUME: u16 = 1;
const FLAG_END: u16 = 2;
const FLAG_REFUSED: u16 = 4;
const FLAG_END_CONSUMED: u8 = 1;

/// Names one stream across its transports. Random, so that nobody else's stream is met by chance;
/// not a secret: who comes back to a stream proves more than to know its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub [u8; 16]);

/// Why a side gives a stream up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// What stands above the stream ended without an orderly end.
    Abandoned,
    /// The stream that was to be resumed is not known here.
    UnknownStream,
    /// The peer broke the protocol.
    Protocol,
    /// The peer may not be served now.
    Refused,
    /// A reason of a later version.
    Other(u8),
}

impl CloseReason {
    fn code(self) -> u8 {
        match self {
            Self::Abandoned => 1,
            Self::UnknownStream => 2,
            Self::Protocol => 3,
            Self::Refused => 4,
            Self::Other(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Abandoned,
            2 => Self::UnknownStream,
            3 => Self::Protocol,
            4 => Self::Refused,
            other => Self::Other(other),
        }
    }
}

/// What a peer did wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The first bytes are not a stream's.
    #[error("not a Carrel stream")]
    Magic,
    /// A version that is not spoken here.
    #[error("stream version {0} is not supported, 1 is")]
    Version(u16),
    /// A window smaller than everyone may rely on.
    #[error("a receive window of {0} bytes is too small")]
    Window(u32),
    /// A frame that does not exist.
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    /// A body that is too long for its kind, or missing.
    #[error("a frame of kind {kind} with a body of {length} bytes")]
    Length {
        /// The frame's kind.
        kind: u8,
        /// What its header says.
        length: u32,
    },
}

/// What each side says first on a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preface {
    /// The stream.
    pub id: StreamId,
    /// The stream had a transport on which both sides were heard.
    pub resume: bool,
    /// The peer's end was consumed.
    pub end_consumed: bool,
    /// The stream is not served: a close follows, and the rest means nothing.
    pub refused: bool,
    /// Bytes that may be sent beyond what was consumed.
    pub window: u32,
    /// Bytes consumed so far.
    pub consumed: u64,
    /// The sender's public key (X25519, RFC 7748) of this stream; nothing in here computes with it.
    pub key: [u8; KEY_BYTES],
}

impl Preface {
    /// As sent.
    pub fn encode(&self) -> [u8; PREFACE_BYTES] {
        let mut flags = 0;
        if self.resume {
            flags |= FLAG_RESUME;
        }
        if self.end_consumed {
            flags |= FLAG_END;
        }
        if self.refused {
            flags |= FLAG_REFUSED;
        }
        let mut out = [0; PREFACE_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_be_bytes());
        out[10..12].copy_from_slice(&flags.to_be_bytes());
        out[12..16].copy_from_slice(&self.window.to_be_bytes());
        out[16..32].copy_from_slice(&self.id.0);
        out[32..40].copy_from_slice(&self.consumed.to_be_bytes());
        out[40..].copy_from_slice(&self.key);
        out
    }

    /// From what was received.
    pub fn decode(bytes: &[u8; PREFACE_BYTES]) -> Result<Self, FrameError> {
        if bytes[..8] != MAGIC {
            return Err(FrameError::Magic);
        }
        let version = u16::from_be_bytes(field(bytes, 8));
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let flags = u16::from_be_bytes(field(bytes, 10));
        let window = u32::from_be_bytes(field(bytes, 12));
        if window < INITIAL_CREDIT {
            return Err(FrameError::Window(window));
        }
        Ok(Self {
            id: StreamId(field(bytes, 16)),
            resume: flags & FLAG_RESUME != 0,
            end_consumed: flags & FLAG_END != 0,
            refused: flags & FLAG_REFUSED != 0,
            window,
            consumed: u64::from_be_bytes(field(bytes, 32)),
            key: field(bytes, 40),
        })
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// `length` bytes of the stream follow.
    Data {
        /// Where they stand.
        offset: u64,
        /// How many.
        length: u32,
    },
    /// The stream was consumed up to here.
    Ack {
        /// Bytes.
        offset: u64,
        /// The end too.
        end: bool,
    },
    /// The stream ends here.
    End {
        /// Bytes in all.
        offset: u64,
    },
    /// The stream is given up; a text follows.
    Close {
        /// Why.
        reason: CloseReason,
        /// Of the text.
        length: u32,
    },
    /// A sign of life, and nothing else.
    Heartbeat,
}

impl Header {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let (kind, flags, length, offset) = match self {
            Self::Data { offset, length } => (1, 0, length, offset),
            Self::Ack { offset, end } => (2, if end { FLAG_END_CONSUMED } else { 0 }, 0, offset),
            Self::End { offset } => (3, 0, 0, offset),
            Self::Close { reason, length } => (4, reason.code(), length, 0),
            Self::Heartbeat => (5, 0, 0, 0),
        };
        let mut out = [0; HEADER_BYTES];
        out[0] = kind;
        out[1] = flags;
        out[4..8].copy_from_slice(&u32::to_be_bytes(length));
        out[8..16].copy_from_slice(&u64::to_be_bytes(offset));
        out
    }

    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let kind = bytes[0];
        let flags = bytes[1];
        let length = u32::from_be_bytes(field(bytes, 4));
        let offset = u64::from_be_bytes(field(bytes, 8));
        let bad_length = FrameError::Length { kind, length };
        match kind {
            1 if length == 0 || length as usize > MAX_DATA => Err(bad_length),
            1 => Ok(Self::Data { offset, length }),
            2 | 3 | 5 if length != 0 => Err(bad_length),
            2 => Ok(Self::Ack {
                offset,
                end: flags & FLAG_END_CONSUMED != 0,
            }),
            3 => Ok(Self::End { offset }),
            4 if length as usize > MAX_CLOSE_TEXT => Err(bad_length),
            4 => Ok(Self::Close {
                reason: CloseReason::from_code(flags),
                length,
            }),
            5 => Ok(Self::Heartbeat),
            other => Err(FrameError::Kind(other)),
        }
    }
}

/// `N` bytes at a place that is known to lie inside.
pub(super) fn field<const N: usize, const M: usize>(bytes: &[u8; M], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
