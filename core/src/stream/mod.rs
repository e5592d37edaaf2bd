//! A byte stream that outlives its transports: what `carrel proxy` and carrel-init speak.
//!
//! Each side keeps what it sent until the peer has consumed it. When a transport dies, both sides
//! keep their [`Endpoint`]; on the next transport each says how much it has received, and the
//! other goes on from there: no byte is lost or repeated. A receiver never gets more than the
//! window it named, so that a slow reader stops its peer while acknowledgements still flow, and
//! both directions stay independent.
//!
//! Nothing in here does I/O. A program moves bytes between an endpoint, a transport and what
//! stands above it:
//!
//! ```
//! use bytes::Bytes;
//! use carrel_core::stream::{Endpoint, KEY_BYTES, Limits, Preface, Read, StreamId, PREFACE_BYTES};
//!
//! // The dialler (`carrel proxy`) draws an id and attaches to a fresh connection.
//! let mut near = Endpoint::new(StreamId([7; 16]), [1; KEY_BYTES], Limits::default());
//! near.attach();
//!
//! // Sending: hand over what was read from above (at most `writable()` bytes; 0: stop reading),
//! // then write out every `Transmit`, head and body, in order (`write_vectored`).
//! assert!(near.writable() > 5);
//! near.write(Bytes::from_static(b"hello"));
//! let mut wire = Vec::new();
//! while let Some(transmit) = near.poll_transmit() {
//!     wire.extend_from_slice(transmit.head());
//!     wire.extend_from_slice(&transmit.body);
//! }
//!
//! // The acceptor reads PREFACE_BYTES first, to know which stream it is; one that it does not
//! // serve is answered by `Endpoint::refuse`.
//! let (preface, rest) = wire.split_first_chunk::<PREFACE_BYTES>().expect("all was written");
//! let asked = Preface::decode(preface).expect("a preface");
//! let mut far = Endpoint::new(asked.id, [2; KEY_BYTES], Limits::default());
//! far.attach();
//! far.handle_bytes(preface).expect("well-formed");
//!
//! // Receiving: read the transport into `receive_buffer()` and call `handle_received()`, or
//! // hand over bytes; then take all there is.
//! far.receive_buffer().extend_from_slice(rest);
//! far.handle_received().expect("well-formed");
//! assert_eq!(far.read(), Read::Data(Bytes::from_static(b"hello")));
//! assert_eq!(far.read(), Read::Pending);
//!
//! // After anything was handled, written or read, there may be more to transmit.
//! assert!(far.poll_transmit().is_some());
//! ```
//!
//! A pump over tokio is a loop around `select!` of: the transport is readable (`read_buf` into
//! [`Endpoint::receive_buffer`]; always allowed, the window bounds what is held); the transport is
//! writable and a [`Transmit`] is pending; from above, if [`Endpoint::writable`] is not 0, with
//! [`Endpoint::finish`] at its end; to above, with what [`Endpoint::read`] gave. It ends when
//! [`Endpoint::is_finished`], or on an error of the endpoint. When the transport ends, or a
//! [`Pulse`] finds it dead, the program calls [`Endpoint::detach`]; the dialler dials again and
//! [claims](claim) the stream; both call [`Endpoint::attach`] then.

pub mod claim;
mod endpoint;
mod error;
mod frame;
mod pulse;
mod queue;
#[cfg(test)]
mod tests;

pub use endpoint::{Endpoint, Limits, Read, Transmit};
pub use error::StreamError;
pub use frame::{
    CloseReason, FrameError, INITIAL_CREDIT, KEY_BYTES, MAGIC, MAX_CLOSE_TEXT, MAX_DATA, PREFACE_BYTES,
    Preface, StreamId,
};
pub use pulse::{Beat, HEARTBEAT_MS, Pulse, SILENCE_MS};
