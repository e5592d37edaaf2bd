//! What a container's fence is tried on before its user gets in: the list that process 1 goes through
//! (`carrel.v1.Fence`), and the device nodes that it tries to open.
//!
//! The nodes are made in the container's /dev for that alone, and process 1 removes them. Nothing
//! but the device cgroup keeps them shut: an image, too, may bring nodes.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use carrel_core::model::gpu::GpuInfo;
use carrel_proto::v1::{Fence, FenceProbe};

use super::network::METADATA;
use super::spec;
use crate::cdi::{Cdi, ContainerEdits, DeviceNode};

/// Where the nodes are in the container.
pub(super) const DIR: &str = "/dev/carrel-fence";
/// Most nodes that are tried: 16 GPUs in 7 slices each, with two capability nodes for each, are fewer.
const MAX_DEVICES: usize = 320;
/// Other jobs whose addresses are tried: one rule keeps all of them apart.
const MAX_NEIGHBOURS: usize = 4;
/// Directories of the host with nodes of GPUs and of what is near to them.
const DEVICE_DIRS: [&str; 4] = ["/dev", "/dev/nvidia-caps", "/dev/dri", "/dev/infiniband"];
/// Namespaces in which a container has nothing of the host's.
const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
/// Sockets that make whoever reaches them master of a host.
const HOST_SOCKETS: [(&str, &str); 4] = [
    ("containerd", "/run/containerd/containerd.sock"),
    ("Docker", "/run/docker.sock"),
    ("the system bus", "/run/dbus/system_bus_socket"),
    ("systemd", "/run/systemd/private"),
];

/// A device that is not the job's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// "GPU 3".
    pub name: String,
    /// "c" or "b".
    pub kind: String,
    pub major: i64,
    pub minor: i64,
}

impl Device {
    fn number(&self) -> (&str, i64, i64) {
        (&self.kind, self.major, self.minor)
    }
}

/// Where the n-th device is in the container.
pub(super) fn device_path(n: usize) -> String {
    format!("{DIR}/{n}")
}

/// The host's devices that a container with these edits must not reach. Blocks.
pub(super) fn devices(
    cdi: &Cdi,
    edits: &ContainerEdits,
    others: &[GpuInfo],
    state_dir: &Path,
) -> Vec<Device> {
    let own: Vec<(String, Option<Device>)> = edits
        .device_nodes
        .iter()
        .map(|node| (node.path.clone(), device(node.path.clone(), node)))
        .collect();
    let is_own = |found: &Device| {
        let numbers = own.iter().filter_map(|(_, device)| device.as_ref());
        numbers.map(Device::number).any(|number| number == found.number())
    };
    // Another GPU's node counts though its number is one of the job's: that is a leak, which the trial finds.
    let gpus = cdi.device_nodes(others).into_iter();
    let gpus = gpus.map(|(index, node)| (format!("GPU {index}"), node));
    let of_others = gpus.chain(cdi.slice_nodes()).filter_map(|(name, node)| {
        let shared = own.iter().any(|(path, _)| *path == node.path);
        (!shared).then(|| device(name, &node)).flatten()
    });
    let on_host = on_host().into_iter().filter(|device| !is_own(device));
    let fixed = [("the host's memory", 1), ("the kernel's log", 11)].map(|(name, minor)| Device {
        name: name.to_owned(),
        kind: "c".to_owned(),
        major: 1,
        minor,
    });
    let mut seen = BTreeSet::new();
    let all = fixed
        .into_iter()
        .chain(disk(state_dir))
        .chain(of_others)
        .chain(on_host);
    all.filter(|device| seen.insert((device.kind.clone(), device.major, device.minor)))
        .take(MAX_DEVICES)
        .collect()
}

fn device(name: String, node: &DeviceNode) -> Option<Device> {
    // One that is not there cannot be reached.
    let node = spec::complete(node).ok()?;
    Some(Device {
        name,
        kind: node.kind?,
        major: node.major?,
        minor: node.minor?,
    })
}

