//! Containers, through containerd.
//!
//! One container for each (job, node), in a namespace of containerd that is
//! Carrel's. Everything that is needed to take a container over is in its
//! labels, so that an agent may be restarted at any moment; every operation may
//! be repeated after it was cut off anywhere.
//!
//! On the host, under the state directory:
//!
//! ```text
//! bin/                   carrel-init and carrel, mounted read-only into every container
//! jobs/<job>-<gen>/run/  root only: init.pb, fence.pb, and the sockets that carrel-init makes; of a batch job
//!                        end.pb (how its command ended) and output.0, output.1 (what it writes)
//! logs/<job>-<gen>/      output.0 and output.1 of a job that is over
//! jobs/<job>-<gen>/api/  the socket by which the job speaks to the broker
//! jobs/<job>-<gen>/dev/  device nodes of a container whose user is root
//! jobs/<job>-<gen>/etc/  passwd, group, hosts, hostname, resolv.conf of the container
//! gangs/                 of each container of a gang, its peers' addresses; and the routes that lead there
//! jobs/<job>-<gen>/      init.log (what process 1 says), started, exit.json
//! shifted/<job>-<gen>/   layers as a user namespace sees them, mounted while a container is made
//! userns.json            whose user ids are whose (--root)
//! containerd/            the private containerd, where the host runs none
//! ```

pub(crate) mod cgroup;
pub(crate) mod client;
mod command;
mod create;
pub(crate) mod etc;
mod events;
mod fence;
pub(crate) mod locks;
mod netns;
mod network;
mod open;
mod private;
mod record;
mod remove;
mod rootfs;
mod spec;
mod syscall;
mod userns;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use carrel_core::model::activity::HostUse;
use carrel_core::model::gang_network::{RankNetwork, Reach};
use carrel_core::model::ids::{JobKey, SessionId};
use containerd_client::services::v1::{
    Container as StoredContainer, GetRequest, KillRequest, ListContainersRequest, UpdateContainerRequest,
};
use containerd_client::types::v1::Process;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::cdi::Cdi;
use crate::cpus::Limits;
use crate::gpu::Given;
use crate::image::{ImageInfo, Progress, SharedImages};
use cgroup::Cgroups;
use client::{Containerd, Settled, Told};
use locks::KeyedLocks;
use network::Network;
use private::PrivateContainerd;
use record::{RECORD_LABEL, container_id, dir_name, key_of};
use spec::HostFacts;

pub(crate) use command::OUTPUT;
pub use command::{CommandEnd, SCRIPT};
pub use events::{Events, RuntimeEvent};
pub use network::{Gang, GangMode, GangPeer, NetworkMode, own_address};
pub use open::RuntimeOptions;
pub(crate) use private::has_ended;
pub use record::{
    BindMount, Container, ContainerRecord, ContainerSpec, ContainerState, Exit, HostEntry, LeaseEnd,
};
pub(crate) use spec::DEFAULT_PATH;
pub use spec::{PROGRAMS_DIR, RUN_DIR};
pub use userns::{UserRanges, inside as root_inside};

/// Lines of progress of one start that may wait to be told; there are fewer in all.
const NOTES: usize = 16;
/// States of a process, as `containerd.v1.types.Status` numbers them.
const STATUS_UNKNOWN: i32 = 0;
const STATUS_CREATED: i32 = 1;
const STATUS_STOPPED: i32 = 3;

/// How long it is asked how far a container is, where containerd does not know.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Between two questions.
const KNOWN_POLL: Duration = Duration::from_millis(50);

/// The containers of one node. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

struct Inner {
    options: RuntimeOptions,
    containerd: Containerd,
    private: Option<Arc<PrivateContainerd>>,
    images: SharedImages,
    cdi: Cdi,
    network: Network,
    cgroups: Cgroups,
    cgroup_parent: String,
    host: HostFacts,
    boot_id: String,
    /// Why no container's user can be root in it; none: he can.
    no_root: Option<String>,
    /// Held while a user's range of ids is looked up or given out.
    ranges: std::sync::Mutex<()>,
    /// One thing at a time is done to a job.
    jobs: KeyedLocks<JobKey>,
    /// What must not be cut off between two calls to containerd: it may still be at the first
    /// when the next attempt looks.
    tasks: TaskTracker,
}

