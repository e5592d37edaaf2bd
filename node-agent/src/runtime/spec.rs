//! A container's OCI runtime specification
//! (<https://github.com/opencontainers/runtime-spec>, `config.md`, `config-linux.md`).

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use carrel_core::model::cpus::Binding;
use carrel_proto::inside;
use serde_json::{Value, json};

use super::fence;
use super::record::ContainerSpec;
use super::userns::Mapping;
use crate::cdi::{ContainerEdits, DeviceNode, LIBRARY_DIR, PROGRAM_DIR};
use crate::image::ImageInfo;

/// PATH of images that set none, as in Docker.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where our programs appear in the container.
pub const PROGRAMS_DIR: &str = "/.carrel/bin";
/// Where the job's run directory appears in the container.
pub const RUN_DIR: &str = "/.carrel/run";
/// Process 1.
const INIT: &str = "/.carrel/bin/carrel-init";

/// System calls that containers may make: Docker's default list for a process
/// without capabilities, and the calls by which a program places its own memory
/// on NUMA nodes. io_uring and new namespaces are not among them.
const SECCOMP: &str = include_str!("seccomp.json");

/// What process 1 needs to become the user before it forks anything; SETPCAP is to empty the bounding set.
const CAPABILITIES: [&str; 3] = ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"];
/// What process 1 has where the user is root, in the user namespace alone. It keeps what Docker gives but for
/// devices, raw sockets and the audit log (`carrel-init`, keeper/privileges.rs); the last is to take its run
/// directory out of sight.
const ROOT_CAPABILITIES: [&str; 12] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_SETFCAP",
    "CAP_SYS_ADMIN",
];
/// Length of a period of the CPU quota, microseconds; the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// Largest CPU weight of cgroup version 1.
const MAX_CPU_SHARES: u64 = 262_144;

/// What a specification is made of, beside what was asked for.
pub(super) struct Parts<'a> {
    pub spec: &'a ContainerSpec,
    pub image: &'a ImageInfo,
    pub edits: &'a ContainerEdits,
    /// Nodes that are made for the fence's trial, and that the cgroup keeps shut.
    pub fenced: &'a [fence::Device],
    /// Below mounts, directories of the host that are not to be seen.
    pub hidden: &'a [PathBuf],
    /// Of the user namespace; none: there is none.
    pub root: Option<&'a Rooted>,
    /// GPU visibility, as every process sees it.
    pub gpu_env: &'a [(String, String)],
    /// Host directory with carrel-init and carrel.
    pub programs: &'a Path,
    /// Host directory of the job's sockets.
    pub run_dir: &'a Path,
    /// Host directory of the socket to the broker.
    pub api_dir: &'a Path,
    /// Host files to appear in /etc: name there, path here.
    pub etc: &'a [(&'static str, PathBuf)],
    /// Absolute within the hierarchies.
    pub cgroup: &'a str,
    pub host: &'a HostFacts,
    pub network: NetworkPart,
}

/// The container's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NetworkPart {
    /// A new one.
    New,
    /// One that is there.
    At(String),
    /// The host's.
    Host,
}

/// What is other where the user is root.
pub(super) struct Rooted {
    pub mapping: Mapping,
    /// Host directory of device nodes, to be mounted: none can be made in a user namespace.
    pub devices: PathBuf,
}

/// What the kernel and containerd of this host can do.
#[derive(Clone, Debug)]
pub(super) struct HostFacts {
    pub counts_swap: bool,
    pub has_cpu_quota: bool,
    pub has_cgroup_namespace: bool,
    /// Open files that a container may have: containerd's own hard limit, which its children cannot raise.
    pub open_files: u64,
}

