//! Nodes, as the broker knows them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::activity::{Activity, Thresholds};
use super::batch::BatchRun;
use super::cpus::Binding;
use super::gang_network::{RankNetwork, Reach, Subnet};
use super::gpu::Inventory;
use super::gpu_unit::GpuUnit;
use super::ids::{ClusterId, Incarnation, JobKey, NodeName, SessionId, UserName};
use super::job::Containment;
use super::session::ContainerOptions;
use super::time::Timestamp;

/// What is kept of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its name.
    pub name: NodeName,
    /// What it last said it has.
    pub inventory: Inventory,
    /// Why an operator takes it out of service.
    pub drained: Option<String>,
    /// Serial (hexadecimal) of the certificate that it may come with.
    pub certificate: String,
    /// Serial of the one before, good until the newer one has been renewed in turn:
    /// the answer that carried the newer one may have been lost. Empty: none.
    pub former_certificate: String,
    /// Certificates that it may no longer come with.
    pub revoked: Vec<String>,
    /// The kernel's boot id when last heard of.
    pub boot_id: String,
    /// The agent's version.
    pub version: String,
    /// Images present on it.
    pub images: Vec<String>,
    /// Since when it is known, if it came with a certificate of this cluster and no record knew it
    /// (the store was lost): nothing is placed on it until an operator adopts it.
    #[serde(default)]
    pub found: Option<Timestamp>,
    /// Features that operators have given it, beside those of its own configuration.
    #[serde(default)]
    pub features: BTreeSet<String>,
}

impl NodeRecord {
    /// The node may come with the certificate of this serial (hexadecimal).
    pub fn accepts(&self, serial: &str) -> bool {
        !serial.is_empty() && (serial == self.certificate || serial == self.former_certificate)
    }

    /// What it has, with all of its features.
    pub fn offer(&self) -> Cow<'_, Inventory> {
        if self.features.is_subset(&self.inventory.features) {
            return Cow::Borrowed(&self.inventory);
        }
        let mut inventory = self.inventory.clone();
        inventory.features.extend(self.features.iter().cloned());
        Cow::Owned(inventory)
    }
}

/// How far one job is on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ObservedPhase {
    /// Being made.
    Preparing,
    /// carrel-init is up; its host key is known.
    Ready,
    /// Being ended.
    Stopping,
    /// Over; everything that it held is free.
    Released,
}

/// Why a job ended on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EndCause {
    /// Could not be started.
    StartFailed,
    /// Process 1 exited by itself.
    Exited,
    /// The kernel ended it for want of memory.
    OutOfMemory,
    /// Its deadline.
    Deadline,
    /// Its lease ran out.
    Lease,
    /// The broker's wish.
    Tombstone,
    /// The node restarted under it.
    NodeRestarted,
}

/// One job as its node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedJob {
    /// Which allocation.
    pub key: JobKey,
    /// Session that it is a run of.
    pub session: Option<SessionId>,
    /// How far it is.
    pub phase: ObservedPhase,
    /// Progress, or the reason of a failure.
    pub detail: String,
    /// SSH host key's public half; empty until known.
    pub host_key: String,
    /// Why it ends; none while it lives.
    pub cause: Option<EndCause>,
    /// Exit code of process 1, or 128 + signal.
    pub exit_code: Option<i32>,
    /// GPU units that it holds.
    pub gpus: Vec<GpuUnit>,
    /// Hardware threads that it holds.
    pub cpus: u32,
    /// Memory that it holds, bytes.
    pub memory_bytes: u64,
    /// Whose it is.
    pub user: Option<UserName>,
    /// Its name.
    pub name: String,
    /// When it ends at the latest.
    pub deadline: Timestamp,
    /// Cluster that started it.
    pub cluster: ClusterId,
    /// Live SSH connections.
    pub connections: u32,
    /// This node's rank in the gang.
    pub rank: u32,
    /// Nodes of the gang.
    pub nodes: u32,
    /// When its node took it in, by that node's clock.
    pub started: Timestamp,
    /// Image that it runs.
    pub image: String,
    /// Of its container's limits.
    pub containment: Containment,
    /// CPUs and memory nodes that its container is bound to.
    pub binding: Binding,
    /// What its container has of the gang's network, or is to have.
    #[serde(default)]
    pub network: RankNetwork,
}

