//! What a container is told at its start, and what is known of it ever after.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use carrel_core::model::activity::HostUse;
use carrel_core::model::cpus::Binding;
use carrel_core::model::gang_network::RankNetwork;
use carrel_core::model::gpu::GpuInfo;
use carrel_core::model::gpu_unit::GpuUnit;
use carrel_core::model::ids::{Generation, GpuUuid, JobId, JobKey, SessionId};
use carrel_core::model::time::Timestamp;
use carrel_proto::v1::Identity;
use serde::{Deserialize, Serialize};

use super::network::Gang;
use crate::gpu::Given;

/// Label that holds a [`ContainerRecord`] as JSON; a container without it is not ours.
pub(crate) const RECORD_LABEL: &str = "io.carrel.record";
/// Label by which the user of a snapshot is found.
pub(crate) const SNAPSHOT_LABEL: &str = "io.carrel.snapshot";
/// Labels for people who look with `ctr`.
pub(crate) const USER_LABEL: &str = "io.carrel.user";
pub(crate) const NAME_LABEL: &str = "io.carrel.name";
/// containerd takes labels of up to 4096 bytes, key and value together.
const MAX_LABEL: usize = 4096;

/// What the agent must know to take a container over: kept in its labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// Job and generation.
    pub key: JobKey,
    /// Session that it is a run of.
    pub session: Option<SessionId>,
    /// Job (session) name.
    pub name: String,
    /// Owner's login name.
    pub user: String,
    /// Cluster that started it.
    pub cluster: String,
    /// Image, as it was asked for.
    pub image: String,
    /// This node's rank in the gang.
    pub rank: u32,
    /// GPU units that it holds, in the container's order.
    pub gpus: Vec<GpuUnit>,
    /// Hardware threads that it holds.
    pub cpus: u32,
    /// Memory that it holds, bytes.
    pub memory_bytes: u64,
    /// When it ends, broker or no broker.
    pub deadline: Timestamp,
    /// Nodes of the gang; 0: not known.
    #[serde(default)]
    pub nodes: u32,
    /// When this node took it in.
    #[serde(default)]
    pub started: Timestamp,
    /// CPUs and memory nodes that it is bound to; none of containers from before that was kept.
    #[serde(default)]
    pub binding: Binding,
    /// By what its programs find its GPUs: should these not be as they were, when an agent takes it over.
    #[serde(default)]
    pub visible: Vec<GpuUuid>,
    /// What it has of its gang's network.
    #[serde(default)]
    pub network: RankNetwork,
}

impl ContainerRecord {
    pub(crate) fn label(&self) -> Result<String> {
        let text = serde_json::to_string(self)?;
        if RECORD_LABEL.len() + text.len() > MAX_LABEL {
            bail!(
                "job {}: what is to be kept of it has {} bytes, containerd takes {MAX_LABEL}",
                self.key,
                text.len()
            );
        }
        Ok(text)
    }

    pub(crate) fn from_label(text: &str) -> Result<Self> {
        serde_json::from_str(text).context("the container's label is of another version of carrel-node")
    }
}

/// Tells when the lease ends; none: there is none.
#[derive(Clone)]
pub struct LeaseEnd(pub Arc<dyn Fn() -> Option<u64> + Send + Sync>);

impl LeaseEnd {
    /// There is none.
    pub fn none() -> Self {
        Self(Arc::new(|| None))
    }
}

impl fmt::Debug for LeaseEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", (self.0)())
    }
}

/// Everything that a container is made of.
#[derive(Clone, Debug)]
pub struct ContainerSpec {
    /// What is kept of it.
    pub record: ContainerRecord,
    /// Host name inside.
    pub hostname: String,
    /// Its other names, for /etc/hosts.
    pub aliases: Vec<String>,
    /// Its address where that is known before it is made: of a gang's member.
    pub address: Option<IpAddr>,
    /// Its gang, where that has addresses of its own.
    pub gang: Option<Gang>,
    /// The gang's nodes and their slots, put at [`carrel_proto::inside::HOSTFILE`].
    pub hostfile: String,
    /// Whose processes these are on the host: for passwd, group and the home.
    pub identity: Identity,
    /// The user is root inside, by a user namespace.
    pub root: bool,
    /// What the record's units are, in the same order.
    pub gpus: Vec<Given>,
    /// The host's other GPUs, which it must not reach.
    pub others: Vec<GpuInfo>,
    /// Directory of the host that is its `/dev/shm`, which it shares with others; none: it has its own.
    pub shm: Option<PathBuf>,
    /// Most processes and threads.
    pub pids_limit: u64,
    /// Environment of process 1, over the image's.
    pub env: Vec<(String, String)>,
    /// Host directories; see [`BindMount::home`].
    pub mounts: Vec<BindMount>,
    /// Further lines of /etc/hosts: the gang's other members.
    pub hosts: Vec<HostEntry>,
    /// The script that it runs, put at [`super::SCRIPT`].
    pub script: Option<String>,
    /// A serialized `carrel.v1.InitConfig`, put where carrel-init reads it.
    pub init_config: Vec<u8>,
    /// End of the lease as it is when the container is made, milliseconds of `CLOCK_BOOTTIME`:
    /// images take minutes to come, and the lease is renewed meanwhile.
    pub lease: LeaseEnd,
    /// What process 1 is, instead of carrel-init. For tests.
    pub command: Option<Vec<String>>,
}