/// The specification, as containerd takes it.
pub(super) fn build(parts: &Parts<'_>) -> Result<Value> {
    let spec = parts.spec;
    let mut namespaces = vec![
        json!({"type": "pid"}),
        json!({"type": "mount"}),
        json!({"type": "ipc"}),
        json!({"type": "uts"}),
    ];
    match &parts.network {
        NetworkPart::New => namespaces.push(json!({"type": "network"})),
        NetworkPart::At(path) => namespaces.push(json!({"type": "network", "path": path})),
        NetworkPart::Host => {}
    }
    if parts.host.has_cgroup_namespace {
        namespaces.push(json!({"type": "cgroup"}));
    }
    let args = spec.command.clone().unwrap_or_else(|| vec![INIT.to_owned()]);
    let capabilities = match parts.root {
        Some(_) => json!(ROOT_CAPABILITIES),
        None => json!(CAPABILITIES),
    };
    // A user namespace has none of the groups that a CDI specification may name, and not all numbers.
    let (groups, last_group): (&[u32], u32) = match parts.root {
        Some(_) => (&[], 65_535),
        None => (&parts.edits.additional_gids, 2_147_483_647),
    };
    let (mut devices, device_rules) = devices(parts.edits)?;
    devices.extend(
        parts
            .fenced
            .iter()
            .enumerate()
            .map(|(n, device)| fenced_node(n, device)),
    );
    let mut document = json!({
        "ociVersion": "1.0.2",
        "hostname": spec.hostname,
        "root": {"path": "rootfs"},
        "process": {
            "user": {"uid": 0, "gid": 0, "additionalGids": groups},
            "args": args,
            "env": environment(parts),
            "cwd": "/",
            "capabilities": {
                "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
            },
            "noNewPrivileges": true,
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "hard": parts.host.open_files, "soft": parts.host.open_files},
            ],
        },
        "mounts": mounts(parts),
        "linux": {
            "cgroupsPath": parts.cgroup,
            "namespaces": namespaces,
            "devices": devices,
            "resources": resources(parts, device_rules),
            "seccomp": seccomp(parts.root.is_some())?,
            "sysctl": {
                // The namespace is the job's own: its user may serve on any port, and ping.
                "net.ipv4.ip_unprivileged_port_start": "0",
                "net.ipv4.ping_group_range": format!("0 {last_group}"),
            },
            "maskedPaths": [
                "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
                "/sys/devices/virtual/powercap", "/sys/firmware",
            ],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            "rootfsPropagation": "private",
        },
    });
    if parts.network == NetworkPart::Host {
        // They would be the host's.
        document["linux"]["sysctl"] = json!({});
        if has_rdma(parts.edits) {
            // What a NIC reads and writes by itself stays where it is (ibv_reg_mr(3)).
            let locked = json!({"type": "RLIMIT_MEMLOCK", "hard": u64::MAX, "soft": u64::MAX});
            let limits = document["process"]["rlimits"].as_array_mut();
            limits.context("rlimits")?.push(locked);
        }
    }
    if let Some(rooted) = parts.root {
        let (uids, gids) = rooted.mapping.oci();
        document["linux"]["namespaces"]
            .as_array_mut()
            .context("namespaces")?
            .push(json!({"type": "user"}));
        document["linux"]["uidMappings"] = uids;
        document["linux"]["gidMappings"] = gids;
        mount_devices(&mut document, &rooted.devices);
    }
    if let Some(hooks) = hooks(parts.edits)? {
        document["hooks"] = hooks;
    }
    Ok(document)
}

/// Where the kernel has the devices of RDMA.
const RDMA_DIR: &str = "/dev/infiniband";

/// The host's devices of RDMA, for who has its network. Blocks.
pub(super) fn rdma_devices() -> Vec<DeviceNode> {
    use std::os::unix::fs::FileTypeExt;
    let listed = fs::read_dir(RDMA_DIR).into_iter().flatten().flatten();
    let nodes = listed.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_char_device()));
    let mut nodes: Vec<DeviceNode> = nodes
        .map(|entry| DeviceNode {
            path: entry.path().display().to_string(),
            // Anybody's on a host: who may have it is decided here.
            file_mode: Some(0o666),
            ..DeviceNode::default()
        })
        .collect();
    nodes.sort_by(|a, b| a.path.cmp(&b.path));
    nodes
}

fn has_rdma(edits: &ContainerEdits) -> bool {
    edits
        .device_nodes
        .iter()
        .any(|node| node.path.starts_with(RDMA_DIR))
}

