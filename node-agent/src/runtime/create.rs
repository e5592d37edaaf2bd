//! From a specification to a running container.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use carrel_core::model::ids::JobKey;
use carrel_proto::inside::HOSTFILE_NAME;
use carrel_proto::v1::{Identity, InitConfig};
use containerd_client::services::v1::container::Runtime as RuntimeName;
use containerd_client::services::v1::snapshots::{
    MountsRequest, PrepareSnapshotRequest, StatSnapshotRequest,
};
use containerd_client::services::v1::{
    Container as StoredContainer, CreateContainerRequest, CreateTaskRequest, ListContainersRequest,
    StartRequest,
};
use containerd_client::types::Mount;
use prost::Message;
use prost_types::Any;
use tokio::sync::mpsc;

use super::client::{SNAPSHOTTER, Settled, Told};
use super::command::SCRIPT_NAME;
use super::netns::NetworkNamespace;
use super::record::{
    BindMount, ContainerRecord, ContainerSpec, ContainerState, NAME_LABEL, RECORD_LABEL, SNAPSHOT_LABEL,
    USER_LABEL, container_id, snapshot_key,
};
use super::rootfs::{Found, Visit, visit};
use super::spec::{NetworkPart, Rooted};
use super::userns::Shifted;
use super::{Runtime, etc, fence, spec, userns};
use crate::cdi::environment_of;
use crate::image::{ImageInfo, Progress};

/// containerd's runtime for runc.
const RUNTIME: &str = "io.containerd.runc.v2";
const SPEC_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
const RUNC_OPTIONS_TYPE: &str = "containerd.runc.v1.Options";
/// systemd-resolved's list of real servers.
const UPSTREAM_RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";

/// containerd's `containerd.runc.v1.Options` (runtime/v2/runc/options/oci.proto), as far as we set it.
#[derive(Clone, PartialEq, Message)]
struct RuncOptions {
    /// runc's own state.
    #[prost(string, tag = "7")]
    root: String,
}

/// A container's files.
struct Files {
    mounts: Vec<Mount>,
    /// Held until the container has its overlay of them; none: they are what the snapshot is.
    shifted: Option<Shifted>,
    found: Found,
}

impl Runtime {
    /// What can be known before anything is made; gives the image, or none where the container runs.
    pub(super) async fn check(
        &self,
        spec: &ContainerSpec,
        progress: Progress<'_>,
    ) -> Result<Option<ImageInfo>> {
        let key = spec.record.key;
        etc::check_identity(&spec.identity)?;
        ensure!(
            spec.gpus
                .iter()
                .map(|given| &given.gpu.uuid)
                .eq(spec.record.gpus.iter().map(|unit| &unit.gpu)),
            "job {key}: two lists of GPUs"
        );
        if self.stored(key).await?.is_some() {
            match self.state(key).await? {
                ContainerState::Running { .. } => return Ok(None),
                ContainerState::Ended(_) | ContainerState::Lost => {
                    bail!("job {key} has run on this node already; it is not started a second time")
                }
                ContainerState::Unstarted => {}
            }
        }
        if let (true, Some(why)) = (spec.root, self.no_root()) {
            bail!("this node cannot make its users root in containers (--root): {why}");
        }
        // The commonest reason why a start fails.
        self.gpu_environment(&spec.gpus).await?;
        self.inner
            .images
            .ensure(&spec.record.image, progress)
            .await
            .map(Some)
    }

