//! Whether what jobs were given is what they asked for, and whether it could be given at all. Nothing here knows how
//! placement goes about it: grants are counted out, and what is possible is found by trying every choice of nodes.

use std::collections::{BTreeMap, BTreeSet};

use carrel_core::broker::State;
use carrel_core::model::gpu::{GpuInfo, Inventory};
use carrel_core::model::gpu_unit::{GpuUnit, Slice};
use carrel_core::model::ids::{GpuUuid, NodeName};
use carrel_core::model::resources::{Allocation, NodeAllocation, ResourceRequest, UnitRequest};

use super::fabric::Wires;
use super::node::Node;

/// The nodes that a broker knows, as they really are, in the order of their names' numbers.
pub struct Site {
    hosts: Vec<Host>,
}

struct Host {
    name: String,
    /// What it has; nothing before its first report.
    has: Inventory,
    /// What it is plugged into. Without a tree all are beside each other; with one, what hangs on no switch is by
    /// itself.
    leaf: String,
    /// None: in no block.
    block: Option<String>,
}

impl Site {
    /// As a broker knows them.
    pub fn new(state: &State, nodes: &BTreeMap<String, Node>, wires: &Wires) -> Self {
        let host = |name: &str| {
            let node = nodes.get(name)?;
            let record = state.nodes.get(&node.name)?;
            let told = Some(node.outfit.domain.clone()).filter(|domain| !domain.is_empty());
            let described = wires.block.get(name).map(|block| format!("b{block}"));
            let reported = record.inventory.cpus > 0;
            Some(Host {
                name: name.to_owned(),
                leaf: match wires.leaf.get(name) {
                    Some(leaf) => format!("s{leaf}"),
                    None if wires.tree => name.to_owned(),
                    None => String::new(),
                },
                block: described.or_else(|| told.filter(|_| reported)),
                has: if reported {
                    known(node, &record.inventory)
                } else {
                    Inventory::default()
                },
            })
        };
        let mut hosts: Vec<Host> = nodes.keys().filter_map(|name| host(name)).collect();
        hosts.sort_by_key(|host| host.name[1..].parse::<u32>().expect("n and a number"));
        Self { hosts }
    }

    fn position(&self, part: &NodeAllocation) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == part.node.as_str())
    }

    /// What a grant lacks of the request; none: it keeps it.
    pub fn breach(&self, request: &ResourceRequest, grant: &Allocation) -> Option<String> {
        let nodes: BTreeSet<&str> = grant.nodes.iter().map(|part| part.node.as_str()).collect();
        if nodes.len() != grant.nodes.len() {
            return Some("it has a node twice".to_owned());
        }
        let mut rest = grant.nodes.as_slice();
        for component in request.components() {
            let Some((own, others)) = rest.split_at_checked(component.nodes as usize) else {
                return Some(format!("it has {} nodes", nodes.len()));
            };
            rest = others;
            if let Some(breach) = self.component_breach(component, own) {
                return Some(breach);
            }
        }
        (!rest.is_empty()).then(|| "it has more nodes than it asked for".to_owned())
    }

    fn component_breach(&self, request: &ResourceRequest, parts: &[NodeAllocation]) -> Option<String> {
        let constraints = &request.constraints;
        if let Some(name) = constraints
            .nodelist
            .iter()
            .find(|name| parts.iter().all(|part| part.node != **name))
        {
            return Some(format!("{name} of its list is not among its nodes"));
        }
        let mut chosen = Vec::new();
        for part in parts {
            let Some(at) = self.position(part) else {
                return Some(format!("there is no node {}", part.node));
            };
            if let Some(breach) = part_breach(request, part, &self.hosts[at]) {
                return Some(format!("on {} {breach}", part.node));
            }
            chosen.push(at);
        }
        let segment = constraints.segment.max(1) as usize;
        for segment in chosen.chunks(segment).filter(|_| segment > 1) {
            let block = &self.hosts[segment[0]].block;
            if block.is_none() || segment.iter().any(|at| self.hosts[*at].block != *block) {
                return Some("a segment is not in one block".to_owned());
            }
        }
        let lie = self.lie_wrong(request, &chosen);
        lie.map(str::to_owned)
    }

    /// How nodes lie to each other as they must not, in whatever order of ranks.
    fn lie_wrong(&self, request: &ResourceRequest, chosen: &[usize]) -> Option<&'static str> {
        let constraints = &request.constraints;
        let leaves: BTreeSet<&str> = chosen.iter().map(|at| self.hosts[*at].leaf.as_str()).collect();
        if constraints.switches > 0 && leaves.len() > constraints.switches as usize {
            return Some("it is on too many leaf switches");
        }
        let (first, last) = (chosen.iter().min()?, chosen.iter().max()?);
        if constraints.contiguous && last - first + 1 != chosen.len() {
            return Some("its nodes do not follow each other");
        }
        let segment = constraints.segment.max(1) as usize;
        if segment == 1 {
            return None;
        }
        let mut blocks: BTreeMap<&Option<String>, usize> = BTreeMap::new();
        for at in chosen {
            *blocks.entry(&self.hosts[*at].block).or_default() += 1;
        }
        let whole =
            |(block, count): (&&Option<String>, &usize)| block.is_some() && count.is_multiple_of(segment);
        (!blocks.iter().all(whole)).then_some("its blocks hold no whole segments")
    }

    /// Whether a request could be met if nothing of these nodes were held, by those of them that it may have.
    pub fn can_hold(&self, request: &ResourceRequest, within: Option<&BTreeSet<&NodeName>>) -> bool {
        let components: Vec<&ResourceRequest> = request.components().collect();
        let hosts = self.hosts.iter().enumerate();
        let others = hosts.filter(|(_, host)| {
            within.is_some_and(|within| !within.iter().any(|name| name.as_str() == host.name))
        });
        self.can_hold_all(&components, &mut others.map(|(at, _)| at).collect())
    }

    fn can_hold_all(&self, components: &[&ResourceRequest], taken: &mut BTreeSet<usize>) -> bool {
        let Some((request, others)) = components.split_first() else {
            return true;
        };
        let right = |at: &usize| {
            let host = &self.hosts[*at];
            !taken.contains(at) && fits_empty(request, host)
        };
        let right: Vec<usize> = (0..self.hosts.len()).filter(right).collect();
        choices(&right, request.nodes as usize).into_iter().any(|chosen| {
            let names = &request.constraints.nodelist;
            let named = names
                .iter()
                .all(|name| chosen.iter().any(|at| self.hosts[*at].name == name.as_str()));
            if !named || self.lie_wrong(request, &chosen).is_some() {
                return false;
            }
            taken.extend(&chosen);
            let possible = self.can_hold_all(others, taken);
            taken.retain(|at| !chosen.contains(at));
            possible
        })
    }
}

