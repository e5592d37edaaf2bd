//! Why a request cannot be placed now.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::filter::Filter;
use super::fit::{Candidate, Lack, candidates, fits, lacks};
use super::hosts::Alike;
use super::{Assume, Hosts, Needs, Part, gang};
use crate::model::constraints::Constraints;
use crate::model::features::FeatureExpression;
use crate::model::gpu_unit::WHOLE_MILLI;
use crate::model::ids::{NodeName, UserName};
use crate::model::partition::NodeSet;
use crate::model::resources::{ResourceRequest, UnitRequest};

/// Most slices of a host that are tried one by one as the nearest thing.
const MAX_TRIED: u32 = 64;

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
            Self::FewerFreeCpus { wanted } => write!(f, "fewer than {wanted} free CPUs"),
            Self::LessFreeMemory { wanted } => write!(f, "less than {} of free memory", Bytes(*wanted)),
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
            Self::FewerSegments { wanted, segment } => write!(
                f,
                "fits, but blocks have no {wanted} times {segment} such nodes (--segment={segment})"
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

/// Why a request cannot be placed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyNot {
    /// What was missing, and on how many hosts: one refusal a host, the most frequent first.
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
    refusals.sort_by_key(|(_, count)| Reverse(*count));
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

/// What would fit in a request's place.
struct Near<'a> {
    hosts: &'a Hosts,
    request: &'a ResourceRequest,
    root: bool,
    within: Option<&'a NodeSet>,
    user: Option<&'a UserName>,
    assume: Assume,
}

impl<'a> Near<'a> {
    /// The nearest things that would fit, at most two.
    fn nearest(&self) -> Option<String> {
        let tries = [
            Self::fewer_nodes,
            Self::apart,
            Self::without_nvlink,
            Self::fewer_gpus,
            Self::fewer_cpus,
            Self::less_memory,
            Self::other_model,
        ];
        let found: Vec<String> = tries.iter().filter_map(|attempt| attempt(self)).take(2).collect();
        (!found.is_empty()).then(|| found.join("; or "))
    }

