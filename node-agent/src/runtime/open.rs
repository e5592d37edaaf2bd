//! Setting a runtime up: its options, containerd, and what must be on the host.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use tokio::net::UnixStream;
use tokio_util::task::TaskTracker;

use super::cgroup::Cgroups;
use super::client::{Containerd, Told};
use super::locks::KeyedLocks;
use super::network::{GangMode, Network, NetworkMode, NetworkOptions};
use super::private::{PrivateContainerd, boot_id};
use super::rootfs::with_own_mounts;
use super::spec::HostFacts;
use super::userns::{self, UserRanges};
use super::{Inner, Runtime};
use crate::cdi::Cdi;
use crate::image::{ImageOptions, Images};

/// Where containerd listens when the distribution runs it.
const SYSTEM_SOCKET: &str = "/run/containerd/containerd.sock";
/// Oldest containerd that we speak to.
const OLDEST: (u32, u32) = (1, 6);
/// Processes and threads of one job; systemd's default for a login's slice is of this size.
const DEFAULT_PIDS_LIMIT: u64 = 32_768;
/// Open files that a container may have, where containerd's own limit is higher.
const MAX_OPEN_FILES: u64 = 1 << 20;

/// How a [`Runtime`] is set up.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// containerd's socket; none: the system's where it answers, else a private one is started.
    pub containerd_socket: Option<PathBuf>,
    /// Start a private containerd though the system has one. For machines on which several agents run.
    pub private_containerd: bool,
    /// Where everything lies that is not containerd's own.
    pub state_dir: PathBuf,
    /// The static carrel-init.
    pub init_binary: PathBuf,
    /// The static carrel, for use inside; none: it is not there.
    pub cli_binary: Option<PathBuf>,
    /// containerd namespace.
    pub namespace: String,
    /// Directories of CDI specifications, the later ones first in precedence.
    pub cdi_dirs: Vec<PathBuf>,
    /// What network jobs get.
    pub network: NetworkMode,
    /// IPv4 subnet of the jobs' addresses behind NAT; none: one of 10.213.0.0/16 that
    /// depends on the state directory.
    pub subnet: Option<String>,
    /// What gangs get between this node and others.
    pub gang_network: GangMode,
    /// IPv4 address by which other nodes reach this one; none: gangs have no routes here.
    pub address: Option<Ipv4Addr>,
    /// Parent of the jobs' cgroups, absolute within the hierarchies; none: "/carrel", and for a
    /// private containerd a name that no other agent on the host has.
    pub cgroup_parent: Option<String>,
    /// Where images come from.
    pub images: ImageOptions,
    /// Most processes and threads of one job.
    pub pids_limit: u64,
    /// Jobs may reach the cloud's metadata service, which gives the node's credentials to whoever asks.
    pub allow_metadata: bool,
    /// User ids for users who are root in their containers.
    pub userns: UserRanges,
}

impl RuntimeOptions {
    /// The defaults for a state directory.
    pub fn new(state_dir: impl Into<PathBuf>, init_binary: impl Into<PathBuf>) -> Self {
        Self {
            containerd_socket: None,
            private_containerd: false,
            state_dir: state_dir.into(),
            init_binary: init_binary.into(),
            cli_binary: None,
            namespace: "carrel".to_owned(),
            cdi_dirs: crate::cdi::DEFAULT_DIRS.iter().map(PathBuf::from).collect(),
            network: NetworkMode::default(),
            subnet: None,
            gang_network: GangMode::default(),
            address: None,
            cgroup_parent: None,
            images: ImageOptions::default(),
            pids_limit: DEFAULT_PIDS_LIMIT,
            allow_metadata: false,
            userns: UserRanges::default(),
        }
    }
}

