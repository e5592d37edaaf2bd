//! What batch jobs run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::session::ContainerOptions;

/// What a batch job runs, and in what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Image reference.
    pub image: String,
    /// Variables, besides the allocation's own.
    pub env: BTreeMap<String, String>,
    /// Working directory; empty: the home.
    pub workdir: String,
    /// What else its containers are to be.
    pub container: ContainerOptions,
}
