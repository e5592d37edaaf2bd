//! Nodes, and who holds what of them.

use carrel_proto::v1;
use serde::Serialize;

use super::reservation::NodeReservation;
use super::some;
use crate::units::rfc3339;

/// A node.
#[derive(Debug, Serialize)]
pub struct Node {
    name: String,
    state: String,
    reason: Option<String>,
    gpus: Vec<NodeGpu>,
    gpus_total: usize,
    gpus_free: usize,
    cpus: u32,
    cpus_held: u32,
    memory_bytes: u64,
    memory_held_bytes: u64,
    driver_version: Option<String>,
    os: String,
    gpu_note: Option<String>,
    isolation: Option<String>,
    last_contact: String,
    version: String,
    images: Vec<String>,
    unknown_containers: Vec<String>,
    cpu_holders: Vec<CpuHolder>,
    features: Vec<String>,
    switch_path: Option<String>,
    block: Option<String>,
    /// Those that are not over, by time.
    reservations: Vec<NodeReservation>,
}

/// A job that has CPUs of a node for itself.
#[derive(Debug, Serialize)]
pub struct CpuHolder {
    job: u64,
    cpuset: String,
    mems: Option<String>,
}

/// A GPU of a node.
#[derive(Debug, Serialize)]
pub struct NodeGpu {
    uuid: String,
    index: u32,
    model: String,
    memory_bytes: u64,
    pci_address: String,
    numa_node: Option<u32>,
    cpu_affinity: Option<String>,
    /// To each GPU of the node, in their order; none to itself.
    links: Vec<Option<String>>,
    mig_enabled: bool,
    /// Slices that it is cut into.
    mig_instances: Vec<MigInstance>,
    /// How jobs may share it: "time-slice", "mps"; null: they may not.
    sharing: Option<&'static str>,
    drained: Option<String>,
    /// The first who holds something of it.
    job: Option<u64>,
    /// Who holds what of it.
    holders: Vec<GpuHolder>,
}

/// A MIG slice that there is.
#[derive(Debug, Serialize)]
pub struct MigInstance {
    profile: String,
    /// First of its memory slices.
    start: u32,
    uuid: String,
}

/// Who holds what of a GPU.
#[derive(Debug, Serialize)]
pub struct GpuHolder {
    job: u64,
    /// Null: that is not known.
    user: Option<String>,
    name: Option<String>,
    /// Null: all of it.
    slice: Option<String>,
    isolation: String,
}

impl From<v1::CpuHolder> for CpuHolder {
    fn from(v1::CpuHolder { job, cpuset, mems }: v1::CpuHolder) -> Self {
        Self {
            job,
            cpuset,
            mems: some(mems),
        }
    }
}

impl From<v1::Node> for Node {
    fn from(node: v1::Node) -> Self {
        let inventory = node.inventory.unwrap_or_default();
        let holders = node.gpu_holders.into_iter().map(|gpu| gpu.holders);
        let holders = holders.chain(std::iter::repeat(Vec::new()));
        let links = crate::topology::links(&inventory);
        let gpus: Vec<NodeGpu> = inventory
            .gpus
            .into_iter()
            .zip(holders)
            .zip(links)
            .map(|(gpu, links)| NodeGpu {
                links,
                ..NodeGpu::from(gpu)
            })
            .collect();
        Self {
            name: node.name,
            state: node.state,
            reason: some(node.reason),
            gpus_total: gpus.len(),
            gpus_free: gpus
                .iter()
                .filter(|g| g.holders.is_empty() && g.drained.is_none())
                .count(),
            gpus,
            cpus: inventory.cpus,
            cpus_held: node.cpus_held,
            memory_bytes: inventory.memory_bytes,
            memory_held_bytes: node.memory_held,
            driver_version: some(inventory.driver_version),
            os: inventory.os,
            gpu_note: some(inventory.gpu_note),
            isolation: some(inventory.isolation),
            last_contact: rfc3339(node.last_contact_ms),
            version: node.version,
            images: node.images,
            unknown_containers: node.unknown,
            cpu_holders: node.cpu_holders.into_iter().map(Into::into).collect(),
            features: node.features,
            switch_path: some(node.switch_path),
            block: some(node.block),
            reservations: node.reservations.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<v1::GpuHolder> for GpuHolder {
    fn from(holder: v1::GpuHolder) -> Self {
        Self {
            job: holder.job,
            user: some(holder.user),
            name: some(holder.name),
            slice: some(holder.slice),
            isolation: holder.isolation,
        }
    }
}

impl From<v1::MigInstance> for MigInstance {
    fn from(instance: v1::MigInstance) -> Self {
        Self {
            profile: instance.profile,
            start: instance.start,
            uuid: instance.uuid,
        }
    }
}

impl From<(v1::GpuInfo, Vec<v1::GpuHolder>)> for NodeGpu {
    fn from((gpu, holders): (v1::GpuInfo, Vec<v1::GpuHolder>)) -> Self {
        let sharing = match gpu.sharing() {
            v1::Sharing::Unspecified => None,
            v1::Sharing::TimeSlice => Some("time-slice"),
            v1::Sharing::Mps => Some("mps"),
        };
        Self {
            uuid: gpu.uuid,
            index: gpu.index,
            model: gpu.model,
            memory_bytes: gpu.memory_bytes,
            pci_address: gpu.pci_address,
            numa_node: gpu.numa_node,
            cpu_affinity: some(gpu.cpu_affinity),
            links: Vec::new(),
            mig_enabled: gpu.mig.is_some(),
            mig_instances: gpu
                .mig
                .into_iter()
                .flat_map(|mig| mig.instances)
                .map(Into::into)
                .collect(),
            sharing,
            drained: some(gpu.drained),
            job: holders.first().map(|holder| holder.job),
            holders: holders.into_iter().map(Into::into).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drained_and_held_gpus_are_not_free() {
        let gpu = |index, drained: &str| v1::GpuInfo {
            index,
            drained: drained.into(),
            ..Default::default()
        };
        let node = v1::Node {
            inventory: Some(v1::Inventory {
                gpus: vec![gpu(0, ""), gpu(1, "ECC"), gpu(2, "")],
                ..Default::default()
            }),
            gpu_holders: vec![
                v1::GpuHolders {
                    holders: vec![v1::GpuHolder {
                        job: 9,
                        ..Default::default()
                    }],
                },
                v1::GpuHolders::default(),
            ],
            ..Default::default()
        };
        let json = serde_json::to_value(Node::from(node)).unwrap();
        assert_eq!((&json["gpus_total"], &json["gpus_free"]), (&3.into(), &1.into()));
        assert_eq!(
            (&json["gpus"][0]["holders"][0]["job"], &json["gpus"][2]["holders"]),
            (&9.into(), &serde_json::json!([]))
        );
    }
}
