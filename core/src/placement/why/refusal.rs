//! Why one host takes no part of a request, in words.

use std::fmt;

use super::amounts::{Bytes, GpuMemory, share};
use crate::model::features::FeatureExpression;

/// Why one host cannot take its part of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// It would fit on this host, but on fewer hosts than asked for.
    FewerNodes {
        /// Nodes asked for.
        wanted: u32,
    },
    /// Too few of its GPUs are free.
    FewerFreeGpus {
        /// GPUs asked for.
        wanted: u32,
        /// Model asked for; empty: any.
        model: String,
    },
    /// Enough GPUs are free, but no set of them has NVLink between all.
    NoFreeNvlinkSet {
        /// GPUs asked for.
        wanted: u32,
    },
    /// Too few slices of the profile are free, or could be cut.
    FewerFreeSlices {
        /// Slices asked for.
        wanted: u32,
        /// Profile asked for.
        profile: String,
    },
    /// Too few GPUs that jobs share have so much free.
    FewerFreeShares {
        /// GPUs asked for.
        wanted: u32,
        /// Thousandths of each.
        milli: u16,
    },
    /// Too few slices or GPUs with so much memory are free.
    FewerFreeWithMemory {
        /// GPU units asked for.
        wanted: u32,
        /// Bytes asked for, of each.
        bytes: u64,
    },
    /// Too few CPUs are free.
    FewerFreeCpus {
        /// CPUs asked for.
        wanted: u32,
    },
    /// Too little memory is free.
    LessFreeMemory {
        /// Bytes asked for.
        wanted: u64,
    },
    /// Others hold something of it.
    NotIdle,
    /// Others hold some of its memory, and all of it is asked for.
    NotAllMemory,
    /// The CPUs that are free are kept for the jobs that will hold its free GPUs.
    CpusKept {
        /// So many.
        kept: u32,
    },
    /// The memory that is free is kept for them.
    MemoryKept {
        /// Bytes.
        kept: u64,
    },
    /// Nothing is placed on it: "down", "drained: …".
    Unavailable {
        /// In what way.
        state: String,
    },
    /// It has no GPUs.
    NoGpus,
    /// It has no GPU of the model.
    NoSuchModel {
        /// Model asked for.
        model: String,
    },
    /// It has too few healthy whole GPUs, free or not.
    FewerGpus {
        /// GPUs asked for.
        wanted: u32,
        /// Model asked for; empty: any.
        model: String,
    },
    /// Its GPUs, free or not, have no such slices.
    FewerSlices {
        /// Slices asked for.
        wanted: u32,
        /// Profile asked for.
        profile: String,
    },
    /// Its GPUs, free or not, have no such slices; they could have them, but may not be cut anew.
    NotCut {
        /// Slices asked for.
        wanted: u32,
        /// Profile asked for.
        profile: String,
    },
    /// It has no such GPUs that jobs may share.
    NotShared {
        /// GPUs asked for.
        wanted: u32,
    },
    /// Too few of its GPUs and slices, free or not, have so much memory.
    FewerWithMemory {
        /// GPU units asked for.
        wanted: u32,
        /// Bytes asked for, of each.
        bytes: u64,
    },
    /// No set of its GPUs, free or not, has NVLink between all.
    NoNvlinkSet {
        /// GPUs asked for.
        wanted: u32,
    },
    /// It has too few CPUs, free or not.
    FewerCpus {
        /// CPUs asked for.
        wanted: u32,
    },
    /// It is not in the partition.
    NotInPartition,
    /// The request names its nodes, and not this one.
    NotListed,
    /// The request leaves it out.
    Excluded,
    /// Its features are not those asked for.
    Features {
        /// Those asked for.
        wanted: FeatureExpression,
    },
    /// It would do, but a node that must be among the job's would not.
    ListedUnfit,
    /// It would do for a component, but all components together need more nodes.
    FewerForAll {
        /// Nodes of all components.
        wanted: u32,
    },
    /// It would do, but too few such nodes hang on so few leaf switches.
    FewerOnSwitches {
        /// Nodes asked for.
        wanted: u32,
        /// Leaf switches.
        switches: u32,
    },
    /// It would do, but blocks hold too few segments of such nodes.
    FewerSegments {
        /// Segments asked for.
        wanted: u32,
        /// Nodes of each.
        segment: u32,
    },
    /// It would do, but too few such nodes follow each other.
    FewerAdjacent {
        /// Nodes asked for.
        wanted: u32,
    },
    /// It has too little memory, free or not.
    LessMemory {
        /// Bytes asked for.
        wanted: u64,
    },
}

