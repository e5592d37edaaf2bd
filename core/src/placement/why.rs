//! Why a request cannot be placed now.

use std::collections::BTreeSet;
use std::fmt;

use super::{Assume, HostView, fit, try_place};
use crate::model::resources::{Allocation, ResourceRequest};

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
            Self::FewerFreeCpus { wanted } => write!(f, "fewer than {wanted} free CPUs"),
            Self::LessFreeMemory { wanted } => write!(f, "less than {} of free memory", Bytes(*wanted)),
            Self::Unavailable { state } => write!(f, "node is {state}"),
            Self::NoGpus => f.write_str("no GPUs"),
            Self::NoSuchModel { model } => write!(f, "no {model}"),
            Self::FewerGpus { wanted, model } if *wanted == 1 => {
                write!(f, "no healthy whole {}", gpus(1, model))
            }
            Self::FewerGpus { wanted, model } => write!(f, "fewer than {wanted} {}", gpus(*wanted, model)),
            Self::NoNvlinkSet { wanted } => write!(f, "no {wanted} GPUs joined by NVLink"),
            Self::FewerCpus { wanted } => write!(f, "fewer than {wanted} CPUs"),
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

/// Whether enough hosts could take it if all that is healthy on them were free.
pub(super) fn ever(hosts: &[HostView<'_>], request: &ResourceRequest) -> bool {
    let could = hosts
        .iter()
        .filter(|host| fit(host, request, Assume::AllFree).is_ok());
    could.take(request.nodes as usize).count() == request.nodes as usize
}

/// The nearest things to a request that would fit now, at most two.
pub(super) fn nearest(hosts: &[HostView<'_>], request: &ResourceRequest) -> Option<String> {
    let tries = [
        fewer_nodes,
        without_nvlink,
        fewer_gpus,
        fewer_cpus,
        less_memory,
        other_model,
    ];
    let found: Vec<String> = tries
        .iter()
        .filter_map(|attempt| attempt(hosts, request))
        .take(2)
        .collect();
    (!found.is_empty()).then(|| found.join("; or "))
}

/// Where a changed request fits, with its shape: "2 GPUs on each of n1, n2".
fn place_of(hosts: &[HostView<'_>], request: &ResourceRequest) -> Option<String> {
    try_place(hosts, request).map(|allocation| names_of(&allocation))
}

fn names_of(allocation: &Allocation) -> String {
    let names: Vec<&str> = allocation.nodes.iter().map(|n| n.node.as_str()).collect();
    let each = if names.len() > 1 { "each of " } else { "" };
    format!("{each}{}", names.join(", "))
}

fn gpus_text(count: u32) -> String {
    if count == 1 {
        "1 GPU".into()
    } else {
        format!("{count} GPUs")
    }
}

fn fewer_nodes(hosts: &[HostView<'_>], request: &ResourceRequest) -> Option<String> {
    let fitting = hosts
        .iter()
        .filter(|host| fit(host, request, Assume::Now).is_ok())
        .count() as u32;
    let fewer = ResourceRequest {
        nodes: fitting,
        ..request.clone()
    };
    if fitting == 0 || fitting >= request.nodes {
        return None;
    }
    let place = place_of(hosts, &fewer)?;
    Some(format!("{fitting} of {} nodes: on {place}", request.nodes))
}

fn without_nvlink(hosts: &[HostView<'_>], request: &ResourceRequest) -> Option<String> {
    if !request.nvlink || request.gpus_per_node < 2 {
        return None;
    }
    let place = place_of(
        hosts,
        &ResourceRequest {
            nvlink: false,
            ..request.clone()
        },
    )?;
    Some(format!(
        "{} not all joined by NVLink on {place}",
        gpus_text(request.gpus_per_node)
    ))
}

fn fewer_gpus(hosts: &[HostView<'_>], request: &ResourceRequest) -> Option<String> {
    let most = hosts.iter().map(|host| host.free_gpus.count_ones()).max()?;
    let counts = (1..request.gpus_per_node.min(most.saturating_add(1))).rev();
    let mut placed = counts.filter_map(|count| {
        let place = place_of(
            hosts,
            &ResourceRequest {
                gpus_per_node: count,
                ..request.clone()
            },
        )?;
        let joined = if request.nvlink && count > 1 {
            " joined by NVLink"
        } else {
            ""
        };
        Some(format!("{}{joined} on {place}", gpus_text(count)))
    });
    placed.next()
}

fn fewer_cpus(hosts: &[HostView<'_>], request: &ResourceRequest) -> Option<String> {
    let less = hosts
        .iter()
        .map(|host| host.free_cpus)
        .filter(|cpus| *cpus > 0 && *cpus < request.cpus_per_node);
    let most = hosts_that_fit(
        hosts,
        &ResourceRequest {
            cpus_per_node: 1,
            ..request.clone()
        },
        less.max()?,
        |h| h.free_cpus,
    )?;
    let place = place_of(
        hosts,
        &ResourceRequest {
            cpus_per_node: most,
            ..request.clone()
        },
    )?;
    Some(format!(
        "{most} CPUs instead of {} on {place}",
        request.cpus_per_node
    ))
}

fn less_memory(hosts: &[HostView<'_>], request: &ResourceRequest) -> Option<String> {
    let wanted = request.memory_bytes_per_node;
    let less = hosts
        .iter()
        .map(|host| host.free_memory)
        .filter(|bytes| *bytes > 0 && *bytes < wanted);
    let most = hosts_that_fit(
        hosts,
        &ResourceRequest {
            memory_bytes_per_node: 1,
            ..request.clone()
        },
        less.max()?,
        |h| h.free_memory,
    )?;
    let place = place_of(
        hosts,
        &ResourceRequest {
            memory_bytes_per_node: most,
            ..request.clone()
        },
    )?;
    Some(format!(
        "{} of memory instead of {} on {place}",
        Bytes(most),
        Bytes(wanted)
    ))
}

fn other_model(hosts: &[HostView<'_>], request: &ResourceRequest) -> Option<String> {
    if request.gpu_model.is_empty() {
        return None;
    }
    let relaxed = ResourceRequest {
        gpu_model: String::new(),
        ..request.clone()
    };
    let allocation = try_place(hosts, &relaxed)?;
    let models: BTreeSet<&str> = allocation
        .nodes
        .iter()
        .filter_map(|held| {
            let host = hosts.iter().find(|host| *host.node == held.node)?;
            let gpu = held.gpus.first()?;
            let found = host.inventory.gpus.iter().find(|one| one.uuid == *gpu)?;
            Some(found.model.as_str())
        })
        .collect();
    let models: Vec<&str> = models.into_iter().collect();
    Some(format!(
        "{} ({}) on {}",
        gpus_text(request.gpus_per_node),
        models.join(", "),
        names_of(&allocation)
    ))
}

/// The most of something that enough hosts have free, among those where the relaxed request fits.
fn hosts_that_fit<T: Ord + Copy>(
    hosts: &[HostView<'_>],
    relaxed: &ResourceRequest,
    at_most: T,
    free: impl Fn(&HostView<'_>) -> T,
) -> Option<T> {
    let fitting = hosts
        .iter()
        .filter(|host| fit(host, relaxed, Assume::Now).is_ok());
    let mut amounts: Vec<T> = fitting.map(|host| free(host).min(at_most)).collect();
    amounts.sort_unstable_by(|a, b| b.cmp(a));
    amounts.get((relaxed.nodes as usize).checked_sub(1)?).copied()
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
