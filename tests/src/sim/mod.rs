//! The deterministic world: one broker and several agents as values, a virtual
//! clock, and chance from a seed.
//!
//! Broker and agents are `carrel-core`'s own. What is simulated is what they
//! stand on: a store, a network, containers, users, and everything that goes
//! wrong with them. The invariants of ARCHITECTURE.md are checked after every step.
//! The same seed gives the same world, byte for byte.

mod count;
mod network;
mod node;
mod oracle;
pub mod rng;
mod world;

pub use count::Counts;
pub use world::{Finding, run};

/// Faults and transitions that a run over many seeds must have seen each of.
pub const EXPECTED: &[&str] = &[
    "message lost",
    "message repeated",
    "message delayed",
    "message into a cut",
    "node cut off",
    "broker killed before a commit",
    "broker killed after a commit, before it spoke",
    "broker killed",
    "broker started again",
    "agent killed",
    "agent killed between two actions",
    "agent started again",
    "host lost power",
    "container crashed",
    "container started",
    "carrel-init ended at its lease",
    "release not verified at once",
    "session opened",
    "session stopped",
    "session removed",
    "session extended",
    "request refused",
    "request repeated",
    "job COMPLETED",
    "job FAILED",
    "job CANCELLED",
    "job TIMEOUT",
    "job NODE_FAIL",
    "gang ready",
];