/// The image's environment, then the job's, then the GPUs'.
fn environment(parts: &Parts<'_>) -> Vec<String> {
    let mut env: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: &str| match env.iter_mut().find(|(known, _)| known == name) {
        Some((_, old)) => value.clone_into(old),
        None => env.push((name.to_owned(), value.to_owned())),
    };
    set("PATH", DEFAULT_PATH);
    for line in &parts.image.env {
        if let Some((name, value)) = line.split_once('=') {
            set(name, value);
        }
    }
    for (name, value) in parts.spec.env.iter().chain(parts.gpu_env) {
        set(name, value);
    }
    for (name, value) in &mut env {
        match name.as_str() {
            "PATH" => *value = format!("{value}:{}", path_additions(parts.edits)),
            "LD_LIBRARY_PATH" if has_own_libraries(parts.edits) => *value = format!("{LIBRARY_DIR}:{value}"),
            _ => {}
        }
    }
    if has_own_libraries(parts.edits) && !env.iter().any(|(name, _)| name == "LD_LIBRARY_PATH") {
        env.push(("LD_LIBRARY_PATH".to_owned(), LIBRARY_DIR.to_owned()));
    }
    env.into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// What PATH has after the image's own directories.
pub(super) fn path_additions(edits: &ContainerEdits) -> String {
    if edits
        .mounts
        .iter()
        .any(|mount| mount.container_path.starts_with(PROGRAM_DIR))
    {
        format!("{PROGRAMS_DIR}:{PROGRAM_DIR}")
    } else {
        PROGRAMS_DIR.to_owned()
    }
}

fn has_own_libraries(edits: &ContainerEdits) -> bool {
    edits
        .mounts
        .iter()
        .any(|mount| mount.container_path.starts_with(LIBRARY_DIR))
}

fn mounts(parts: &Parts<'_>) -> Vec<Value> {
    let mount = |destination: &str, kind: &str, source: &str, options: &[&str]| json!({"destination": destination, "type": kind, "source": source, "options": options});
    let shm = format!("size={}", parts.spec.record.memory_bytes / 2);
    let bind = |source: &str, target: &str, read_only: bool| {
        let access = if read_only { "ro" } else { "rw" };
        mount(
            target,
            "bind",
            source,
            &["rbind", "rprivate", "nosuid", "nodev", access],
        )
    };
    let mut mounts = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount(
            "/dev",
            "tmpfs",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=65536k"],
        ),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &[
                "nosuid",
                "noexec",
                "newinstance",
                "ptmxmode=0666",
                "mode=0620",
                "gid=5",
            ],
        ),
        match &parts.spec.shm {
            None => mount(
                "/dev/shm",
                "tmpfs",
                "shm",
                &["nosuid", "noexec", "nodev", "mode=1777", &shm],
            ),
            Some(shared) => mount(
                "/dev/shm",
                "bind",
                &shared.display().to_string(),
                &["bind", "rprivate", "nosuid", "noexec", "nodev"],
            ),
        },
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        mount(
            "/sys/fs/cgroup",
            "cgroup",
            "cgroup",
            &["nosuid", "noexec", "nodev", "relatime", "ro"],
        ),
        // Ours alone: no mount point of ours is left in the session's kept changes.
        mount(
            "/.carrel",
            "tmpfs",
            "tmpfs",
            &["nosuid", "nodev", "mode=755", "size=1m"],
        ),
    ];
    mounts.push(bind(&parts.programs.display().to_string(), PROGRAMS_DIR, true));
    mounts.push(bind(&parts.run_dir.display().to_string(), RUN_DIR, false));
    mounts.push(bind(&parts.api_dir.display().to_string(), inside::DIR, true));
    let read_only = parts.root.is_none();
    for (name, path) in parts.etc {
        mounts.push(bind(
            &path.display().to_string(),
            &format!("/etc/{name}"),
            read_only,
        ));
    }
    mounts.extend(
        parts
            .spec
            .mounts
            .iter()
            .map(|one| bind(&one.source, &one.target, one.read_only)),
    );
    mounts.extend(parts.hidden.iter().map(|path| {
        mount(
            &path.display().to_string(),
            "tmpfs",
            "tmpfs",
            &["nosuid", "nodev", "noexec", "ro", "mode=000", "size=4k"],
        )
    }));
    mounts.extend(parts.edits.mounts.iter().map(|one| {
        let kind = if one.kind.is_empty() { "bind" } else { &one.kind };
        let options: Vec<_> = one.options.iter().map(String::as_str).collect();
        let options = if options.is_empty() {
            vec!["rbind", "ro", "nosuid", "nodev"]
        } else {
            options
        };
        mount(&one.container_path, kind, &one.host_path, &options)
    }));
    mounts
}

