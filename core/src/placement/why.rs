//! Why a request cannot be placed now.

mod amounts;
mod near;
mod refusal;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use self::amounts::Bytes;
pub use self::refusal::Refusal;

use self::near::Near;
use super::filter::Filter;
use super::fit::{Lack, fits, lacks};
use super::{Assume, Hosts, Needs};
use crate::model::constraints::Constraints;
use crate::model::ids::NodeName;
use crate::model::resources::{ResourceRequest, UnitRequest};

/// Why a request cannot be placed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyNot {
    /// What was missing, and on how many hosts: one refusal a host. What may change comes first, and what the request
    /// itself rules out last; of equals the most frequent.
    pub refusals: Vec<(Refusal, u32)>,
    /// The nearest thing that would fit now, for people; none: nothing near.
    pub nearest: Option<String>,
    /// Some set of these nodes could hold it if everything healthy on them were
    /// free. Nodes that are down count as they were, since they may come back;
    /// drained GPUs and GPUs in MIG mode do not count. When false, it can never
    /// start as the cluster stands.
    pub ever: bool,
}

impl fmt::Display for WhyNot {
    /// "fewer than 4 free GPUs (2 nodes), node is down (1 node)".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.refusals.is_empty() {
            return f.write_str("there are no nodes");
        }
        for (n, (refusal, hosts)) in self.refusals.iter().enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            let s = if *hosts == 1 { "" } else { "s" };
            write!(f, "{comma}{refusal} ({hosts} node{s})")?;
        }
        Ok(())
    }
}

impl std::error::Error for WhyNot {}

/// Why a request has no place.
pub(super) fn not(hosts: &Hosts, needs: Needs<'_>, assume: Assume) -> WhyNot {
    let request = needs.request;
    let (fitting, lacks) = lacks(hosts, needs, assume);
    let mut counts: BTreeMap<Refusal, u32> = BTreeMap::new();
    for (lack, count) in lacks.into_iter().filter(|(_, count)| *count > 0) {
        *counts.entry(refusal(hosts, lack, request)).or_default() += count;
    }
    if fitting > 0 {
        counts.insert(refused_together(hosts, needs, assume, fitting), fitting as u32);
    }
    if assume != Assume::Whole {
        let filter = Filter::of(hosts, needs);
        for (why, count) in hosts.unavailable(filter.as_ref()) {
            let refused = why.map_or_else(
                |lack| refusal(hosts, lack, request),
                |state| Refusal::Unavailable {
                    state: state.to_owned(),
                },
            );
            *counts.entry(refused).or_default() += count;
        }
    }
    let mut refusals: Vec<(Refusal, u32)> = counts.into_iter().collect();
    refusals.sort_by_key(|(refusal, count)| (refusal.lasts(), Reverse(*count)));
    WhyNot {
        refusals,
        nearest: Near {
            hosts,
            request,
            root: needs.root,
            within: needs.within,
            user: needs.user,
            assume,
        }
        .nearest(),
        ever: fits(hosts, needs, Assume::Whole),
    }
}

/// Why a request of several components has no place: what the first of them lacks that has none even by itself; or
/// else, that they need the same hosts.
pub(super) fn not_all(hosts: &Hosts, needs: Needs<'_>, assume: Assume) -> WhyNot {
    let ever = super::fits(hosts, needs, Assume::Whole);
    if let Some(alone) = needs.components().find(|needs| !fits(hosts, *needs, assume)) {
        return WhyNot {
            ever,
            ..not(hosts, alone, assume)
        };
    }
    let all = needs
        .components()
        .flat_map(|needs| super::fit::all_candidates(hosts, needs, assume));
    let useful: BTreeSet<NodeName> = all
        .flat_map(|one| one.nodes().cloned().collect::<Vec<_>>())
        .collect();
    let wanted = needs.components().map(|needs| needs.request.nodes).sum();
    WhyNot {
        refusals: vec![(Refusal::FewerForAll { wanted }, useful.len() as u32)],
        nearest: None,
        ever,
    }
}