impl Runtime {
    /// Every container of ours, started by this agent or an earlier one.
    ///
    /// # Errors
    /// containerd cannot be reached, or a container's labels are not understood: what it
    /// holds would be taken for free.
    pub async fn list(&self) -> Result<Vec<Container>> {
        let containerd = &self.inner.containerd;
        let request = containerd.request(ListContainersRequest { filters: Vec::new() });
        let stored = containerd
            .containers()
            .list(request)
            .await
            .told("listing containers")?
            .into_inner();
        let mut found = Vec::new();
        for container in stored.containers {
            let id = container.id.clone();
            if let Some(record) = record_of(&container)? {
                let state = self
                    .state(record.key)
                    .await
                    .with_context(|| format!("container {id}"))?;
                found.push(Container { record, state });
            } else {
                tracing::warn!(
                    container = id,
                    "a container in our namespace is not ours; it is left alone"
                );
            }
        }
        Ok(found)
    }

    /// One container; none where there is none.
    pub async fn get(&self, key: JobKey) -> Result<Option<Container>> {
        let Some(stored) = self.stored(key).await? else {
            return Ok(None);
        };
        let Some(record) = record_of(&stored)? else {
            return Ok(None);
        };
        Ok(Some(Container {
            record,
            state: self.state(key).await?,
        }))
    }

    /// Replaces what is kept of a container: a new deadline, another binding.
    pub async fn update_record(&self, record: &ContainerRecord) -> Result<()> {
        let containerd = &self.inner.containerd;
        let labels = [(RECORD_LABEL.to_owned(), record.label()?)].into();
        let container = StoredContainer {
            id: container_id(record.key),
            labels,
            ..StoredContainer::default()
        };
        let paths = vec![format!("labels.{RECORD_LABEL}")];
        let update = UpdateContainerRequest {
            container: Some(container),
            update_mask: Some(prost_types::FieldMask { paths }),
        };
        containerd
            .containers()
            .update(containerd.request(update))
            .await
            .told("updating a container")?;
        Ok(())
    }

    /// Makes and starts a container: image, snapshot, specification, container, network, process 1.
    ///
    /// May be repeated: a running container stays as it is, a half-made one is made anew.
    /// Dropping it ends a pull at once; what comes after the pull is not cut off, and
    /// [`Self::remove`] waits for it.
    ///
    /// # Errors
    /// As text for the user: what failed, where, and what to do. A container whose process 1 has
    /// ended already is an error, too: it is not started a second time.
    pub async fn create(&self, spec: &ContainerSpec, progress: Progress<'_>) -> Result<()> {
        let lock = self.inner.jobs.lock(spec.record.key).await;
        let Some(image) = self.check(spec, progress).await? else {
            return Ok(());
        };
        let (notes, mut noted) = mpsc::channel(NOTES);
        let (this, spec) = (self.clone(), spec.clone());
        let made = self.inner.tasks.spawn(async move {
            let _lock = lock;
            this.make(&spec, &image, notes).await
        });
        while let Some(line) = noted.recv().await {
            progress(line);
        }
        made.await?
    }

    /// Sends a signal to process 1; SIGKILL goes to every process of the container. Absent is fine.
    pub async fn kill(&self, key: JobKey, signal: i32) -> Result<()> {
        let all = signal == libc::SIGKILL;
        let containerd = &self.inner.containerd;
        let kill = KillRequest {
            container_id: container_id(key),
            signal: signal as u32,
            all,
            ..KillRequest::default()
        };
        // "Not found" is also what a process that has ended answers.
        let killed = containerd
            .tasks()
            .kill(containerd.request(kill))
            .await
            .absent_ok();
        killed.told(format!("sending signal {signal} to job {key}"))?;
        Ok(())
    }

    /// Ends and removes a container with all that it had: processes, network, cgroup, mounts, run
    /// directory, and its own changes unless they are a session's. Absent is fine. May be repeated;
    /// goes on when it is dropped.
    pub async fn remove(&self, key: JobKey) -> Result<Exit> {
        let this = self.clone();
        let removed = self.inner.tasks.spawn(async move {
            let _lock = this.inner.jobs.lock(key).await;
            this.remove_locked(key).await
        });
        removed.await?
    }

    /// Deletes a session's kept changes. Absent is fine.
    ///
    /// # Errors
    /// A container still uses them.
    pub async fn remove_session(&self, session: SessionId) -> Result<()> {
        let snapshot = record::session_snapshot(session);
        let user = self.user_of_snapshot(&snapshot).await?;
        ensure!(
            user.is_none(),
            "session {session} is in use by container {}",
            user.unwrap_or_default()
        );
        self.remove_snapshot(&snapshot).await
    }

    /// What happens to containers, from now on.
    pub fn events(&self) -> Events {
        Events::new(
            self.inner.containerd.clone(),
            self.inner.options.namespace.clone(),
        )
    }

    /// Whether no process of the job is left on this node.
    pub async fn cgroup_empty(&self, key: JobKey) -> Result<bool> {
        let (cgroups, path) = (self.inner.cgroups.clone(), self.cgroup(key));
        tokio::task::spawn_blocking(move || Ok(cgroups.processes(&path)?.is_empty())).await?
    }