fn resources(parts: &Parts<'_>, mut device_rules: Vec<Value>) -> Value {
    let record = &parts.spec.record;
    let mut rules = vec![json!({"allow": false, "access": "rwm"})];
    // runc adds the standard nodes (null, zero, full, tty, random, urandom, ptmx, pts) itself.
    rules.append(&mut device_rules);
    let cpus = u64::from(record.cpus.max(1));
    let mut cpu = json!({"shares": (cpus * 1024).min(MAX_CPU_SHARES)});
    if parts.host.has_cpu_quota {
        cpu["quota"] = json!(cpus * CPU_PERIOD_US);
        cpu["period"] = json!(CPU_PERIOD_US);
    }
    // Version 1's names; runc writes the like in version 2.
    let Binding { cpus, mems } = &record.binding;
    if !cpus.is_empty() {
        cpu["cpus"] = json!(cpus.to_string());
    }
    if !mems.is_empty() {
        cpu["mems"] = json!(mems.to_string());
    }
    let mut memory = json!({"limit": record.memory_bytes});
    if parts.host.counts_swap {
        // Memory and swap together: no swap.
        memory["swap"] = json!(record.memory_bytes);
    }
    json!({
        "devices": rules,
        "cpu": cpu,
        "memory": memory,
        "pids": {"limit": parts.spec.pids_limit},
    })
}

/// The edits' device nodes, and the cgroup's rules for them.
fn devices(edits: &ContainerEdits) -> Result<(Vec<Value>, Vec<Value>)> {
    let mut nodes = Vec::new();
    let mut rules = Vec::new();
    for node in &edits.device_nodes {
        let node = complete(node)?;
        let access = node.permissions.as_deref().unwrap_or("rw");
        rules.push(json!({
            "allow": true, "type": node.kind, "major": node.major, "minor": node.minor, "access": access,
        }));
        nodes.push(json!({
            "path": node.path, "type": node.kind, "major": node.major, "minor": node.minor,
            "fileMode": node.file_mode, "uid": node.uid.unwrap_or(0), "gid": node.gid.unwrap_or(0),
        }));
    }
    Ok((nodes, rules))
}

/// Where the n-th device node is on the host, to be mounted.
fn device_source(dir: &Path, n: usize) -> PathBuf {
    dir.join(n.to_string())
}

/// Has device nodes mounted instead of made.
fn mount_devices(document: &mut Value, dir: &Path) {
    let devices = document["linux"]["devices"].take();
    document["linux"]["devices"] = json!([]);
    let devices = devices.as_array().map(Vec::as_slice).unwrap_or_default();
    let mounts = devices.iter().enumerate().map(|(n, device)| {
        json!({
            "destination": device["path"], "type": "bind", "source": device_source(dir, n),
            "options": ["bind", "rprivate", "nosuid", "noexec", "rw"],
        })
    });
    if let Some(all) = document["mounts"].as_array_mut() {
        all.extend(mounts);
    }
}