    fn candidates<'r>(&self, request: &'r ResourceRequest) -> Vec<Candidate<'r>>
    where
        'a: 'r,
    {
        let needs = Needs {
            root: self.root,
            within: self.within,
            user: self.user,
            ..request.into()
        };
        candidates(self.hosts, needs, self.assume)
    }

    /// Where a changed request fits: "n3", "each of n1, n2".
    fn place_of(&self, request: &ResourceRequest) -> Option<String> {
        let fitting = self.candidates(request);
        Some(names_of(&gang::choose(
            self.hosts,
            &fitting,
            request,
            &BTreeSet::new(),
        )?))
    }

    fn fewer_nodes(&self) -> Option<String> {
        let request = self.request;
        let needs = Needs {
            root: self.root,
            within: self.within,
            user: self.user,
            ..request.into()
        };
        let (fitting, _) = lacks(self.hosts, needs, self.assume);
        if fitting == 0 || fitting >= request.nodes as usize {
            return None;
        }
        let place = self.place_of(&ResourceRequest {
            nodes: fitting as u32,
            ..request.clone()
        })?;
        Some(format!("{fitting} of {} nodes: on {place}", request.nodes))
    }

    fn apart(&self) -> Option<String> {
        let request = self.request;
        if request.nodes < 2 || !request.constraints.arrange() {
            return None;
        }
        let mut relaxed = request.clone();
        relaxed.constraints.drop_arrangement();
        let place = self.place_of(&relaxed)?;
        Some(format!("{} nodes further apart: on {place}", request.nodes))
    }

    fn without_nvlink(&self) -> Option<String> {
        let request = self.request;
        if !request.nvlink || request.gpus_per_node < 2 {
            return None;
        }
        let place = self.place_of(&ResourceRequest {
            nvlink: false,
            ..request.clone()
        })?;
        let gpus = units_text(request, request.gpus_per_node);
        Some(format!("{gpus} not all joined by NVLink on {place}"))
    }

    fn fewer_gpus(&self) -> Option<String> {
        let request = self.request;
        let free = self
            .hosts
            .same_gpus(self.assume, None)
            .map(|group| match request.unit {
                UnitRequest::Whole => group.gpus.count_ones(),
                UnitRequest::Mig(_) | UnitRequest::Share { .. } | UnitRequest::Least => MAX_TRIED,
            });
        let counts = (1..request.gpus_per_node.min(free.max()?.saturating_add(1))).rev();
        let mut placed = counts.filter_map(|count| {
            let place = self.place_of(&ResourceRequest {
                gpus_per_node: count,
                ..request.clone()
            })?;
            let joined = if request.nvlink && count > 1 {
                " joined by NVLink"
            } else {
                ""
            };
            Some(format!("{}{joined} on {place}", units_text(request, count)))
        });
        placed.next()
    }

    fn fewer_cpus(&self) -> Option<String> {
        let request = self.request;
        let relaxed = ResourceRequest {
            cpus_per_node: 1,
            ..request.clone()
        };
        let most = self.most(&relaxed, request.cpus_per_node, |alike| alike.cpus)?;
        let place = self.place_of(&ResourceRequest {
            cpus_per_node: most,
            ..relaxed
        })?;
        Some(format!(
            "{most} CPUs instead of {} on {place}",
            request.cpus_per_node
        ))
    }

    fn less_memory(&self) -> Option<String> {
        let request = self.request;
        let relaxed = ResourceRequest {
            memory_bytes_per_node: 1,
            ..request.clone()
        };
        let wanted = request.memory_bytes_per_node;
        let most = self.most(&relaxed, wanted, |alike| alike.memory_bytes)?;
        let place = self.place_of(&ResourceRequest {
            memory_bytes_per_node: most,
            ..relaxed
        })?;
        Some(format!(
            "{} of memory instead of {} on {place}",
            Bytes(most),
            Bytes(wanted)
        ))
    }

    /// The most of something, and less than what is wanted, that enough hosts have free, of those where the
    /// relaxed request fits.
    fn most<T: Ord + Copy + Default>(
        &self,
        relaxed: &ResourceRequest,
        wanted: T,
        free: impl Fn(&Alike<'_>) -> T,
    ) -> Option<T> {
        // All that fit, not only as many as are needed.
        let everywhere = ResourceRequest {
            nodes: u32::MAX,
            ..relaxed.clone()
        };
        let fitting = self.candidates(&everywhere);
        let mut amounts: Vec<(T, usize)> = fitting
            .iter()
            .map(|one| (free(&one.alike), one.alike.count()))
            .collect();
        amounts.sort_unstable_by_key(|(amount, _)| Reverse(*amount));
        let mut left = relaxed.nodes as usize;
        for (amount, hosts) in amounts {
            left = left.saturating_sub(hosts);
            if left == 0 {
                return (amount > T::default() && amount < wanted).then_some(amount);
            }
        }
        None
    }

    fn other_model(&self) -> Option<String> {
        if self.request.gpu_model.is_empty() {
            return None;
        }
        let relaxed = ResourceRequest {
            gpu_model: String::new(),
            ..self.request.clone()
        };
        let fitting = self.candidates(&relaxed);
        let models: Vec<(Vec<&str>, Vec<Part>)> = fitting
            .iter()
            .map(|one| (one.models(), one.parts(relaxed.nodes as usize).collect()))
            .collect();
        let parts = gang::choose(self.hosts, &fitting, &relaxed, &BTreeSet::new())?;
        let chosen = models
            .iter()
            .filter(|(_, some)| some.iter().any(|part| parts.contains(part)));
        let models: BTreeSet<&str> = chosen.flat_map(|(models, _)| models.iter().copied()).collect();
        let models: Vec<&str> = models.into_iter().collect();
        Some(format!(
            "{} ({}) on {}",
            units_text(&relaxed, relaxed.gpus_per_node),
            models.join(", "),
            names_of(&parts)
        ))
    }
}

fn names_of(parts: &[Part]) -> String {
    let names: Vec<&str> = parts.iter().map(|part| part.node.as_str()).collect();
    let each = if names.len() > 1 { "each of " } else { "" };
    format!("{each}{}", names.join(", "))
}

/// "4 GPUs", "2 slices 1g.10gb", "a 0.5 share of 1 GPU".
fn units_text(request: &ResourceRequest, count: u32) -> String {
    let s = if count == 1 { "" } else { "s" };
    match &request.unit {
        UnitRequest::Whole => format!("{count} GPU{s}"),
        UnitRequest::Mig(profile) => format!("{count} slice{s} {profile}"),
        UnitRequest::Share { milli, .. } => format!("{} of {count} GPU{s}", share(*milli)),
        UnitRequest::Least => {
            let memory = GpuMemory(request.gpu_memory_bytes);
            format!("{count} GPU{s} or slice{s} with {memory}")
        }
    }
}

/// "0.5".
fn share(milli: u16) -> f64 {
    f64::from(milli) / f64::from(WHOLE_MILLI)
}

/// Memory of a GPU, in the units of its makers' names: 80 GB.
struct GpuMemory(u64);

impl fmt::Display for GpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GB", self.0 as f64 / 1e9)
    }
}

/// An amount of memory for people: binary units, rounded down to what is shown.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let Some((shift, unit)) = units.into_iter().find(|(shift, _)| self.0 >> shift > 0) else {
            return write!(f, "{} bytes", self.0);
        };
        let tenths = (u128::from(self.0) * 10) >> shift;
        if tenths % 10 == 0 {
            write!(f, "{} {unit}", tenths / 10)
        } else {
            write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
        }
    }
}
