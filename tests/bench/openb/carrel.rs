//! Carrel's own placement.
//!
//! The lists say nothing of links: all GPUs of a host are taken to be equally near. A thousandth of a CPU stands
//! for a hardware thread here, since pods ask for parts of CPUs and Carrel does not give any.

use carrel_core::model::gpu::{GpuInfo, Inventory};
use carrel_core::model::gpu_unit::Sharing;
use carrel_core::model::ids::NodeName;
use carrel_core::model::resources::{ResourceRequest, UnitRequest};
use carrel_core::model::topology::{Link, LinkMatrix};
use carrel_core::placement::{Assume, Hosts, PartRoom, Recent, Room, place};

use super::cluster::{Cluster, Place, Policy, WHOLE};
use super::trace::{Node, Pod, Trace};

/// The product's placement, over hosts like the trace's nodes.
pub struct Carrel {
    /// In the order of the list, and so are their names.
    names: Vec<NodeName>,
    hosts: Hosts,
    /// Requests so far: no more is known of those to come.
    recent: Recent,
    /// What each kind of pod asks for.
    requests: Vec<ResourceRequest>,
}

impl Carrel {
    /// Nothing is taken yet.
    pub fn new(trace: &Trace) -> anyhow::Result<Self> {
        let names: Vec<NodeName> = (0..trace.nodes.len())
            .map(|node| Ok(format!("n{node:06}").parse()?))
            .collect::<anyhow::Result<_>>()?;
        let cluster = Cluster::new(trace);
        let mut hosts = Hosts::default();
        for (node, name) in names.iter().enumerate() {
            hosts.set_inventory(name, &inventory(trace, &trace.nodes[node])?);
            hosts.set_room(name, room(&cluster, node)?);
        }
        let requests = trace.classes.iter().map(|pod| request(trace, pod));
        Ok(Self {
            hosts,
            recent: Recent::default(),
            requests: requests.collect::<anyhow::Result<_>>()?,
            names,
        })
    }
}

impl Policy for Carrel {
    fn choose(&mut self, _cluster: &Cluster, class: usize, _pod: &Pod) -> anyhow::Result<Option<Place>> {
        let request = &self.requests[class];
        if let Some(outlook) = self.recent.note(request) {
            self.hosts.expect(outlook);
        }
        let Ok(parts) = place(&self.hosts, request, Assume::Now) else {
            return Ok(None);
        };
        let node = self.names.binary_search(&parts[0].node);
        let node = node.map_err(|_| anyhow::anyhow!("no such node: {}", parts[0].node))?;
        let gpus = parts[0].units.gpus();
        Ok(Some(Place {
            node,
            gpus: (0..64).filter(|gpu| gpus >> gpu & 1 == 1).collect(),
        }))
    }

    fn taken(&mut self, cluster: &Cluster, place: &Place) -> anyhow::Result<()> {
        self.hosts
            .set_room(&self.names[place.node], room(cluster, place.node)?);
        Ok(())
    }
}

/// A model's name as the product's: none is a part of another.
fn product(trace: &Trace, model: usize) -> String {
    format!("[{}]", trace.models[model])
}

fn inventory(trace: &Trace, node: &Node) -> anyhow::Result<Inventory> {
    let gpus = (0..node.gpus).map(|index| {
        Ok(GpuInfo {
            uuid: format!("GPU-{index}").parse()?,
            index: index as u32,
            model: product(trace, node.model as usize),
            memory_bytes: 16 << 30,
            pci_address: String::new(),
            numa_node: None,
            minor: None,
            mig: None,
            sharing: Some(Sharing::TimeSlice),
            drained: None,
            cpu_affinity: String::new(),
            nvlink_version: 0,
        })
    });
    Ok(Inventory {
        cpus: node.cpu_milli.try_into()?,
        memory_bytes: node.memory_mib << 20,
        gpus: gpus.collect::<anyhow::Result<_>>()?,
        links: LinkMatrix::from_fn(node.gpus, |_, _| Link::Sys),
        ..Inventory::default()
    })
}

fn request(trace: &Trace, pod: &Pod) -> anyhow::Result<ResourceRequest> {
    let models = (0..trace.models.len()).filter(|model| pod.models >> model & 1 == 1);
    let models: Vec<String> = models.map(|model| product(trace, model)).collect();
    Ok(ResourceRequest {
        gpus_per_node: pod.gpus as u32,
        unit: match pod.gpu_milli {
            0 | WHOLE => UnitRequest::Whole,
            milli => UnitRequest::Share {
                milli: milli as u16,
                sharing: None,
            },
        },
        gpu_model: models.join("|"),
        cpus_per_node: pod.cpu_milli.try_into()?,
        memory_bytes_per_node: pod.memory_mib << 20,
        ..ResourceRequest::default()
    })
}

fn shared(milli: u32) -> PartRoom {
    PartRoom::Shared {
        milli: milli as u16,
        user: None,
    }
}

fn room(cluster: &Cluster, node: usize) -> anyhow::Result<Room> {
    let free = &cluster.nodes[node];
    let gpus = free.gpus.iter().enumerate();
    let begun = gpus
        .clone()
        .filter(|(_, milli)| (1..WHOLE).contains(*milli))
        .map(|(gpu, milli)| (gpu as u8, shared(*milli)));
    Ok(Room {
        gpus: gpus
            .filter(|(_, milli)| **milli == WHOLE)
            .fold(0, |mask, (gpu, _)| mask | 1 << gpu),
        parts: begun.collect(),
        cpus: free.cpu_milli.try_into()?,
        memory_bytes: free.memory_mib << 20,
        ..Room::default()
    })
}
