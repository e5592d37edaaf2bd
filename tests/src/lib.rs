//! What Carrel's tests and benchmarks are made of: real clusters in sandboxes.
//!
//! A [`cluster::Cluster`] runs the real programs with a private containerd in
//! namespaces of its own, with users, a loopback and mounts that nobody else
//! sees, and that end with it.

pub mod chaos;
pub mod cluster;
pub mod gates;
pub mod image;
pub mod jobs;
pub mod process;
pub mod programs;
pub mod provider;
pub mod sandbox;
pub mod sim;
pub mod terminal;
pub mod user;
pub mod wait;
