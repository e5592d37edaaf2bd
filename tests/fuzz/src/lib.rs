//! Fuzz targets: every parser of ours that reads what a network, a container or an image says.
//!
//! A target is a function that takes any bytes and must neither panic nor disagree with itself.
//! `cargo test` feeds each its seeds and a few thousand variations of them; `./dev fuzz` lets
//! libFuzzer look for more, guided by what the bytes reach.

pub mod mutate;
mod targets;

/// One parser, or a few that read the same kind of thing.
pub struct Target {
    /// What `./dev fuzz NAME` calls it.
    pub name: &'static str,
    /// Must return, whatever the bytes are.
    pub run: fn(&[u8]),
    /// Inputs that reach far into it.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    targets::stream::FRAMES,
    targets::stream::CLAIMS,
    targets::handshake::HELLO,
    targets::handshake::ANSWER,
    targets::agent::OBSERVED,
    targets::agent::DESIRED,
    targets::agent::STATUS,
    targets::api::REQUESTS,
    targets::names::NAMES,
    targets::terminal::REQUEST,
    targets::terminal::MARKS,
    targets::terminal::SCREEN,
    targets::topology::TOPOLOGY,
    targets::image::DOCUMENT,
    targets::image::ARCHIVE,
    targets::image::ACCOUNTS,
    targets::sftp::ATTRIBUTES,
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