    /// Makes and starts a container of an image that is here. Not to be cut off.
    pub(super) async fn make(
        &self,
        spec: &ContainerSpec,
        image: &ImageInfo,
        notes: mpsc::Sender<String>,
    ) -> Result<()> {
        let key = spec.record.key;
        // A listener who is slow, or gone, misses lines; nothing waits for it.
        let progress = |line: String| drop(notes.try_send(line));
        if self.stored(key).await?.is_some() {
            self.remove_locked(key)
                .await
                .context("clearing what an interrupted start left")?;
        }
        let namespace = if spec.root || spec.has_hosts_network() {
            // Root's must be the user namespace's own, which is not there before the container is.
            None
        } else {
            self.inner.network.namespace().await?
        };
        let container = self.make_container(spec, image, namespace.as_ref(), &progress);
        let network = async {
            match &namespace {
                Some(namespace) => self.inner.network.join(key, namespace, spec.gang.as_ref()).await,
                None => Ok(None),
            }
        };
        // Both to their ends: what is cut off half-way cannot be cleared at once.
        let (fenced, address) = tokio::join!(container, network);
        let ((fenced, pid), mut address) = (fenced?, address?);
        if spec.root {
            let namespace = NetworkNamespace::of(pid)?;
            let joining = self.inner.network.join(key, &namespace, spec.gang.as_ref());
            address = joining.await?;
        }
        if let Some(address) = address {
            // In place: the file is mounted already.
            let hosts = etc::hosts(&names(spec), Some(address), &spec.hosts);
            fs::write(self.job_dir(key).join("etc/hosts"), hosts)?;
        }
        self.write_fence(spec, &fenced, address)
            .context("writing what the fence is tried on")?;
        // First, so that a start that is cut off right here is never made twice.
        fs::write(self.started_marker(key), &self.inner.boot_id)?;
        let containerd = &self.inner.containerd;
        let start = StartRequest {
            container_id: container_id(key),
            exec_id: String::new(),
        };
        containerd
            .tasks()
            .start(containerd.request(start))
            .await
            .told("starting the container")?;
        Ok(())
    }

    /// What process 1 tries before it lets its user in; it finds it when it starts.
    fn write_fence(&self, spec: &ContainerSpec, fenced: &[fence::Device], own: Option<IpAddr>) -> Result<()> {
        let (network, run_dir) = (&self.inner.network, self.run_dir(spec.record.key));
        let control = run_dir.join("ctl.sock");
        let sockets = [
            ("this node's containerd", self.inner.containerd.socket()),
            ("the agent's way to process 1", control.as_path()),
        ];
        let list = if spec.has_hosts_network() {
            // What the host reaches, it reaches.
            let mut list = fence::list(fenced, &sockets, Vec::new(), false, spec.root);
            list.namespaces.retain(|probe| probe.name != "net");
            list
        } else {
            let (neighbours, metadata) = (network.neighbours(own), network.refuses_metadata());
            fence::list(fenced, &sockets, neighbours, metadata, spec.root)
        };
        let path = run_dir.join("fence.pb");
        fs::write(&path, list.encode_to_vec())?;
        if spec.root {
            give(&path, &spec.identity)?;
        }
        Ok(())
    }

    /// Makes a container whose process 1 waits to be started; gives the devices that are made for the
    /// fence's trial, and its process on the host.
    async fn make_container(
        &self,
        spec: &ContainerSpec,
        image: &ImageInfo,
        namespace: Option<&NetworkNamespace>,
        progress: Progress<'_>,
    ) -> Result<(Vec<fence::Device>, u32)> {
        let key = spec.record.key;
        let (cdi, gpus, others) = (self.inner.cdi.clone(), spec.gpus.clone(), spec.others.clone());
        let (state_dir, hosts_network) = (self.inner.options.state_dir.clone(), spec.has_hosts_network());
        let looked_up = tokio::task::spawn_blocking(move || {
            let mut edits = cdi.edits(&gpus)?;
            if hosts_network {
                edits.device_nodes.extend(spec::rdma_devices());
            }
            let fenced = fence::devices(&cdi, &edits, &others, &state_dir);
            anyhow::Ok((edits, fenced))
        });
        let (edits, fenced) = looked_up.await??;

        progress("preparing files".to_owned());
        let root = self.rooted(spec).await?;
        let files = self.files(spec, image, root.as_ref(), progress).await?;
        let job_dir = self.job_dir(key);
        let path_additions = spec::path_additions(&edits);
        let etc = write_job_dir(&job_dir, spec, &files.found, &path_additions)
            .context("writing the job's directory")?;

        if let Some(root) = &root {
            spec::make_devices(&edits, &fenced, &root.devices).context("making device nodes")?;
        }

        progress("starting container".to_owned());
        let document = spec::build(&spec::Parts {
            spec,
            image,
            edits: &edits,
            fenced: &fenced,
            root: root.as_ref(),
            hidden: &hidden(&spec.mounts, &self.inner.options.state_dir),
            gpu_env: &environment_of(&edits, &spec.gpus),
            programs: &self.programs_dir(),
            run_dir: &self.run_dir(key),
            api_dir: &self.api_dir(key),
            etc: &etc,
            cgroup: &self.cgroup(key),
            host: &self.inner.host,
            network: match namespace {
                Some(namespace) => NetworkPart::At(namespace.path()),
                None if spec.has_hosts_network() => NetworkPart::Host,
                None => NetworkPart::New,
            },
        })?;
        self.store_container(spec, image, serde_json::to_vec(&document)?)
            .await?;
        let pid = self.create_task(spec, files.mounts).await?;
        drop(files.shifted);
        Ok((fenced, pid))
    }

