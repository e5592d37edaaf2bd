//! carrel-node: the agent of one host.
//!
//! [`service`] is the agent: one task that owns the core's state machine. Around it stand the
//! [`link`] to the broker, the [`streams`] that gateways ask for, the [`jobs`] with a task for each
//! container, the [`logs`] of those that run commands, what comes from [`inside`] of them, and [`discovery`]. What they stand on: [`runtime`] and [`image`] (containerd),
//! [`gpu`] (NVML), [`cpus`], [`cdi`].

pub mod activity;
mod backoff;
pub mod cdi;
pub mod clock;
pub mod commands;
pub mod config;
pub mod cpus;
pub mod discovery;
#[doc(hidden)]
pub mod fuzzing;
pub mod gateways;
pub mod gpu;
pub mod identity;
pub mod image;
pub mod init_client;
pub mod inside;
pub mod job_streams;
pub mod jobs;
pub mod ledger;
pub mod link;
pub mod lock;
pub mod logs;
pub mod mps;
pub mod pinned;
pub mod renewal;
pub mod runtime;
pub mod service;
pub mod streams;
pub mod units;
