//! The targets, by what they read.

pub mod agent;
pub mod api;
pub mod handshake;
pub mod image;
pub mod names;
pub mod sftp;
pub mod stream;
pub mod terminal;
pub mod topology;

/// Reads text, if it is such.
fn with_text(data: &[u8], read: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(data) {
        read(text);
    }
}