impl Runtime {
    /// Finds or starts containerd and readies the state directory.
    ///
    /// # Errors
    /// There is no containerd, it is too old, or what the options ask for is not on this host.
    pub async fn open(mut options: RuntimeOptions) -> Result<Self> {
        std::fs::create_dir_all(&options.state_dir)
            .with_context(|| format!("making state directory {}", options.state_dir.display()))?;
        options.state_dir = options.state_dir.canonicalize()?;
        let (socket, private) = find_containerd(&options).await?;
        let containerd = Containerd::new(&socket, &options.namespace, private.clone())?;
        check_version(&containerd).await?;
        install_programs(&options).context("placing the programs that containers get")?;

        let hash = Sha256::digest(options.state_dir.as_os_str().as_encoded_bytes());
        // Several agents on one host (each with a containerd of its own) must not share names.
        let suffix = if private.is_some() {
            format!("-{:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3])
        } else {
            String::new()
        };
        let cgroup_parent = options
            .cgroup_parent
            .clone()
            .unwrap_or_else(|| format!("/carrel{suffix}"));
        ensure!(
            cgroup_parent.starts_with('/'),
            "cgroup_parent must begin with '/': {cgroup_parent:?}"
        );
        let subnet = options.subnet.clone().unwrap_or_else(|| match private {
            Some(_) => format!("10.213.{}.0/20", hash[4] & 0xf0),
            None => "10.213.0.0/16".to_owned(),
        });
        let boot_id = boot_id()?;
        let network = Network::new(NetworkOptions {
            mode: options.network,
            subnet,
            suffix: &suffix,
            state_dir: &options.state_dir,
            allow_metadata: options.allow_metadata,
            gangs: options.gang_network,
            address: options.address,
            boot_id: &boot_id,
        })?;
        let cgroups = Cgroups::of_this_host()?;
        let host = HostFacts {
            counts_swap: cgroups.counts_swap(),
            has_cpu_quota: cgroups.has_quota(),
            has_cgroup_namespace: Path::new("/proc/self/ns/cgroup").exists(),
            open_files: open_files_of(&socket).await?,
        };
        let no_root = no_root(&options, &containerd, private.is_some()).await;
        let images = Images::new(
            containerd.clone(),
            options.images.clone(),
            options.state_dir.join("tmp"),
        );
        Ok(Self {
            inner: Arc::new(Inner {
                cdi: Cdi::new(options.cdi_dirs.clone()),
                images: Arc::new(images),
                boot_id,
                no_root,
                ranges: std::sync::Mutex::default(),
                jobs: KeyedLocks::default(),
                tasks: TaskTracker::new(),
                containerd,
                private,
                network,
                cgroups,
                cgroup_parent,
                host,
                options,
            }),
        })
    }
}

/// The containerd to use: the named one, the system's, or a private one, started.
async fn find_containerd(options: &RuntimeOptions) -> Result<(PathBuf, Option<Arc<PrivateContainerd>>)> {
    if let Some(socket) = &options.containerd_socket {
        UnixStream::connect(socket).await.with_context(|| {
            format!(
                "containerd does not answer at {} (the socket that the configuration names)",
                socket.display()
            )
        })?;
        return Ok((socket.clone(), None));
    }
    if !options.private_containerd && UnixStream::connect(SYSTEM_SOCKET).await.is_ok() {
        return Ok((SYSTEM_SOCKET.into(), None));
    }
    let private = Arc::new(PrivateContainerd::new(options.state_dir.join("containerd"))?);
    private.ensure_running().await?;
    Ok((private.socket(), Some(private)))
}

async fn check_version(containerd: &Containerd) -> Result<()> {
    let version = containerd
        .version()
        .version(containerd.request(()))
        .await
        .told("asking for its version")?;
    let version = version.into_inner().version;
    let mut numbers = version
        .trim_start_matches('v')
        .split(['.', '~', '-', '+'])
        .map(str::parse::<u32>);
    if let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next())
        && (major, minor) < OLDEST
    {
        bail!(
            "containerd {version} is too old: {}.{} or newer is needed",
            OLDEST.0,
            OLDEST.1
        );
    }
    Ok(())
}

/// Why no container's user can be root in it on this host.
async fn no_root(options: &RuntimeOptions, containerd: &Containerd, is_private: bool) -> Option<String> {
    let tried = async {
        let snapshots = containerd.snapshots_dir().await?;
        let (state, ranges) = (options.state_dir.clone(), options.userns);
        userns::can_hold_devices(&state)?;
        if is_private {
            // containerd's directory with the containers' root directories is below it.
            userns::can_be_entered(&state)?;
        }
        let at = state.join("mnt");
        std::fs::create_dir_all(&at)?;
        with_own_mounts(move || userns::probe(ranges, &snapshots, &at)).await
    };
    let why = tried.await.err().map(|error| format!("{error:#}"))?;
    tracing::info!(why, "users cannot be root in containers of this node (--root)");
    Some(why)
}

/// The hard limit of containerd's open files: a container's cannot be higher, since its parents lack
/// the capability to raise it on some hosts.
async fn open_files_of(socket: &Path) -> Result<u64> {
    let pid = UnixStream::connect(socket)
        .await?
        .peer_cred()?
        .pid()
        .context("containerd's process is not known")?;
    let limits =
        std::fs::read_to_string(format!("/proc/{pid}/limits")).context("reading containerd's limits")?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .unwrap_or_default();
    let hard = line.split_whitespace().nth(1).unwrap_or_default();
    Ok(hard.parse().unwrap_or(MAX_OPEN_FILES).min(MAX_OPEN_FILES))
}

/// Copies carrel-init and carrel to where containers see them, unless they are there. Running ones
/// keep the file that they run.
fn install_programs(options: &RuntimeOptions) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let dir = options.state_dir.join("bin");
    std::fs::create_dir_all(&dir)?;
    let programs = [
        ("carrel-init", Some(&options.init_binary)),
        ("carrel", options.cli_binary.as_ref()),
    ];
    for (name, source) in programs {
        let Some(source) = source else { continue };
        let mut from =
            std::fs::File::open(source).with_context(|| format!("{name}: {}", source.display()))?;
        let (metadata, placed) = (from.metadata()?, dir.join(name));
        let modified = metadata.modified()?;
        let is_same = |there: std::fs::Metadata| {
            there.len() == metadata.len() && there.modified().is_ok_and(|time| time == modified)
        };
        if std::fs::metadata(&placed).is_ok_and(is_same) {
            continue;
        }
        let mut copy = tempfile::Builder::new().prefix(".new-").tempfile_in(&dir)?;
        std::io::copy(&mut from, copy.as_file_mut())?;
        copy.as_file()
            .set_permissions(std::fs::Permissions::from_mode(0o755))?;
        copy.as_file().set_modified(modified)?;
        copy.persist(placed)?;
    }
    if options.cli_binary.is_some() {
        for name in carrel_core::slurm_names::NAMES {
            link_to_cli(&dir.join(name))?;
        }
    }
    Ok(())
}

/// Slurm's names lead to carrel, which knows by which it was called.
fn link_to_cli(link: &Path) -> Result<()> {
    const TO: &str = "carrel";
    if std::fs::read_link(link).is_ok_and(|to| to == Path::new(TO)) {
        return Ok(());
    }
    match std::fs::remove_file(link) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("replacing {}", link.display()));
        }
        Ok(()) | Err(_) => {}
    }
    std::os::unix::fs::symlink(TO, link).with_context(|| format!("linking {} to {TO}", link.display()))
}