/// What a node has, and which of its GPUs it has reported not to let go of.
fn known(node: &Node, reported: &Inventory) -> Inventory {
    let mut has = node.inventory();
    for (gpu, known) in has.gpus.iter_mut().zip(&reported.gpus) {
        gpu.drained.clone_from(&known.drained);
    }
    has
}

/// All choices of so many.
fn choices(of: &[usize], count: usize) -> Vec<Vec<usize>> {
    let whole = 0..1_u32 << of.len();
    let sets = whole.filter(|set| set.count_ones() as usize == count);
    sets.map(|set| {
        let members = (0..of.len()).filter(|at| set >> at & 1 == 1);
        members.map(|at| of[at]).collect()
    })
    .collect()
}

fn wants(request: &ResourceRequest, host: &Host) -> bool {
    let constraints = &request.constraints;
    let excluded = constraints.exclude.iter().any(|name| name.as_str() == host.name);
    let features = constraints.features.as_ref();
    !excluded && features.is_none_or(|wanted| wanted.holds(&host.has.features))
}

fn part_breach(request: &ResourceRequest, part: &NodeAllocation, host: &Host) -> Option<String> {
    if !wants(request, host) {
        return Some("it is on a node that it does not want".to_owned());
    }
    let has = &host.has;
    let cpus = if request.exclusive {
        has.cpus
    } else {
        request.cpus_per_node
    };
    let memory = if request.all_memory {
        has.memory_bytes
    } else {
        request.memory_bytes_per_node
    };
    if (part.cpus, part.memory_bytes) != (cpus, memory) {
        return Some(format!(
            "it has {} CPUs and {} bytes",
            part.cpus, part.memory_bytes
        ));
    }
    let sound = has
        .gpus
        .iter()
        .filter(|gpu| gpu.mig.is_none() && gpu.drained.is_none());
    let wanted = request.gpus_per_node as usize;
    if request.exclusive {
        let all: BTreeSet<GpuUnit> = sound.map(|gpu| gpu.uuid.clone().into()).collect();
        let held: BTreeSet<GpuUnit> = part.gpus.iter().cloned().collect();
        let right =
            |unit: &&GpuUnit| gpu_of(has, &unit.gpu).is_some_and(|(_, gpu)| is_wanted(request, unit, gpu));
        if all != held || held.iter().filter(right).count() < wanted {
            return Some(format!("it has {} GPUs of a whole node", held.len()));
        }
        let right: Vec<usize> = (held.iter().filter(right))
            .filter_map(|unit| Some(gpu_of(has, &unit.gpu)?.0))
            .collect();
        let together = choices(&right, wanted).iter().any(|set| joined(has, set));
        return (request.nvlink && !together).then(|| "NVLink does not join enough of its GPUs".to_owned());
    }
    if part.gpus.len() != wanted {
        return Some(format!("it has {} GPU units", part.gpus.len()));
    }
    let mut whole = Vec::new();
    for unit in &part.gpus {
        let Some((at, gpu)) = gpu_of(&host.has, &unit.gpu) else {
            return Some(format!("there is no {}", unit.gpu));
        };
        if !is_wanted(request, unit, gpu) {
            return Some(format!("{unit} is not what it asked for"));
        }
        match unit.slice {
            Slice::Whole => whole.push(at),
            Slice::Share { .. } | Slice::Mig { .. } => {}
        }
    }
    let distinct: BTreeSet<&GpuUnit> = part.gpus.iter().collect();
    if distinct.len() != part.gpus.len() {
        return Some("it has a GPU unit twice".to_owned());
    }
    (request.nvlink && !joined(&host.has, &whole)).then(|| "NVLink does not join its GPUs".to_owned())
}

