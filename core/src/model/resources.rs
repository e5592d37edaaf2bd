//! What jobs ask for and hold.

use serde::{Deserialize, Serialize};

use super::constraints::{Constraints, Patience};
use super::gpu_unit::{GpuUnit, Sharing, WHOLE_MILLI, mig_milli};
use super::ids::NodeName;

/// What a job asks for, on each of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ResourceRequest {
    /// Number of nodes, at least 1.
    pub nodes: u32,
    /// GPU units on each node.
    pub gpus_per_node: u32,
    /// What each of them is.
    #[serde(default)]
    pub unit: UnitRequest,
    /// Memory that each of them has at least, bytes; 0: any.
    #[serde(default)]
    pub gpu_memory_bytes: u64,
    /// Models wanted, as [`model_matches`] takes them; empty: any.
    pub gpu_model: String,
    /// Every pair of GPUs of a node joined by NVLink.
    pub nvlink: bool,
    /// Hardware threads on each node, at least 1.
    pub cpus_per_node: u32,
    /// Memory on each node, bytes, at least 1.
    pub memory_bytes_per_node: u64,
    /// Nodes of which nobody else holds anything, each with all of its CPUs and healthy whole GPUs: the counts here are
    /// then the least that each has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// All of each node's memory: the bytes are then the least that each has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_memory: bool,
    /// Which nodes.
    #[serde(default)]
    pub constraints: Constraints,
    /// What of all this it insists on for some time only.
    #[serde(default)]
    pub patience: Patience,
    /// Other components of the same job, each on nodes of its own; ranks follow in this order. They have none
    /// themselves.
    #[serde(default)]
    pub more: Vec<ResourceRequest>,
}

impl ResourceRequest {
    /// Its components, itself the first.
    pub fn components(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.more)
    }

    /// It is met by nodes alone of which nobody holds any CPU or memory.
    pub fn wants_idle(&self) -> bool {
        // Every job holds some memory.
        self.exclusive || self.all_memory
    }

    /// The CPUs and the memory that it gets of a node with so many, and so much.
    pub fn amounts_of(&self, cpus: u32, memory_bytes: u64) -> (u32, u64) {
        (
            if self.exclusive { cpus } else { self.cpus_per_node },
            if self.all_memory {
                memory_bytes
            } else {
                self.memory_bytes_per_node
            },
        )
    }

    /// The component that each of its nodes is of, rank by rank.
    pub fn by_rank(&self) -> impl Iterator<Item = &Self> {
        self.components()
            .flat_map(|one| std::iter::repeat_n(one, one.nodes as usize))
    }

    /// Nodes of all components.
    pub fn all_nodes(&self) -> u64 {
        self.components().map(|one| u64::from(one.nodes)).sum()
    }
}

impl Default for ResourceRequest {
    /// As little as can be asked for: one node, one CPU and one byte.
    fn default() -> Self {
        Self {
            nodes: 1,
            gpus_per_node: 0,
            unit: UnitRequest::Whole,
            gpu_memory_bytes: 0,
            gpu_model: String::new(),
            nvlink: false,
            cpus_per_node: 1,
            memory_bytes_per_node: 1,
            exclusive: false,
            all_memory: false,
            constraints: Constraints::default(),
            patience: Patience::default(),
            more: Vec::new(),
        }
    }
}

/// What a job wants of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum UnitRequest {
    /// All of it.
    #[default]
    Whole,
    /// A MIG slice of the profile of this name.
    Mig(String),
    /// The MIG slice or the whole GPU with the least memory that is enough.
    Least,
    /// A share, on GPUs that the operator lets jobs share.
    Share {
        /// Thousandths, 1 to 999.
        milli: u16,
        /// In this way; none: in any.
        sharing: Option<Sharing>,
    },
}

impl UnitRequest {
    /// About how much of a GPU that is, in thousandths; what is not known before it is placed counts as a whole.
    pub fn milli(&self) -> u16 {
        match self {
            Self::Whole | Self::Least => WHOLE_MILLI,
            Self::Mig(profile) => mig_milli(profile),
            Self::Share { milli, .. } => *milli,
        }
    }
}

/// Whether a product name is of a wanted model: a case-insensitive substring,
/// with '-', '_' and ' ' equal. Several models are separated by '|'. The empty pattern matches all.
pub fn model_matches(pattern: &str, model: &str) -> bool {
    fn fold(text: &str) -> String {
        text.chars()
            .map(|c| {
                if matches!(c, '-' | '_') {
                    ' '
                } else {
                    c.to_ascii_lowercase()
                }
            })
            .collect()
    }
    let model = fold(model);
    let mut wanted = pattern.split('|').filter(|one| !one.is_empty()).peekable();
    wanted.peek().is_none() || wanted.any(|one| model.contains(&fold(one)))
}

/// What a job holds on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAllocation {
    /// The node.
    pub node: NodeName,
    /// GPU units, in the order in which the container sees them.
    pub gpus: Vec<GpuUnit>,
    /// Hardware threads.
    pub cpus: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
}

/// What a job holds, rank by rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// One entry a node; the position is the rank.
    pub nodes: Vec<NodeAllocation>,
}

impl Allocation {
    /// GPUs, in thousandths: slices and shares count as the part that they are.
    pub fn gpu_milli(&self) -> u64 {
        let units = self.nodes.iter().flat_map(|part| &part.gpus);
        units.map(|unit| u64::from(unit.slice.milli())).sum()
    }
}

impl ResourceRequest {
    /// GPUs over all its nodes, in thousandths, as far as that is known before they are placed.
    pub fn gpu_milli(&self) -> u64 {
        let of =
            |one: &Self| u64::from(one.nodes) * u64::from(one.gpus_per_node) * u64::from(one.unit.milli());
        self.components().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_match_as_people_write_them() {
        let h100 = "NVIDIA H100 80GB HBM3";
        for pattern in ["", "h100", "H100-80GB", "nvidia_h100", "a100|h100", "h100|", "|"] {
            assert!(model_matches(pattern, h100), "{pattern}");
        }
        for pattern in ["a100", "H1000", "h100 pcie", "a100|h200"] {
            assert!(!model_matches(pattern, h100), "{pattern}");
        }
    }
}