    /// The container's files, looked into and made ready.
    async fn files(
        &self,
        spec: &ContainerSpec,
        image: &ImageInfo,
        root: Option<&Rooted>,
        progress: Progress<'_>,
    ) -> Result<Files> {
        let mounts = self.snapshot(&spec.record, image, progress).await?;
        let shifted = match root {
            Some(root) => Some(self.shifted(spec.record.key, root, mounts.clone()).await?),
            None => None,
        };
        let mounts = shifted.as_ref().map_or(mounts, |shifted| shifted.mounts.clone());
        let mut identity = spec.identity.clone();
        let home_is_mounted = BindMount::cover(&spec.mounts, &identity.home);
        if root.is_some() {
            identity.home = userns::inside(&identity, home_is_mounted).home;
        }
        let visited = visit(Visit {
            mounts: mounts.clone(),
            at: self.inner.options.state_dir.join("mnt"),
            identity,
            home_is_mounted,
            root: root.map(|root| (root.mapping.uid, root.mapping.gid)),
        });
        let found = visited
            .await
            .with_context(|| format!("preparing the files of image {}", image.name))?;
        Ok(Files {
            mounts,
            shifted,
            found,
        })
    }

    /// What is other for a container whose user is root in it; none for any other.
    async fn rooted(&self, spec: &ContainerSpec) -> Result<Option<Rooted>> {
        if !spec.root {
            return Ok(None);
        }
        let (inner, identity) = (Arc::clone(&self.inner), spec.identity.clone());
        let mapping = tokio::task::spawn_blocking(move || {
            let _one_at_a_time = inner.ranges.lock().unwrap_or_else(PoisonError::into_inner);
            userns::mapping(&inner.options.state_dir, inner.options.userns, &identity)
        });
        Ok(Some(Rooted {
            mapping: mapping.await??,
            devices: self.job_dir(spec.record.key).join("dev"),
        }))
    }

    async fn shifted(&self, key: JobKey, root: &Rooted, mounts: Vec<Mount>) -> Result<Shifted> {
        let (mapping, dir) = (root.mapping.clone(), self.shifted_dir(key));
        tokio::task::spawn_blocking(move || Shifted::new(&mapping, mounts, dir)).await?
    }