    /// The job's processes, by their ids on the host.
    pub async fn processes(&self, key: JobKey) -> Result<Vec<i32>> {
        let (cgroups, path) = (self.inner.cgroups.clone(), self.cgroup(key));
        tokio::task::spawn_blocking(move || cgroups.processes(&path)).await?
    }

    /// Processes of a container that the kernel has killed for want of memory. For use before [`Self::remove`].
    pub fn out_of_memory_kills(&self, key: JobKey) -> u32 {
        self.inner.cgroups.out_of_memory_kills(&self.cgroup(key))
    }

    /// What the job's processes have used of CPUs and memory since its start; 0 what this host does not count. Blocks.
    pub fn host_use(&self, key: JobKey) -> HostUse {
        self.inner.cgroups.host_use(&self.cgroup(key))
    }

    /// What jobs' containers may be bound to; none: this host's cgroups cannot bind. Blocks.
    pub fn limits(&self) -> Option<Limits> {
        self.inner.cgroups.limits(&self.inner.cgroup_parent)
    }

    /// Binds a container's memory to no node any more. Absent is fine. Blocks.
    pub fn free_memory(&self, key: JobKey) -> Result<()> {
        self.inner.cgroups.free_memory(&self.cgroup(key))
    }

    /// This host's cgroups.
    pub(crate) fn cgroups(&self) -> &Cgroups {
        &self.inner.cgroups
    }

    /// The cgroup below which everything of ours is.
    pub(crate) fn cgroup_parent(&self) -> &str {
        &self.inner.cgroup_parent
    }

    /// The job's cgroup, absolute within each hierarchy.
    pub fn cgroup(&self, key: JobKey) -> String {
        format!("{}/{}", self.inner.cgroup_parent, dir_name(key))
    }

    /// The host's side of [`RUN_DIR`]: `ctl.sock` and `ssh.sock` are here.
    pub fn run_dir(&self, key: JobKey) -> PathBuf {
        self.job_dir(key).join("run")
    }

    /// The host's side of [`carrel_proto::inside::DIR`].
    pub fn api_dir(&self, key: JobKey) -> PathBuf {
        self.job_dir(key).join("api")
    }

