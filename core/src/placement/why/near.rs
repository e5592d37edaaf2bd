//! The nearest things to a request that would fit.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::amounts::{Bytes, GpuMemory, share};
use crate::model::ids::UserName;
use crate::model::partition::NodeSet;
use crate::model::resources::{ResourceRequest, UnitRequest};
use crate::placement::fit::{Candidate, candidates, lacks};
use crate::placement::groups::Alike;
use crate::placement::{Assume, Hosts, Needs, Part, gang};

/// Most slices of a host that are tried one by one as the nearest thing.
const MAX_TRIED: u32 = 64;

/// What would fit in a request's place.
pub(super) struct Near<'a> {
    pub hosts: &'a Hosts,
    pub request: &'a ResourceRequest,
    pub root: bool,
    pub within: Option<&'a NodeSet>,
    pub user: Option<&'a UserName>,
    pub assume: Assume,
}

impl<'a> Near<'a> {
    /// The nearest things that would fit, at most two.
    pub fn nearest(&self) -> Option<String> {
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
            all_memory: false,
            ..request.clone()
        };
        let wanted = if request.all_memory {
            u64::MAX
        } else {
            request.memory_bytes_per_node
        };
        let most = self.most(&relaxed, wanted, |alike| alike.memory_bytes)?;
        let place = self.place_of(&ResourceRequest {
            memory_bytes_per_node: most,
            ..relaxed
        })?;
        let instead = if request.all_memory {
            "all".to_owned()
        } else {
            Bytes(wanted).to_string()
        };
        Some(format!(
            "{} of memory instead of {instead} on {place}",
            Bytes(most)
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