    /// The container's own layer: a session's kept one, or a new one.
    async fn snapshot(
        &self,
        record: &ContainerRecord,
        image: &ImageInfo,
        progress: Progress<'_>,
    ) -> Result<Vec<Mount>> {
        let containerd = &self.inner.containerd;
        let key = snapshot_key(record);
        if record.session.is_some()
            && let Some(user) = self.user_of_snapshot(&key).await?
        {
            bail!("the session's files are still in use by container {user}");
        }
        let stat = StatSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: key.clone(),
        };
        let kept = containerd
            .snapshots()
            .stat(containerd.request(stat))
            .await
            .absent_ok();
        if let Some(kept) = kept
            .told("looking for the session's files")?
            .and_then(|found| found.info)
        {
            // Session ids may be given out again after the broker's store was lost.
            let owner = kept.labels.get(USER_LABEL).unwrap_or(&record.user);
            ensure!(
                *owner == record.user,
                "what is kept here of session {} is {owner}'s; `ctr -n carrel snapshots rm {key}` on this node removes it",
                record.session.map_or(0, |session| session.0)
            );
            if kept.parent == image.chain_id {
                let mounts = MountsRequest {
                    snapshotter: SNAPSHOTTER.to_owned(),
                    key,
                };
                let mounts = containerd.snapshots().mounts(containerd.request(mounts)).await;
                return Ok(mounts.told("mounting the session's files")?.into_inner().mounts);
            }
            progress("the session's image has changed: what was kept of the old one is dropped".to_owned());
            tracing::info!(
                snapshot = key,
                image = image.name,
                "kept changes of another image are dropped"
            );
            self.remove_snapshot(&key).await?;
        }
        // A root for containerd's collector: nothing else refers to it until the container exists,
        // and for a session nothing at all between two runs. It is deleted by name.
        let since = prost_types::Timestamp::from(std::time::SystemTime::now()).to_string();
        let prepare = PrepareSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key,
            parent: image.chain_id.clone(),
            labels: [
                ("containerd.io/gc.root".to_owned(), since),
                (USER_LABEL.to_owned(), record.user.clone()),
            ]
            .into(),
        };
        let prepared = containerd.snapshots().prepare(containerd.request(prepare)).await;
        Ok(prepared
            .told("preparing the container's files")?
            .into_inner()
            .mounts)
    }

    /// The container that uses a snapshot.
    pub(super) async fn user_of_snapshot(&self, key: &str) -> Result<Option<String>> {
        let containerd = &self.inner.containerd;
        let filters = vec![format!("labels.{SNAPSHOT_LABEL:?}=={key:?}")];
        let request = containerd.request(ListContainersRequest { filters });
        let listed = containerd
            .containers()
            .list(request)
            .await
            .told("listing containers")?;
        Ok(listed
            .into_inner()
            .containers
            .into_iter()
            .next()
            .map(|one| one.id))
    }

    async fn store_container(
        &self,
        spec: &ContainerSpec,
        image: &ImageInfo,
        document: Vec<u8>,
    ) -> Result<()> {
        let containerd = &self.inner.containerd;
        let record = &spec.record;
        let labels = [
            (RECORD_LABEL.to_owned(), record.label()?),
            (SNAPSHOT_LABEL.to_owned(), snapshot_key(record)),
            (USER_LABEL.to_owned(), record.user.clone()),
            (NAME_LABEL.to_owned(), record.name.clone()),
        ];
        let container = StoredContainer {
            id: container_id(record.key),
            labels: labels.into(),
            image: image.name.clone(),
            runtime: Some(RuntimeName {
                name: RUNTIME.to_owned(),
                options: self.runc_options(),
            }),
            spec: Some(Any {
                type_url: SPEC_TYPE.to_owned(),
                value: document,
            }),
            snapshotter: SNAPSHOTTER.to_owned(),
            snapshot_key: snapshot_key(record),
            ..StoredContainer::default()
        };
        let create = CreateContainerRequest {
            container: Some(container),
        };
        containerd
            .containers()
            .create(containerd.request(create))
            .await
            .told("creating the container")?;
        Ok(())
    }

    /// Gives the id of process 1 on the host.
    async fn create_task(&self, spec: &ContainerSpec, mounts: Vec<Mount>) -> Result<u32> {
        let key = spec.record.key;
        let containerd = &self.inner.containerd;
        // By two names: of one that is named twice (`file://` names both), containerd 1.6's shim closes the only
        // descriptor at the end of the first of the two streams, and the last words in the other are lost.
        let dir = self.job_dir(key);
        let (log, same) = (dir.join("init.log"), format!("{}/./init.log", dir.display()));
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log)
            .context("making the log of process 1")?;
        let create = CreateTaskRequest {
            container_id: container_id(key),
            rootfs: mounts,
            stdout: log.display().to_string(),
            stderr: same,
            options: self.runc_options(),
            ..CreateTaskRequest::default()
        };
        let created = containerd.tasks().create(containerd.request(create)).await;
        Ok(created.told("creating the container's process")?.into_inner().pid)
    }

    /// Only a private containerd's runc state must be kept apart.
    fn runc_options(&self) -> Option<Any> {
        let private = self.inner.private.as_ref()?;
        let options = RuncOptions {
            root: private.runc_root().display().to_string(),
        };
        Some(Any {
            type_url: RUNC_OPTIONS_TYPE.to_owned(),
            value: options.encode_to_vec(),
        })
    }
}