/// Why hosts that would do, each by itself, do not do together.
fn refused_together(hosts: &Hosts, needs: Needs<'_>, assume: Assume, fitting: usize) -> Refusal {
    let (request, wanted) = (needs.request, needs.request.nodes);
    if fitting < wanted as usize {
        return Refusal::FewerNodes { wanted };
    }
    type Change = fn(&mut Constraints);
    let fits_without = |change: Change| {
        let mut request = request.clone();
        change(&mut request.constraints);
        let needs = Needs {
            request: &request,
            ..needs
        };
        fits(hosts, needs, assume)
    };
    let Constraints {
        switches,
        segment,
        contiguous,
        ..
    } = request.constraints;
    let mut asked: Vec<(Refusal, Change)> = Vec::new();
    if switches > 0 {
        asked.push((Refusal::FewerOnSwitches { wanted, switches }, |all| {
            all.switches = 0;
        }));
    }
    if segment > 1 {
        let wanted = wanted / segment;
        asked.push((Refusal::FewerSegments { wanted, segment }, |all| {
            all.segment = 0;
        }));
    }
    if contiguous {
        asked.push((Refusal::FewerAdjacent { wanted }, |all| {
            all.contiguous = false;
        }));
    }
    if asked.is_empty() || !fits_without(Constraints::drop_arrangement) {
        return Refusal::ListedUnfit;
    }
    // What alone stands in the way; or else the first of what is asked for.
    let alone = asked.iter().position(|(_, without)| fits_without(*without));
    asked.swap_remove(alone.unwrap_or(0)).0
}

fn refusal(hosts: &Hosts, lack: Lack, request: &ResourceRequest) -> Refusal {
    let wanted = request.gpus_per_node;
    let model = request.gpu_model.clone();
    let bytes = request.gpu_memory_bytes;
    let (profile, milli) = match &request.unit {
        UnitRequest::Mig(profile) => (profile.clone(), 0),
        UnitRequest::Share { milli, .. } => (String::new(), *milli),
        UnitRequest::Whole | UnitRequest::Least => (String::new(), 0),
    };
    match lack {
        Lack::FreeGpus => Refusal::FewerFreeGpus { wanted, model },
        Lack::FreeSlices => Refusal::FewerFreeSlices { wanted, profile },
        Lack::Slices => Refusal::FewerSlices { wanted, profile },
        Lack::UncutSlices => Refusal::NotCut { wanted, profile },
        Lack::FreeShares => Refusal::FewerFreeShares { wanted, milli },
        Lack::Shares => Refusal::NotShared { wanted },
        Lack::FreeLeast => Refusal::FewerFreeWithMemory { wanted, bytes },
        Lack::Least | Lack::GpuMemory => Refusal::FewerWithMemory { wanted, bytes },
        Lack::FreeNvlinkSet => Refusal::NoFreeNvlinkSet { wanted },
        Lack::FreeCpus => Refusal::FewerFreeCpus {
            wanted: request.cpus_per_node,
        },
        Lack::FreeMemory => Refusal::LessFreeMemory {
            wanted: request.memory_bytes_per_node,
        },
        Lack::Idle => Refusal::NotIdle,
        Lack::IdleMemory => Refusal::NotAllMemory,
        Lack::KeptCpus(kept) => Refusal::CpusKept { kept },
        Lack::KeptMemory(kept) => Refusal::MemoryKept { kept },
        Lack::AnyGpus => Refusal::NoGpus,
        Lack::Model => Refusal::NoSuchModel { model },
        Lack::Gpus => Refusal::FewerGpus { wanted, model },
        Lack::NvlinkSet => Refusal::NoNvlinkSet { wanted },
        Lack::Cpus => Refusal::FewerCpus {
            wanted: request.cpus_per_node,
        },
        Lack::Memory => Refusal::LessMemory {
            wanted: request.memory_bytes_per_node,
        },
        Lack::NotInPartition => Refusal::NotInPartition,
        Lack::NotListed => Refusal::NotListed,
        Lack::Excluded => Refusal::Excluded,
        // Only what asks for features lacks them.
        Lack::Features => match request.constraints.features.clone() {
            Some(wanted) => Refusal::Features { wanted },
            None => Refusal::Excluded,
        },
        Lack::Root(kind) => {
            let why = hosts.kind(kind).map_or("", |host| host.no_root.as_str());
            let state = format!("not able to make its users root ({why})");
            Refusal::Unavailable { state }
        }
    }
}