/// Everything that a node is, as its agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// The node.
    pub node: NodeName,
    /// The kernel's boot id.
    pub boot_id: String,
    /// Grows with every message of one agent process.
    pub seq: u64,
    /// Cluster and highest incarnation that the agent has accepted.
    pub accepted: Option<(ClusterId, Incarnation)>,
    /// Generation of the [`Desired`] (of that incarnation) last acted on.
    pub generation: u64,
    /// What the node has.
    pub inventory: Inventory,
    /// Its jobs.
    pub jobs: Vec<ObservedJob>,
    /// The agent's version.
    pub version: String,
    /// Images present on it.
    pub images: Vec<String>,
    /// What is done in its jobs. Apart from them: it changes all the time, and what they hold does not.
    #[serde(default)]
    pub activity: BTreeMap<JobKey, Activity>,
}

/// Another member of a gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its rank.
    pub rank: u32,
    /// Its node.
    pub node: NodeName,
    /// A second name of it inside the gang's containers, after its node's: "dev-1", "job-12-1".
    pub host_name: String,
    /// What its container has of the gang's network.
    #[serde(default)]
    pub network: RankNetwork,
    /// How its node is reached.
    #[serde(default)]
    pub reach: Reach,
    /// Tasks for which it has room, as far as nothing else was said: its GPUs, at least one.
    #[serde(default)]
    pub slots: u32,
}

/// One job that a node is to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredJob {
    /// Which allocation.
    pub key: JobKey,
    /// Session that it is a run of.
    pub session: Option<SessionId>,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub owner: UserName,
    /// Image reference.
    pub image: String,
    /// GPU units, in the order in which the container sees them.
    pub gpus: Vec<GpuUnit>,
    /// Hardware threads.
    pub cpus: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// This node's rank.
    pub rank: u32,
    /// The gang, this node included, by rank.
    pub peers: Vec<Peer>,
    /// Where the addresses of gangs are from.
    #[serde(default = "gang_subnet")]
    pub gang_subnet: Subnet,
    /// Variables for every process, complete but for what only the node knows.
    pub env: Vec<(String, String)>,
    /// When it ends, broker or no broker.
    pub deadline: Timestamp,
    /// Every container of the gang is ready.
    pub go: bool,
    /// SSH host key that the node reported, to be certified by the shell; empty until known.
    pub host_key: String,
    /// Principals of the host certificate.
    pub host_principals: Vec<String>,
    /// Working directory; empty: the home.
    pub workdir: String,
    /// The node has said that it was ready: a node that has nothing of it has lost it, and does not
    /// start it anew. A job runs once.
    pub ready: bool,
    /// What else its container is to be.
    pub container: ContainerOptions,
    /// What it runs by itself: on the first node of a batch job. Its end is the job's.
    pub batch: Option<BatchRun>,
    /// When the broker ends it, unless it is used until then; none: it is used, or may be idle.
    #[serde(default)]
    pub idle_ends: Option<Timestamp>,
    /// The last signal that somebody had sent to it.
    #[serde(default)]
    pub signalled: Option<super::job::Signalled>,
}

const fn gang_subnet() -> Subnet {
    Subnet::GANGS
}

impl DesiredJob {
    /// What this node's container is to have of the gang's network.
    pub fn network(&self) -> RankNetwork {
        let own = self.peers.iter().find(|peer| peer.rank == self.rank);
        own.map(|peer| peer.network).unwrap_or_default()
    }
}

/// An allocation that a node is to end and forget. Exactly this one: after a backup was restored,
/// another generation of the same job may be somebody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// Which allocation.
    pub key: JobKey,
    /// Milliseconds between the terminate signal and the kill.
    pub grace_ms: u64,
}

/// Everything that a node is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    /// The cluster.
    pub cluster: ClusterId,
    /// The broker's incarnation.
    pub incarnation: Incarnation,
    /// Grows with every change within an incarnation.
    pub generation: u64,
    /// [`Observed::seq`] that this answers: the lease counts from when that was sent.
    pub renews: u64,
    /// Length of the lease, milliseconds.
    pub lease_ms: u64,
    /// Jobs to hold.
    pub jobs: Vec<DesiredJob>,
    /// Jobs to end.
    pub tombstones: Vec<Tombstone>,
    /// Sessions whose kept changes are to be deleted.
    pub removed_sessions: Vec<SessionId>,
    /// From what on work in a job counts as use.
    #[serde(default)]
    pub thresholds: Thresholds,
}