fn gpu_of<'a>(has: &'a Inventory, uuid: &GpuUuid) -> Option<(usize, &'a GpuInfo)> {
    has.gpus.iter().enumerate().find(|(_, gpu)| gpu.uuid == *uuid)
}

fn is_wanted(request: &ResourceRequest, unit: &GpuUnit, gpu: &GpuInfo) -> bool {
    let enough = |memory: u64| memory >= request.gpu_memory_bytes;
    let slices = gpu.mig.iter().flat_map(|mig| &mig.profiles);
    let whole = gpu.mig.is_none() && enough(gpu.memory_bytes);
    match (&request.unit, &unit.slice) {
        (UnitRequest::Whole | UnitRequest::Least, Slice::Whole) => whole,
        (UnitRequest::Mig(wanted), Slice::Mig { profile, .. }) => wanted == profile,
        (UnitRequest::Least, Slice::Mig { profile, .. }) => {
            let mut of_name = slices.filter(|one| one.name == *profile);
            of_name.any(|one| enough(one.memory_bytes))
        }
        (UnitRequest::Share { milli: wanted, .. }, Slice::Share { milli, .. }) => {
            whole && gpu.sharing.is_some() && wanted == milli
        }
        (UnitRequest::Whole, Slice::Mig { .. } | Slice::Share { .. })
        | (UnitRequest::Mig(_) | UnitRequest::Share { .. }, Slice::Whole)
        | (UnitRequest::Mig(_) | UnitRequest::Least, Slice::Share { .. })
        | (UnitRequest::Share { .. }, Slice::Mig { .. }) => false,
    }
}

/// NVLink is between every two.
fn joined(has: &Inventory, gpus: &[usize]) -> bool {
    let pairs = gpus.iter().flat_map(|a| gpus.iter().map(move |b| (*a, *b)));
    pairs
        .filter(|(a, b)| a < b)
        .all(|(a, b)| has.links.link(a, b).is_nvlink())
}

/// Whether a host of which nothing is held can take a part.
fn fits_empty(request: &ResourceRequest, host: &Host) -> bool {
    let has = &host.has;
    // Before a default is filled in, none is asked for; any default fits where the GPUs do.
    let sizes = request.cpus_per_node <= has.cpus && request.memory_bytes_per_node <= has.memory_bytes;
    if !wants(request, host) || !sizes || has.cpus == 0 {
        return false;
    }
    let count = request.gpus_per_node as usize;
    let whole =
        (0..has.gpus.len()).filter(|at| has.gpus[*at].mig.is_none() && has.gpus[*at].drained.is_none());
    let enough = |memory: u64| memory >= request.gpu_memory_bytes;
    let whole: Vec<usize> = whole.filter(|at| enough(has.gpus[*at].memory_bytes)).collect();
    let sound = || has.gpus.iter().filter(|gpu| gpu.drained.is_none());
    let profiles = || sound().flat_map(|gpu| gpu.mig.iter().flat_map(|mig| &mig.profiles));
    match &request.unit {
        _ if count == 0 => true,
        // Whole nodes come with whole GPUs.
        UnitRequest::Least if request.exclusive => whole.len() >= count,
        UnitRequest::Whole => {
            let mut sets = choices(&whole, count).into_iter();
            sets.any(|set| !request.nvlink || joined(has, &set))
        }
        UnitRequest::Mig(wanted) => {
            let mut of_name = profiles().filter(|profile| profile.name == *wanted);
            of_name.any(|profile| usize::from(profile.most) >= count)
        }
        UnitRequest::Share { .. } => {
            whole.iter().filter(|at| has.gpus[**at].sharing.is_some()).count() >= count
        }
        UnitRequest::Least => {
            let mut large = profiles().filter(|profile| enough(profile.memory_bytes));
            large.any(|profile| usize::from(profile.most) >= count) || whole.len() >= count
        }
    }
}