/// GPUs, their slices, and NICs, by the names that their drivers give to their nodes.
fn on_host() -> Vec<Device> {
    let mut found = Vec::new();
    for dir in DEVICE_DIRS {
        let Ok(listed) = fs::read_dir(dir) else { continue };
        for entry in listed.flatten() {
            let is_theirs = dir != "/dev" || entry.file_name().to_string_lossy().starts_with("nvidia");
            let Ok(metadata) = entry.metadata() else { continue };
            if is_theirs && metadata.file_type().is_char_device() {
                found.push(Device {
                    name: entry.path().display().to_string(),
                    kind: "c".to_owned(),
                    major: i64::from(libc::major(metadata.rdev())),
                    minor: i64::from(libc::minor(metadata.rdev())),
                });
            }
        }
    }
    found
}

/// The disk that holds the agent's state; none: a file system of another kind.
fn disk(state_dir: &Path) -> Option<Device> {
    let device = fs::metadata(state_dir).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    // Number 0 stands for file systems without a device (proc(5), mountinfo).
    (major != 0).then(|| Device {
        name: "the node's disk".to_owned(),
        kind: "b".to_owned(),
        major: i64::from(major),
        minor: i64::from(minor),
    })
}

/// The list for process 1. `neighbours` are other jobs' addresses; `root`: its user is root.
pub(super) fn list(
    devices: &[Device],
    sockets: &[(&str, &Path)],
    neighbours: Vec<IpAddr>,
    metadata: bool,
    root: bool,
) -> Fence {
    let probe = |name: &str, target: String| FenceProbe {
        name: name.to_owned(),
        target,
    };
    let hosts = HOST_SOCKETS.map(|(name, path)| (name, Path::new(path)));
    let neighbours = neighbours.into_iter().take(MAX_NEIGHBOURS);
    let metadata = METADATA.iter().filter(|_| metadata);
    // Who is not root inside has the host's user ids, and its user namespace.
    let namespaces = NAMESPACES.into_iter().filter(|name| root || *name != "user");
    let namespaces = namespaces.filter_map(|name| {
        let own = fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
        Some(probe(name, own.display().to_string()))
    });
    Fence {
        devices: devices
            .iter()
            .enumerate()
            .map(|(n, device)| probe(&device.name, device_path(n)))
            .collect(),
        sockets: sockets
            .iter()
            .chain(&hosts)
            .map(|(name, path)| probe(name, path.display().to_string()))
            .collect(),
        addresses: neighbours
            .map(|address| probe("another job", format!("{address}:22")))
            .chain(metadata.map(|address| probe("the metadata service", format!("{address}:80"))))
            .collect(),
        namespaces: namespaces.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Given, GivenSlice, MigDevice};

    fn node(path: &str, minor: i64) -> DeviceNode {
        DeviceNode {
            path: path.to_owned(),
            kind: Some("c".to_owned()),
            major: Some(60),
            minor: Some(minor),
            ..DeviceNode::default()
        }
    }

    fn gpu(index: u32) -> GpuInfo {
        GpuInfo {
            uuid: format!("GPU-{index}").parse().unwrap(),
            index,
            model: String::new(),
            memory_bytes: 0,
            pci_address: String::new(),
            numa_node: None,
            minor: Some(index),
            mig: None,
            sharing: None,
            drained: None,
            cpu_affinity: String::new(),
            nvlink_version: 0,
        }
    }

    /// All GPUs but the job's own, and not what all GPUs share. One that has the number of the job's own
    /// is on the list: the trial is to find it open.
    #[test]
    fn the_other_gpus_devices_are_tried_and_shared_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let device = |name: &str, minor: i64| {
            format!(
                r#"{{"name":"{name}","containerEdits":{{"deviceNodes":[{{"path":"/dev/nvidia{}","type":"c","major":60,"minor":{minor}}}]}}}}"#,
                &name[4..]
            )
        };
        let spec = format!(
            r#"{{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{},{},{}],
                "containerEdits":{{"deviceNodes":[{{"path":"/dev/nvidiactl","type":"c","major":60,"minor":255}}]}}}}"#,
            device("GPU-0", 0),
            device("GPU-1", 1),
            device("GPU-2", 0)
        );
        fs::write(dir.path().join("described.json"), spec).unwrap();
        let cdi = Cdi::new(vec![dir.path().to_owned()]);
        let own = cdi.edits(&[gpu(0).into()]).unwrap();
        assert_eq!(own.device_nodes[1].path, "/dev/nvidiactl");
        let found = devices(&cdi, &own, &[gpu(1), gpu(2)], Path::new("/"));
        let gpus: Vec<_> = found
            .iter()
            .filter(|device| device.major == 60)
            .map(|device| (device.name.as_str(), device.minor))
            .collect();
        assert_eq!(gpus, [("GPU 1", 1), ("GPU 2", 0)]);
        assert!(found.iter().any(|device| device.name == "the host's memory"));
        // The host of this test may have devices of its own, but none of them twice.
        let numbers: BTreeSet<_> = found.iter().map(Device::number).collect();
        assert_eq!(numbers.len(), found.len());
        assert_eq!(device_path(3), "/dev/carrel-fence/3");
        assert!(super::device("x".into(), &node("/dev/x", 7)).is_some_and(|device| device.minor == 7));
    }

    /// Of the other slices, of the own GPU too, the capabilities; and not the GPU's node, which they have in common.
    #[test]
    fn the_other_slices_capabilities_are_tried_and_the_own_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let device = |name: &str, gpu: u32, cap: u32| {
            let node = |path: String, major: u32, minor: u32| {
                format!(r#"{{"path":"{path}","type":"c","major":{major},"minor":{minor}}}"#)
            };
            let own = node(format!("/dev/nvidia{gpu}"), 60, gpu);
            let cap = node(format!("/dev/nvidia-caps/nvidia-cap{cap}"), 61, cap);
            format!(r#"{{"name":"{name}","containerEdits":{{"deviceNodes":[{own},{cap}]}}}}"#)
        };
        let devices = [
            device("MIG-1", 0, 1),
            device("MIG-2", 0, 2),
            device("MIG-3", 1, 3),
        ]
        .join(",");
        let spec = format!(r#"{{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{devices}]}}"#);
        fs::write(dir.path().join("described.json"), spec).unwrap();
        let cdi = Cdi::new(vec![dir.path().to_owned()]);
        let slice = GivenSlice {
            gpu_instance: 7,
            device: MigDevice {
                uuid: "MIG-1".parse().unwrap(),
                index: 0,
                compute_instance: 0,
            },
        };
        let own = Given {
            gpu: gpu(0),
            slice: Some(slice),
        };
        let own = cdi.edits(&[own]).unwrap();
        let found = devices_of(&cdi, &own);
        assert_eq!(found, [(60, 1), (61, 2), (61, 3)]);
    }

    fn devices_of(cdi: &Cdi, own: &ContainerEdits) -> Vec<(i64, i64)> {
        let found = devices(cdi, own, &[], Path::new("/"));
        let described = found.iter().filter(|device| [60, 61].contains(&device.major));
        let mut numbers: Vec<_> = described.map(|device| (device.major, device.minor)).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn the_list_names_what_is_tried() {
        let device = Device {
            name: "GPU 1".into(),
            kind: "c".into(),
            major: 60,
            minor: 1,
        };
        let neighbour = "10.213.0.9".parse().unwrap();
        let fence = list(
            &[device],
            &[("the agent", Path::new("/s/ctl.sock"))],
            vec![neighbour],
            true,
            false,
        );
        assert_eq!(fence.devices[0].target, "/dev/carrel-fence/0");
        assert_eq!(fence.sockets[0].target, "/s/ctl.sock");
        assert_eq!(fence.addresses[0].target, "10.213.0.9:22");
        assert!(
            fence
                .addresses
                .iter()
                .any(|probe| probe.target == "169.254.169.254:80")
        );
        assert_eq!(fence.namespaces.len(), NAMESPACES.len() - 1);
        let of_root = list(&[], &[], Vec::new(), false, true);
        assert_eq!(of_root.addresses, []);
        assert_eq!(of_root.namespaces.len(), NAMESPACES.len());
    }
}
