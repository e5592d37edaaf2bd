//! carrel-core: every decision that Carrel makes, as values and pure functions.
//!
//! Nothing in here does I/O, reads a clock or draws a random number: time and
//! randomness are arguments. The same inputs give the same outputs, byte for byte.

pub mod agent;
pub mod broker;
mod maps;
pub mod model;
pub mod placement;
pub mod queue;
pub mod slurm_names;
pub mod stream;
pub mod terminal;