/// Where mounts would show the agent's own directory, with containerd's socket in it.
fn hidden(mounts: &[BindMount], state_dir: &Path) -> Vec<PathBuf> {
    let below = mounts.iter().filter_map(|mount| {
        // What is mounted may be named by a symbolic link.
        let source = fs::canonicalize(&mount.source).unwrap_or_else(|_| PathBuf::from(&mount.source));
        let rest = state_dir.strip_prefix(&source).ok()?;
        Some(Path::new(&mount.target).join(rest))
    });
    below.collect()
}

/// Writes what the container finds in /.carrel and /etc; gives the files of the latter.
fn write_job_dir(
    dir: &Path,
    spec: &ContainerSpec,
    found: &Found,
    path_additions: &str,
) -> Result<Vec<(&'static str, PathBuf)>> {
    // What an interrupted start left is of no use.
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    // Root's alone; the container sees the mounted parts, not the way to them.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir.join("run"))?;
    // Root's, and open: the job's user finds the socket in it, and can change nothing.
    DirBuilder::new().mode(0o755).create(dir.join("api"))?;
    if !spec.hostfile.is_empty() {
        fs::write(dir.join("api").join(HOSTFILE_NAME), &spec.hostfile)?;
    }
    if let Some(script) = &spec.script {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o555);
        file.open(dir.join(SCRIPT_NAME))?.write_all(script.as_bytes())?;
    }
    let secret = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(dir.join("run/init.pb"));
    // Serialized messages one after the other are one message with the fields of both.
    let lease = InitConfig {
        first_lease_end_ms: (spec.lease.0)().unwrap_or(0),
        ..InitConfig::default()
    };
    secret?.write_all(&[&spec.init_config[..], &lease.encode_to_vec()].concat())?;
    if spec.root {
        // Process 1's, until it takes the directory out of its user's sight.
        for path in [dir.join("run"), dir.join("run/init.pb")] {
            give(&path, &spec.identity)?;
        }
    }

    let etc = dir.join("etc");
    fs::create_dir(&etc)?;
    let identity = &spec.identity;
    let group_name = |gid: u32| {
        let of_host = || nix::unistd::Group::from_gid(gid.into()).ok().flatten();
        let given = identity.group_names.get(&gid).cloned();
        given.or_else(|| of_host().map(|group| group.name))
    };
    let resolv = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let upstream = fs::read_to_string(UPSTREAM_RESOLV_CONF).ok();
    let mut files = vec![
        ("hostname", format!("{}\n", spec.hostname)),
        ("hosts", etc::hosts(&names(spec), spec.address, &spec.hosts)),
        ("resolv.conf", etc::resolv_conf(&resolv, upstream.as_deref())),
    ];
    if found.profile_dir {
        files.push(("profile.d/zz-carrel.sh", etc::profile(path_additions)));
    }
    if !spec.root {
        // Who is root may add users: process 1 sees to its own entries in the container's own files.
        let passwd = etc::passwd(found.passwd.as_deref(), identity, &found.shell);
        files.push(("passwd", passwd));
        let group = etc::group(found.group.as_deref(), identity, group_name);
        files.push(("group", group));
    }
    let mut written = Vec::with_capacity(files.len());
    for (name, text) in files {
        let path = etc.join(name.replace('/', "-"));
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&path)?
            .write_all(text.as_bytes())?;
        if spec.root {
            give(&path, identity)?;
        }
        written.push((name, path));
    }
    Ok(written)
}

/// What the container is called, its host name first.
fn names(spec: &ContainerSpec) -> Vec<String> {
    let mut names = vec![spec.hostname.clone()];
    names.extend(
        spec.aliases
            .iter()
            .filter(|alias| **alias != spec.hostname)
            .cloned(),
    );
    names
}

/// Gives a file to the user.
fn give(path: &Path, user: &Identity) -> std::io::Result<()> {
    chown(path, Some(user.uid), Some(user.gid))
}