impl ContainerSpec {
    /// It is in its host's network: nothing is made for it.
    pub(super) fn has_hosts_network(&self) -> bool {
        self.record.network == RankNetwork::Host
    }
}

/// A host directory in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindMount {
    /// On the host.
    pub source: String,
    /// In the container.
    pub target: String,
    /// Nothing can be written through it.
    pub read_only: bool,
}

impl BindMount {
    /// The user's home, where the host has one. Without it the home is an
    /// empty directory among the container's own files.
    pub fn home(identity: &Identity) -> Option<Self> {
        let home = &identity.home;
        let bindable = home.starts_with('/') && home != "/" && Path::new(home).is_dir();
        bindable.then(|| Self {
            source: home.clone(),
            target: home.clone(),
            read_only: false,
        })
    }

    /// Whether a path of the container comes from the host.
    pub fn cover(mounts: &[Self], path: &str) -> bool {
        mounts
            .iter()
            .any(|mount| Path::new(path).starts_with(&mount.target))
    }
}

/// A line of /etc/hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEntry {
    /// IP address.
    pub address: String,
    /// Names, the canonical one first.
    pub names: Vec<String>,
}

/// A container that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// What was kept of it.
    pub record: ContainerRecord,
    /// How far it is.
    pub state: ContainerState,
}

/// How far a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Made, but its process 1 never ran: a start was cut off. `create` begins
    /// anew, `remove` clears it.
    Unstarted,
    /// Process 1 runs.
    Running {
        /// Its id on the host.
        pid: u32,
    },
    /// Process 1 ended; what it held is held until `remove`.
    Ended(Exit),
    /// It ran, and is gone without a trace of how it ended: the node was
    /// restarted, or a `remove` was cut off.
    Lost,
}

/// How process 1 ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code, or 128 + signal; none: not known (it never ran, or the node restarted).
    pub code: Option<i32>,
    /// The kernel killed something of it for want of memory.
    pub out_of_memory: bool,
    /// It ended because the job's command had: the exit code is that one's.
    #[serde(default)]
    pub command: bool,
    /// What it had used by then.
    #[serde(default)]
    pub host: HostUse,
}

/// A container's id in containerd, and the name of its directory and cgroup less the prefix.
pub(crate) fn container_id(key: JobKey) -> String {
    format!("carrel-{}", dir_name(key))
}

pub(crate) fn dir_name(key: JobKey) -> String {
    format!("{}-{}", key.job.0, key.generation.0)
}

/// The job of a container's id; none for ids that are not ours.
pub(crate) fn key_of(container_id: &str) -> Option<JobKey> {
    key_of_dir(container_id.strip_prefix("carrel-")?)
}

/// The job of a directory's name.
pub(crate) fn key_of_dir(name: &str) -> Option<JobKey> {
    let (job, generation) = name.split_once('-')?;
    Some(JobKey {
        job: JobId(job.parse().ok()?),
        generation: Generation(generation.parse().ok()?),
    })
}

/// The snapshot that holds a container's own changes.
pub(crate) fn snapshot_key(record: &ContainerRecord) -> String {
    match record.session {
        Some(session) => session_snapshot(session),
        None => job_snapshot(record.key),
    }
}

pub(crate) fn session_snapshot(session: SessionId) -> String {
    format!("carrel-session-{session}")
}

pub(crate) fn job_snapshot(key: JobKey) -> String {
    format!("carrel-job-{}", dir_name(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lead_back_to_their_jobs() {
        let key = JobKey {
            job: JobId(7),
            generation: Generation::first_of(3).next(),
        };
        assert_eq!(key_of(&container_id(key)), Some(key));
        assert_eq!(key_of("other-7-1"), None);
        assert_eq!(key_of("carrel-session-4"), None);
    }
}
