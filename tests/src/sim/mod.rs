//! The deterministic world: one broker and several agents as values, a virtual
//! clock, and chance from a seed.
//!
//! Broker and agents are `carrel-core`'s own. What is simulated is what they
//! stand on: a store, a network, clocks, containers, users, operators, and
//! everything that goes wrong with them. The invariants of ARCHITECTURE.md are
//! checked after every step. The same seed gives the same world, byte for byte.
//! [`Mutant`]s are bugs that it must notice.

mod arrays;
mod calm;
mod clock;
mod count;
mod fabric;
mod faults;
mod grants;
mod idle;
mod mutant;
mod network;
mod node;
mod oracle;
mod outfit;
mod promises;
mod requests;
mod reservations;
pub mod rng;
mod run;
mod users;
mod world;

pub use count::Counts;
pub use mutant::Mutant;
pub use run::{Caught, catch, run_seeds};
pub use world::{Finding, run};

/// Faults, acts and transitions that a run over many seeds must have seen each of.
pub const EXPECTED: &[&str] = &[
    // The network.
    "message lost",
    "message repeated",
    "message delayed",
    "message held back",
    "message into a cut",
    "message to nobody",
    "node cut off",
    "node not heard",
    "node hears nothing",
    "network parted",
    // The broker and its disk.
    "broker killed before a commit",
    "broker killed after a commit, before it spoke",
    "broker killed",
    "broker's host lost power",
    "broker started again",
    "broker's disk full",
    "write without room",
    "broker's clock set",
    "store backed up",
    "store restored from a backup",
    "store lost",
    "store of another cluster",
    "report to another cluster's broker",
    // Nodes.
    "agent killed",
    "agent killed between two actions",
    "agent killed after a release",
    "agent started again",
    "agent's ledger lost",
    "unsynced ledger lost",
    "node's clock set",
    "host lost power",
    "host suspended",
    "host restored from a snapshot with its memory",
    "host restored from a snapshot of its disk",
    "container crashed",
    "container ran out of memory",
    "container started",
    "carrel-init ended at its lease",
    "release not verified at once",
    // Users and operators.
    "session opened",
    "batch job submitted",
    "session stopped",
    "session removed",
    "session extended",
    "request refused",
    "impossible request refused",
    "request repeated",
    "reservation made",
    "reservation refused",
    "reservation taken back",
    "job in a reservation",
    "node found",
    "node adopted",
    "job found",
    "found job adopted",
    "found job ended",
    "job that is over forgotten",
    "session warned of its end as idle",
    "warned session used again",
    "session ended as idle",
    // Placement.
    "fabric described otherwise",
    "grant of several components",
    "grant joined by NVLink",
    "grant on few switches",
    "grant of segments",
    "grant of nodes that follow each other",
    "grant of listed nodes",
    "grant without excluded nodes",
    "grant of features",
    "wish given up",
    "waits for what is not there",
    // Jobs.
    "gang ready",
    "PENDING to CONFIGURING",
    "PENDING to CANCELLED",
    "CONFIGURING to RUNNING",
    "CONFIGURING to COMPLETING",
    "RUNNING to COMPLETING",
    "COMPLETING to COMPLETED",
    "COMPLETING to FAILED",
    "COMPLETING to CANCELLED",
    "COMPLETING to TIMEOUT",
    "COMPLETING to PENDING",
    "COMPLETING to PREEMPTED",
    "COMPLETING to NODE_FAIL",
    "COMPLETING to OUT_OF_MEMORY",
];
