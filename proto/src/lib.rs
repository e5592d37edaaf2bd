//! Carrel's wires: the messages and services of `carrel.v1`, the byte-stream
//! handshake, and the conversions between messages and [`carrel_core::model`].

/// Messages and, with the feature `grpc`, services of `carrel/v1/*.proto`.
#[allow(clippy::all, clippy::pedantic, missing_docs)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/carrel.v1.rs"));
}

pub mod claim;
pub mod convert;
pub mod inside;
#[cfg(feature = "relay")]
pub mod relay;
#[cfg(feature = "relay")]
pub mod socket;
pub mod stream;