/// How long something stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lasts {
    /// Until others end, or a node comes back.
    ForNow,
    /// As long as the host is what it is.
    AsTheHostIs,
    /// As long as the request says so, of which its user knows.
    AsAskedFor,
}

impl Refusal {
    /// How long it stands in the way.
    pub(super) fn lasts(&self) -> Lasts {
        match self {
            Self::FewerNodes { .. }
            | Self::FewerFreeGpus { .. }
            | Self::NoFreeNvlinkSet { .. }
            | Self::FewerFreeSlices { .. }
            | Self::FewerFreeShares { .. }
            | Self::FewerFreeWithMemory { .. }
            | Self::FewerFreeCpus { .. }
            | Self::LessFreeMemory { .. }
            | Self::NotIdle
            | Self::NotAllMemory
            | Self::CpusKept { .. }
            | Self::MemoryKept { .. }
            | Self::Unavailable { .. }
            | Self::ListedUnfit
            | Self::FewerForAll { .. }
            | Self::FewerOnSwitches { .. }
            | Self::FewerSegments { .. }
            | Self::FewerAdjacent { .. } => Lasts::ForNow,
            Self::NoGpus
            | Self::FewerGpus { .. }
            | Self::FewerSlices { .. }
            | Self::NotCut { .. }
            | Self::NotShared { .. }
            | Self::FewerWithMemory { .. }
            | Self::NoNvlinkSet { .. }
            | Self::FewerCpus { .. }
            | Self::LessMemory { .. } => Lasts::AsTheHostIs,
            Self::NoSuchModel { .. }
            | Self::NotInPartition
            | Self::NotListed
            | Self::Excluded
            | Self::Features { .. } => Lasts::AsAskedFor,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpus = |wanted: u32, model: &str| {
            let s = if wanted == 1 { "" } else { "s" };
            if model.is_empty() {
                format!("GPU{s}")
            } else {
                format!("{model} GPU{s}")
            }
        };
        match self {
            Self::FewerNodes { wanted } => write!(f, "fits, but fewer than {wanted} such nodes"),
            Self::FewerFreeGpus { wanted, model } if *wanted == 1 => write!(f, "no free {}", gpus(1, model)),
            Self::FewerFreeGpus { wanted, model } => {
                write!(f, "fewer than {wanted} free {}", gpus(*wanted, model))
            }
            Self::NoFreeNvlinkSet { wanted } => write!(f, "no {wanted} free GPUs joined by NVLink"),
            Self::FewerFreeSlices { wanted: 1, profile } => write!(f, "no free slice {profile}"),
            Self::FewerFreeSlices { wanted, profile } => {
                write!(f, "fewer than {wanted} free slices {profile}")
            }
            Self::FewerFreeShares { wanted: 1, milli } => {
                write!(f, "no shared GPU with {} of it free", share(*milli))
            }
            Self::FewerFreeShares { wanted, milli } => {
                write!(f, "fewer than {wanted} shared GPUs with {} free", share(*milli))
            }
            Self::FewerFreeWithMemory { wanted: 1, bytes } => {
                write!(f, "no free GPU or slice with {} of memory", GpuMemory(*bytes))
            }
            Self::FewerFreeWithMemory { wanted, bytes } => {
                let memory = GpuMemory(*bytes);
                write!(
                    f,
                    "fewer than {wanted} free GPUs or slices with {memory} of memory"
                )
            }
            Self::FewerSlices { wanted: 1, profile } => write!(f, "no slice {profile}"),
            Self::FewerSlices { wanted, profile } => write!(f, "fewer than {wanted} slices {profile}"),
            Self::NotCut { wanted: 1, profile } => {
                write!(f, "no slice {profile} and no GPU that may be cut anew")
            }
            Self::NotCut { wanted, profile } => {
                write!(
                    f,
                    "fewer than {wanted} slices {profile} and no GPU that may be cut anew"
                )
            }
            Self::NotShared { wanted: 1 } => f.write_str("no GPU that jobs may share"),
            Self::NotShared { wanted } => write!(f, "fewer than {wanted} GPUs that jobs may share"),
            Self::FewerWithMemory { wanted: 1, bytes } => {
                write!(f, "no GPU or slice with {} of memory", GpuMemory(*bytes))
            }
            Self::FewerWithMemory { wanted, bytes } => {
                let memory = GpuMemory(*bytes);
                write!(f, "fewer than {wanted} GPUs or slices with {memory} of memory")
            }
            Self::FewerFreeCpus { wanted: 1 } => f.write_str("no free CPU"),
            Self::FewerFreeCpus { wanted } => write!(f, "fewer than {wanted} free CPUs"),
            Self::LessFreeMemory { wanted } => write!(f, "less than {} of free memory", Bytes(*wanted)),
            Self::NotIdle => f.write_str("not idle"),
            Self::NotAllMemory => f.write_str("not all of the memory free"),
            Self::CpusKept { kept: 1 } => f.write_str("1 CPU is kept for its free GPUs"),
            Self::CpusKept { kept } => write!(f, "{kept} CPUs are kept for its free GPUs"),
            Self::MemoryKept { kept } => write!(f, "{} of memory is kept for its free GPUs", Bytes(*kept)),
            Self::Unavailable { state } => write!(f, "node is {state}"),
            Self::NoGpus => f.write_str("no GPUs"),
            Self::NoSuchModel { model } => write!(f, "no {model}"),
            Self::FewerGpus { wanted, model } if *wanted == 1 => {
                write!(f, "no healthy whole {}", gpus(1, model))
            }
            Self::FewerGpus { wanted, model } => write!(f, "fewer than {wanted} {}", gpus(*wanted, model)),
            Self::NoNvlinkSet { wanted } => write!(f, "no {wanted} GPUs joined by NVLink"),
            Self::FewerCpus { wanted } => write!(f, "fewer than {wanted} CPUs"),
            Self::NotInPartition => f.write_str("not in the partition"),
            Self::NotListed => f.write_str("not in --nodelist"),
            Self::Excluded => f.write_str("in --exclude"),
            Self::Features {
                wanted: FeatureExpression::Has(name),
            } => write!(f, "no feature {name}"),
            Self::Features { wanted } => write!(f, "features are not {wanted}"),
            Self::ListedUnfit => f.write_str("fits, but not every node of --nodelist does"),
            Self::FewerForAll { wanted } => write!(
                f,
                "fits a component, but there are no {wanted} nodes for all components at once"
            ),
            Self::FewerOnSwitches { wanted, switches } => {
                let on = if *switches == 1 {
                    "one leaf switch"
                } else {
                    "so few leaf switches"
                };
                write!(
                    f,
                    "fits, but no {wanted} such nodes are on {on} (--switches={switches})"
                )
            }
            Self::FewerSegments { wanted: 1, segment } => write!(
                f,
                "fits, but no block has {segment} such nodes (--segment={segment})"
            ),
            Self::FewerSegments { wanted, segment } => write!(
                f,
                "fits, but blocks have no {wanted} groups of {segment} such nodes (--segment={segment})"
            ),
            Self::FewerAdjacent { wanted } => {
                write!(
                    f,
                    "fits, but no {wanted} such nodes follow each other (--contiguous)"
                )
            }
            Self::LessMemory { wanted } => write!(f, "less than {} of memory", Bytes(*wanted)),
        }
    }
}