/// Makes the device nodes of a container in a directory of the host, in the order in which they are mounted.
pub(super) fn make_devices(edits: &ContainerEdits, fenced: &[fence::Device], dir: &Path) -> Result<()> {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    use std::os::unix::fs::{PermissionsExt, chown};
    fs::create_dir_all(dir)?;
    let (mut nodes, _) = devices(edits)?;
    nodes.extend(
        fenced
            .iter()
            .enumerate()
            .map(|(n, device)| fenced_node(n, device)),
    );
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    for (n, node) in nodes.iter().enumerate() {
        let at = device_source(dir, n);
        let kind = if node["type"] == "b" {
            SFlag::S_IFBLK
        } else {
            SFlag::S_IFCHR
        };
        let device = makedev(number(&node["major"]), number(&node["minor"]));
        mknod(&at, kind, Mode::empty(), device).with_context(|| format!("making {}", at.display()))?;
        let (uid, gid) = (number(&node["uid"]) as u32, number(&node["gid"]) as u32);
        chown(&at, Some(uid), Some(gid))?;
        fs::set_permissions(&at, fs::Permissions::from_mode(number(&node["fileMode"]) as u32))?;
    }
    Ok(())
}

/// Open to everybody by its mode: only the cgroup is to keep it shut.
fn fenced_node(n: usize, device: &fence::Device) -> Value {
    json!({
        "path": fence::device_path(n), "type": device.kind, "major": device.major, "minor": device.minor,
        "fileMode": 0o666, "uid": 0, "gid": 0,
    })
}

/// Fills in what only the host's node says.
pub(super) fn complete(node: &DeviceNode) -> Result<DeviceNode> {
    let mut node = node.clone();
    if node.kind.is_some() && node.major.is_some() && node.minor.is_some() {
        node.file_mode = node.file_mode.or(Some(0o666));
        return Ok(node);
    }
    let host = node.host_path.clone().unwrap_or_else(|| node.path.clone());
    let metadata = fs::metadata(&host).with_context(|| format!("device node {host} of the host"))?;
    let kind = metadata.file_type();
    node.kind = Some(match () {
        () if kind.is_char_device() => "c".to_owned(),
        () if kind.is_block_device() => "b".to_owned(),
        () => bail!("{host} is not a device node"),
    });
    node.major = Some(i64::from(libc::major(metadata.rdev())));
    node.minor = Some(i64::from(libc::minor(metadata.rdev())));
    node.file_mode = node.file_mode.or(Some(metadata.mode() & 0o777));
    node.uid = node.uid.or(Some(metadata.uid()));
    node.gid = node.gid.or(Some(metadata.gid()));
    Ok(node)
}

fn hooks(edits: &ContainerEdits) -> Result<Option<Value>> {
    const POINTS: [&str; 6] = [
        "prestart",
        "createRuntime",
        "createContainer",
        "startContainer",
        "poststart",
        "poststop",
    ];
    if edits.hooks.is_empty() {
        return Ok(None);
    }
    let mut hooks = json!({});
    for hook in &edits.hooks {
        let Some(point) = POINTS.into_iter().find(|point| *point == hook.hook_name) else {
            bail!(
                "the CDI specification has a hook at {:?}; there are: {}",
                hook.hook_name,
                POINTS.join(", ")
            );
        };
        let mut value = json!({"path": hook.path, "args": hook.args, "env": hook.env});
        if let Some(timeout) = hook.timeout {
            value["timeout"] = json!(timeout);
        }
        match hooks[point].as_array_mut() {
            Some(list) => list.push(value),
            None => hooks[point] = json!([value]),
        }
    }
    Ok(Some(hooks))
}

