//! What jobs ask for and hold.

use serde::{Deserialize, Serialize};

use super::ids::{GpuUuid, NodeName};

/// What a job asks for, on each of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResourceRequest {
    /// Number of nodes, at least 1.
    pub nodes: u32,
    /// Whole GPUs on each node.
    pub gpus_per_node: u32,
    /// Model wanted, a substring of the product name as compared by [`model_matches`]; empty: any.
    pub gpu_model: String,
    /// Every pair of GPUs of a node joined by NVLink.
    pub nvlink: bool,
    /// Hardware threads on each node, at least 1.
    pub cpus_per_node: u32,
    /// Memory on each node, bytes, at least 1.
    pub memory_bytes_per_node: u64,
}

/// Whether a product name is of the wanted model: a case-insensitive substring,
/// with '-', '_' and ' ' equal. The empty pattern matches all.
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
    fold(model).contains(&fold(pattern))
}

/// What a job holds on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAllocation {
    /// The node.
    pub node: NodeName,
    /// Whole GPUs, in the order in which the container sees them.
    pub gpus: Vec<GpuUuid>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_match_as_people_write_them() {
        let h100 = "NVIDIA H100 80GB HBM3";
        for pattern in ["", "h100", "H100-80GB", "nvidia_h100"] {
            assert!(model_matches(pattern, h100), "{pattern}");
        }
        for pattern in ["a100", "H1000", "h100 pcie"] {
            assert!(!model_matches(pattern, h100), "{pattern}");
        }
    }
}