    /// The last lines that process 1 wrote to its standard output and error; empty: none.
    pub fn init_log(&self, key: JobKey, lines: usize) -> String {
        let text = std::fs::read(self.job_dir(key).join("init.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<_> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// The environment by which programs find these GPUs in a container: GPU visibility, and what CDI
    /// says besides. To be merged into the environment of every process; process 1 has it anyhow.
    ///
    /// # Errors
    /// A container could not be given one of these GPUs, and why: also the test of whether a GPU can be offered.
    pub async fn gpu_environment(&self, gpus: &[Given]) -> Result<Vec<(String, String)>> {
        let (cdi, gpus) = (self.inner.cdi.clone(), gpus.to_vec());
        tokio::task::spawn_blocking(move || cdi.environment(&gpus)).await?
    }

    /// Loads an image archive: OCI layout, `docker save`, or a root file system; gzipped or not.
    /// An empty name takes the archive's own.
    pub async fn import_image(&self, path: &Path, name: &str, progress: Progress<'_>) -> Result<ImageInfo> {
        self.inner.images.import(path, name, progress).await
    }

    /// The image of this name, pulled if need be.
    pub async fn ensure_image(&self, name: &str, progress: Progress<'_>) -> Result<ImageInfo> {
        self.inner.images.ensure(name, progress).await
    }

    /// Names of the images on this node.
    pub async fn images(&self) -> Result<Vec<String>> {
        self.inner.images.names().await
    }

    /// For people: the containerd in use and what network jobs get.
    pub fn describe(&self) -> String {
        let kind = if self.inner.private.is_some() {
            "private containerd"
        } else {
            "containerd"
        };
        let socket = self.inner.containerd.socket().display();
        format!("{kind} at {socket}; network: {}", self.inner.network.describe())
    }

    /// For people: what a job's container is kept in, and which of its uses are limited.
    pub fn isolation(&self) -> String {
        let cpus = if self.inner.host.has_cpu_quota {
            "CPUs and memory"
        } else {
            "memory (CPUs by weight only)"
        };
        let root = match &self.inner.no_root {
            None => "root inside by a user namespace".to_owned(),
            Some(why) => format!("no root inside ({why})"),
        };
        format!(
            "network: {}; of gangs: {}; {cpus} limited to what was granted; at most {} processes a job; {root}; disk: not limited",
            self.inner.network.describe(),
            self.inner.network.describe_gangs(),
            self.inner.options.pids_limit
        )
    }

    /// Why no container's user can be root in it here; none: he can.
    pub fn no_root(&self) -> Option<&str> {
        self.inner.no_root.as_deref()
    }

    /// Most processes and threads of one job.
    pub fn pids_limit(&self) -> u64 {
        self.inner.options.pids_limit
    }

    /// For people: what network a job over so many nodes has.
    pub fn network(&self, network: RankNetwork, nodes: usize) -> String {
        self.inner.network.describe_of(network, nodes)
    }

    /// How the members of a gang can reach each other here.
    pub fn reach(&self) -> &Reach {
        self.inner.network.reach()
    }

    /// Puts back what the host's network lacks for gangs with containers here. For the agent alone, at its start.
    pub async fn resume_network(&self) -> Result<()> {
        self.inner.network.resume().await
    }

    /// Makes what leads from a container to its gang what it is to be by now.
    pub async fn follow_gang(&self, key: JobKey, gang: &Gang) -> Result<()> {
        let _lock = self.inner.jobs.lock(key).await;
        self.inner.network.follow(key, gang).await
    }

    fn job_dir(&self, key: JobKey) -> PathBuf {
        self.inner.options.state_dir.join("jobs").join(dir_name(key))
    }

    /// Where layers are shown to a user namespace while a container is made.
    fn shifted_dir(&self, key: JobKey) -> PathBuf {
        self.inner.options.state_dir.join("shifted").join(dir_name(key))
    }

    fn programs_dir(&self) -> PathBuf {
        self.inner.options.state_dir.join("bin")
    }

    async fn stored(&self, key: JobKey) -> Result<Option<StoredContainer>> {
        use containerd_client::services::v1::GetContainerRequest;
        let containerd = &self.inner.containerd;
        let request = containerd.request(GetContainerRequest {
            id: container_id(key),
        });
        let found = containerd
            .containers()
            .get(request)
            .await
            .absent_ok()
            .told("looking for a container")?;
        Ok(found.and_then(|response| response.container))
    }

    async fn task(&self, key: JobKey) -> Result<Option<Process>> {
        let containerd = &self.inner.containerd;
        let request = containerd.request(GetRequest {
            container_id: container_id(key),
            exec_id: String::new(),
        });
        let found = containerd
            .tasks()
            .get(request)
            .await
            .absent_ok()
            .told("looking for a container's process")?;
        Ok(found.and_then(|response| response.process))
    }

    /// How far a container is that containerd knows. One that does not say it for long counts as running: what may run
    /// holds what it has.
    async fn state(&self, key: JobKey) -> Result<ContainerState> {
        let began = Instant::now();
        let mut task = self.task(key).await?;
        // What watches over it is busy, with its start or its end, and containerd has waited two seconds for it.
        while task.as_ref().is_some_and(|task| task.status == STATUS_UNKNOWN)
            && began.elapsed() < KNOWN_WITHIN
        {
            tokio::time::sleep(KNOWN_POLL).await;
            task = self.task(key).await?;
        }
        Ok(match task {
            Some(task) if task.status == STATUS_STOPPED => {
                ContainerState::Ended(self.exit(key, Some(task.exit_status as i32)))
            }
            Some(task) if task.status == STATUS_CREATED => ContainerState::Unstarted,
            Some(task) => ContainerState::Running { pid: task.pid },
            // Its command had ended before the node, or containerd, did.
            None if self.end_of_command(key).is_some() => ContainerState::Ended(self.exit(key, None)),
            None if self.was_started(key) => ContainerState::Lost,
            None => ContainerState::Unstarted,
        })
    }

    /// How process 1 ended, with this exit code; or as its command did by itself.
    pub(crate) fn exit(&self, key: JobKey, code: Option<i32>) -> Exit {
        let command = self.end_of_command(key);
        Exit {
            code: command.as_ref().map(|end| end.code).or(code),
            out_of_memory: self.out_of_memory_kills(key) > 0,
            command: command.is_some(),
            host: self.host_use(key),
        }
    }

    /// A file, since a label could not be written at the same moment as the start.
    fn started_marker(&self, key: JobKey) -> PathBuf {
        self.job_dir(key).join("started")
    }

    fn was_started(&self, key: JobKey) -> bool {
        self.started_marker(key).exists()
    }
}

fn record_of(container: &StoredContainer) -> Result<Option<ContainerRecord>> {
    let Some(text) = container.labels.get(RECORD_LABEL) else {
        ensure!(
            key_of(&container.id).is_none(),
            "container {} has no label {RECORD_LABEL}",
            container.id
        );
        return Ok(None);
    };
    ContainerRecord::from_label(text)
        .map(Some)
        .with_context(|| format!("container {}", container.id))
}