fn seccomp(root: bool) -> Result<Value> {
    let mut profile: Value = serde_json::from_str(SECCOMP).context("the seccomp profile")?;
    if root && let Some(rules) = profile["syscalls"].as_array_mut() {
        // Docker's, for who may change its root; and process 1 takes its run directory out of sight,
        // which nobody after it has the capability for.
        rules.push(json!({"names": ["chroot", "umount2"], "action": "SCMP_ACT_ALLOW"}));
    }
    profile["architectures"] = match std::env::consts::ARCH {
        "aarch64" => json!(["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]),
        _ => json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]),
    };
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdi::{Hook, Mount};
    use crate::runtime::record::{BindMount, ContainerRecord, LeaseEnd};
    use carrel_core::model::ids::{Generation, JobId, JobKey};
    use carrel_core::model::time::Timestamp;
    use carrel_proto::v1::Identity;

    fn spec() -> ContainerSpec {
        ContainerSpec {
            record: ContainerRecord {
                key: JobKey {
                    job: JobId(1),
                    generation: Generation(2),
                },
                session: None,
                name: "dev".into(),
                user: "alice".into(),
                cluster: String::new(),
                image: "debian".into(),
                rank: 0,
                gpus: Vec::new(),
                cpus: 3,
                memory_bytes: 1 << 30,
                deadline: Timestamp(0),
                nodes: 1,
                started: Timestamp(0),
                binding: Binding::default(),
                visible: Vec::new(),
                network: carrel_core::model::gang_network::RankNetwork::Own,
            },
            hostname: "dev".into(),
            aliases: Vec::new(),
            address: None,
            gang: None,
            hostfile: String::new(),
            identity: Identity::default(),
            root: false,
            gpus: Vec::new(),
            pids_limit: 100,
            env: vec![("TZ".into(), "UTC".into()), ("LANG".into(), "C.UTF-8".into())],
            shm: None,
            others: Vec::new(),
            mounts: vec![BindMount {
                source: "/home/alice".into(),
                target: "/home/alice".into(),
                read_only: false,
            }],
            hosts: Vec::new(),
            script: None,
            init_config: Vec::new(),
            lease: LeaseEnd::none(),
            command: None,
        }
    }

    fn built(edits: &ContainerEdits) -> Value {
        built_as(edits, None)
    }

    fn built_as(edits: &ContainerEdits, root: Option<&Rooted>) -> Value {
        let image = ImageInfo {
            name: "debian".into(),
            digest: String::new(),
            chain_id: String::new(),
            env: vec!["PATH=/opt/bin:/bin".into(), "LANG=de".into()],
            workdir: String::new(),
        };
        let host = HostFacts {
            counts_swap: true,
            has_cpu_quota: true,
            has_cgroup_namespace: true,
            open_files: 4096,
        };
        let parts = Parts {
            spec: &spec(),
            image: &image,
            edits,
            fenced: &[],
            hidden: &[],
            root,
            gpu_env: &[("CUDA_VISIBLE_DEVICES".into(), "GPU-1".into())],
            programs: Path::new("/s/bin"),
            run_dir: Path::new("/s/run"),
            api_dir: Path::new("/s/api"),
            etc: &[("passwd", PathBuf::from("/s/etc/passwd"))],
            cgroup: "/carrel/1-2",
            host: &host,
            network: NetworkPart::New,
        };
        build(&parts).unwrap()
    }

    #[test]
    fn process_1_has_no_more_than_it_needs() {
        let document = built(&ContainerEdits::default());
        let process = &document["process"];
        assert_eq!(process["args"], json!(["/.carrel/bin/carrel-init"]));
        assert_eq!(process["noNewPrivileges"], true);
        assert_eq!(
            process["capabilities"]["bounding"],
            json!(["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"])
        );
        assert!(process["capabilities"].get("ambient").is_none() && process.get("oomScoreAdj").is_none());
        assert_eq!(
            document["linux"]["resources"]["devices"],
            json!([{"allow": false, "access": "rwm"}])
        );
        assert_eq!(
            document["linux"]["resources"]["cpu"],
            json!({"shares": 3072, "quota": 300_000, "period": 100_000})
        );
        assert_eq!(
            document["linux"]["resources"]["memory"],
            json!({"limit": 1 << 30, "swap": 1 << 30})
        );
    }

    #[test]
    fn the_environment_is_the_images_then_the_jobs_then_the_gpus() {
        let library = Mount {
            host_path: "/lib/libcuda.so.1".into(),
            container_path: format!("{LIBRARY_DIR}/libcuda.so.1"),
            ..Mount::default()
        };
        let edits = ContainerEdits {
            mounts: vec![library],
            ..ContainerEdits::default()
        };
        let env = built(&edits)["process"]["env"].clone();
        assert_eq!(
            env,
            json!([
                "PATH=/opt/bin:/bin:/.carrel/bin",
                "LANG=C.UTF-8",
                "TZ=UTC",
                "CUDA_VISIBLE_DEVICES=GPU-1",
                "LD_LIBRARY_PATH=/.carrel/nvidia/lib"
            ])
        );
    }

    #[test]
    fn cdi_nodes_are_made_and_opened_to_the_cgroup_and_nothing_else_is() {
        let gpu = DeviceNode {
            path: "/dev/nvidia0".into(),
            host_path: Some("/dev/null".into()),
            ..DeviceNode::default()
        };
        let hook = Hook {
            hook_name: "createContainer".into(),
            path: "/bin/true".into(),
            ..Hook::default()
        };
        let edits = ContainerEdits {
            device_nodes: vec![gpu],
            hooks: vec![hook],
            ..ContainerEdits::default()
        };
        let document = built(&edits);
        assert_eq!(
            document["linux"]["devices"],
            json!([{"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666, "uid": 0, "gid": 0}])
        );
        assert_eq!(
            document["linux"]["resources"]["devices"][1],
            json!({"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"})
        );
        assert_eq!(document["hooks"]["createContainer"][0]["path"], "/bin/true");
    }

    /// Devices cannot be made in a user namespace, and process 1 must be able to hide its directory.
    #[test]
    fn root_is_root_in_a_user_namespace_only() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity {
            name: "alice".into(),
            uid: 61_001,
            gid: 61_001,
            ..Identity::default()
        };
        let ranges = crate::runtime::UserRanges::default();
        let rooted = Rooted {
            mapping: crate::runtime::userns::mapping(dir.path(), ranges, &identity).unwrap(),
            devices: "/s/dev".into(),
        };
        let gpu = DeviceNode {
            path: "/dev/nvidia0".into(),
            host_path: Some("/dev/null".into()),
            ..DeviceNode::default()
        };
        let edits = ContainerEdits {
            device_nodes: vec![gpu],
            additional_gids: vec![44],
            ..ContainerEdits::default()
        };
        let document = built_as(&edits, Some(&rooted));
        let linux = &document["linux"];
        let namespaces = linux["namespaces"].as_array().unwrap();
        assert!(namespaces.contains(&json!({"type": "user"})));
        assert_eq!(
            linux["uidMappings"][0],
            json!({"containerID": 0, "hostID": 61_001, "size": 1})
        );
        assert_eq!(linux["devices"], json!([]));
        // The cgroup's rules are the same.
        assert_eq!(linux["resources"], built(&edits)["linux"]["resources"]);
        let mounts = document["mounts"].as_array().unwrap();
        let mounted = mounts
            .iter()
            .find(|mount| mount["destination"] == "/dev/nvidia0")
            .unwrap();
        assert_eq!(mounted["source"], "/s/dev/0");
        assert_eq!(document["process"]["user"]["additionalGids"], json!([]));
        assert_eq!(document["process"]["noNewPrivileges"], true);
        let ordinary = built(&edits);
        assert!(ordinary["linux"].get("uidMappings").is_none());
        let allowed = |profile: &Value| {
            let rules = &profile["linux"]["seccomp"]["syscalls"];
            rules.to_string().contains("umount2")
        };
        assert!(allowed(&document) && !allowed(&ordinary));
        assert_eq!(ordinary["process"]["user"]["additionalGids"], json!([44]));
    }

    #[test]
    fn system_calls_that_make_namespaces_are_not_allowed() {
        let profile = seccomp(false).unwrap();
        let allowed = profile["syscalls"][0]["names"].as_array().unwrap();
        for denied in [
            "mount",
            "unshare",
            "setns",
            "bpf",
            "io_uring_setup",
            "clone",
            "clone3",
            "keyctl",
            "init_module",
        ] {
            assert!(!allowed.contains(&json!(denied)), "{denied}");
        }
        for needed in ["execve", "openat", "rseq", "set_mempolicy", "ptrace"] {
            assert!(allowed.contains(&json!(needed)), "{needed}");
        }
    }
}
