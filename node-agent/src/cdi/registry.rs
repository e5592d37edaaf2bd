//! The specifications of a host.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use carrel_core::model::gpu::GpuInfo;

use super::spec::{ContainerEdits, Device, DeviceNode, Spec};
use super::{capabilities, generate};
use crate::gpu::{Given, GivenSlice};

/// The kind under which NVIDIA's GPUs are described.
const KIND: &str = "nvidia.com/gpu";

/// The edits for these GPUs; none where no specification speaks of GPUs.
pub(super) fn edits(dirs: &[PathBuf], proc: &Path, gpus: &[Given]) -> Result<Option<ContainerEdits>> {
    let specs = load(dirs)?;
    let Some((_, first)) = specs.first() else {
        return Ok(None);
    };
    let mut edits = ContainerEdits::default();
    for given in gpus {
        let gpu = &given.gpu;
        if let Some(slice) = &given.slice {
            if let Some((spec, device)) = find_slice(&specs, proc, given, slice) {
                edits.merge(&device.container_edits);
                edits.merge(&spec.container_edits);
            } else {
                let mut nodes = vec![own_node(gpu)];
                nodes.extend(generate::slice_nodes(proc, given)?);
                edits.merge(&ContainerEdits {
                    device_nodes: nodes,
                    ..ContainerEdits::default()
                });
                edits.merge(&first.container_edits);
            }
            continue;
        }
        let (path, spec, device) = find(&specs, gpu).with_context(|| {
            let files: Vec<_> = specs.iter().map(|(path, _)| path.display().to_string()).collect();
            format!(
                "GPU {} ({}) is in no CDI specification ({}); renew it with `nvidia-ctk cdi generate`, or remove it \
                 so that one is made",
                gpu.index,
                gpu.uuid,
                files.join(", ")
            )
        })?;
        check_node(gpu, device).with_context(|| format!("CDI specification {}", path.display()))?;
        edits.merge(&device.container_edits);
        edits.merge(&spec.container_edits);
    }
    Ok(Some(edits))
}

/// The nodes of these GPUs, with their indices: what the specifications say, and otherwise the driver's own.
pub(super) fn device_nodes(dirs: &[PathBuf], gpus: &[GpuInfo]) -> Vec<(u32, DeviceNode)> {
    // Unreadable ones are a start's error elsewhere; here, what can be known is.
    let specs = load(dirs).unwrap_or_default();
    let mut nodes = Vec::new();
    for gpu in gpus {
        let described = find(&specs, gpu).map(|(_, _, device)| device.container_edits.device_nodes.clone());
        let found = described.unwrap_or_else(|| vec![own_node(gpu)]);
        nodes.extend(found.into_iter().map(|node| (gpu.index, node)));
    }
    nodes
}

/// The nodes of all MIG devices that the specifications name.
pub(super) fn slice_nodes(dirs: &[PathBuf]) -> Vec<(String, DeviceNode)> {
    let specs = load(dirs).unwrap_or_default();
    let devices = specs.iter().flat_map(|(_, spec)| &spec.devices);
    let slices = devices.filter(|device| device.name.starts_with("MIG-") || device.name.contains(':'));
    let nodes = slices.flat_map(|device| {
        let nodes = device.container_edits.device_nodes.iter();
        nodes.map(|node| (format!("MIG device {}", device.name), node.clone()))
    });
    nodes.collect()
}

/// The driver's own node of a GPU.
fn own_node(gpu: &GpuInfo) -> DeviceNode {
    DeviceNode {
        path: format!("/dev/nvidia{}", gpu.minor.unwrap_or(gpu.index)),
        ..DeviceNode::default()
    }
}

/// A slice by its UUID, else by its indices; where the device has the slice's nodes, as far as the driver says
/// which these are.
fn find_slice<'a>(
    specs: &'a [(PathBuf, Spec)],
    proc: &Path,
    given: &Given,
    slice: &GivenSlice,
) -> Option<(&'a Spec, &'a Device)> {
    let GivenSlice { gpu_instance, device } = slice;
    let known = capabilities::of(proc, given.minor(), *gpu_instance, device.compute_instance);
    let fits = |found: &Device, by_uuid: bool| {
        let mut theirs: Vec<&str> = capability_paths(&found.container_edits.device_nodes).collect();
        theirs.sort_unstable();
        let right = match &known {
            Some(nodes) => {
                let mut own: Vec<&str> = nodes.iter().map(|node| node.path.as_str()).collect();
                own.sort_unstable();
                own == theirs
            }
            None => by_uuid,
        };
        right && check_node(&given.gpu, found).is_ok()
    };
    let named = |name: &str, by_uuid: bool| {
        specs.iter().find_map(|(_, spec)| {
            let device = spec.devices.iter().find(|device| device.name == name)?;
            fits(device, by_uuid).then_some((spec, device))
        })
    };
    named(device.uuid.as_str(), true)
        .or_else(|| named(&format!("{}:{}", given.gpu.index, device.index), false))
}

fn capability_paths(nodes: &[DeviceNode]) -> impl Iterator<Item = &str> {
    let paths = nodes
        .iter()
        .map(|node| node.host_path.as_deref().unwrap_or(&node.path));
    paths.filter(|path| path.starts_with(capabilities::DIR))
}

/// Every specification of GPUs; those of the highest precedence first.
fn load(dirs: &[PathBuf]) -> Result<Vec<(PathBuf, Spec)>> {
    let mut specs = Vec::new();
    for dir in dirs.iter().rev() {
        let listed = match fs::read_dir(dir) {
            Ok(listed) => listed,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("reading {}", dir.display())),
        };
        let mut paths = listed
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()?;
        paths.sort();
        for path in paths {
            if let Some(spec) =
                read(&path).with_context(|| format!("CDI specification {}", path.display()))?
                && spec.kind == KIND
            {
                specs.push((path, spec));
            }
        }
    }
    Ok(specs)
}

fn read(path: &Path) -> Result<Option<Spec>> {
    let extension = path
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default();
    match extension {
        "json" => Ok(Some(serde_json::from_slice(&fs::read(path)?)?)),
        "yaml" | "yml" => Ok(Some(serde_yaml_ng::from_slice(&fs::read(path)?)?)),
        _ => Ok(None),
    }
}

/// By UUID in any specification, else by index: only UUIDs are sure to mean the same GPU.
fn find<'a>(specs: &'a [(PathBuf, Spec)], gpu: &GpuInfo) -> Option<(&'a Path, &'a Spec, &'a Device)> {
    let named = |name: &str| {
        specs.iter().find_map(|(path, spec)| {
            let device = spec.devices.iter().find(|device| device.name == name)?;
            Some((path.as_path(), spec, device))
        })
    };
    named(gpu.uuid.as_str()).or_else(|| named(&gpu.index.to_string()))
}

/// Fails where the device's node is known to be another GPU's: indices move when a GPU drops out.
fn check_node(gpu: &GpuInfo, device: &Device) -> Result<()> {
    let Some(minor) = gpu.minor else { return Ok(()) };
    for node in &device.container_edits.device_nodes {
        let host_path = node.host_path.as_deref().unwrap_or(&node.path);
        let number = host_path
            .strip_prefix("/dev/nvidia")
            .and_then(|rest| rest.parse::<u32>().ok());
        ensure!(
            number.is_none_or(|number| number == minor),
            "it says that GPU {} is {host_path}, the driver says /dev/nvidia{minor}: it is out of date; renew it with \
             `nvidia-ctk cdi generate`",
            gpu.uuid
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Cdi, environment_of};
    use super::*;

    fn gpu(index: u32, minor: Option<u32>) -> GpuInfo {
        GpuInfo {
            uuid: format!("GPU-{index}").parse().unwrap(),
            index,
            model: "NVIDIA H100".into(),
            memory_bytes: 80 << 30,
            pci_address: String::new(),
            numa_node: None,
            minor,
            mig: None,
            sharing: None,
            drained: None,
            cpu_affinity: String::new(),
            nvlink_version: 4,
        }
    }

    /// What `nvidia-ctk cdi generate` writes, shortened.
    const TOOLKIT: &str = r#"
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib/x86_64-linux-gnu]
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
    options: [ro, nosuid, nodev, bind]
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: "1"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
kind: nvidia.com/gpu
"#;

    #[test]
    fn the_toolkits_yaml_gives_only_the_gpus_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("nvidia.yaml"), TOOLKIT).unwrap();
        fs::write(dir.path().join("notes.txt"), "not a specification").unwrap();
        let cdi = Cdi::new(vec![dir.path().to_owned(), dir.path().join("absent")]);
        let gpus = [Given::from(gpu(1, Some(1)))];
        let edits = cdi.edits(&gpus).unwrap();
        let nodes: Vec<_> = edits.device_nodes.iter().map(|node| node.path.as_str()).collect();
        assert_eq!(nodes, ["/dev/nvidia1", "/dev/nvidiactl"]);
        assert_eq!(edits.hooks[0].hook_name, "createContainer");
        assert_eq!(edits.mounts[0].options, ["ro", "nosuid", "nodev", "bind"]);
        let env = environment_of(&edits, &gpus);
        assert!(env.contains(&("NVIDIA_VISIBLE_DEVICES".into(), "GPU-1".into())));
        assert_eq!(env.len(), 2, "{env:?}");
    }

    #[test]
    fn an_unknown_gpu_and_an_outdated_specification_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("nvidia.yaml"), TOOLKIT).unwrap();
        let cdi = Cdi::new(vec![dir.path().to_owned()]);
        let unknown = cdi.edits(&[gpu(7, None).into()]).unwrap_err();
        assert!(format!("{unknown:#}").contains("GPU-7"), "{unknown:#}");
        let moved = cdi.edits(&[gpu(0, Some(1)).into()]).unwrap_err();
        assert!(format!("{moved:#}").contains("out of date"), "{moved:#}");
    }

    #[test]
    fn uuids_go_before_indices_and_later_directories_before_earlier_ones() {
        let (low, high) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(low.path().join("a.yaml"), TOOLKIT).unwrap();
        let described = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"GPU-0","containerEdits":
            {"deviceNodes":[{"path":"/dev/nvidia0","type":"c","major":1,"minor":3,"fileMode":438}]}}]}"#;
        fs::write(high.path().join("b.json"), described).unwrap();
        let cdi = Cdi::new(vec![low.path().to_owned(), high.path().to_owned()]);
        let edits = cdi.edits(&[gpu(0, Some(0)).into()]).unwrap();
        assert_eq!(edits.device_nodes[0].major, Some(1));
        assert!(edits.hooks.is_empty());
    }

    fn slice_of(gpu: GpuInfo, gpu_instance: u32, index: u32) -> Given {
        let uuid = format!("MIG-{gpu_instance}").parse().unwrap();
        let device = crate::gpu::MigDevice {
            uuid,
            index,
            compute_instance: 0,
        };
        Given {
            gpu,
            slice: Some(GivenSlice { gpu_instance, device }),
        }
    }

    /// A slice gets its own capabilities: those of the specification where they are right, else the driver's.
    #[test]
    fn slices_get_their_own_capabilities() {
        let proc = capabilities::tests::described(&[
            ("gpu0/mig/gi7/access", 66),
            ("gpu0/mig/gi7/ci0/access", 67),
            ("gpu0/mig/gi8/access", 75),
            ("gpu0/mig/gi8/ci0/access", 76),
        ]);
        let dir = tempfile::tempdir().unwrap();
        let device = |name: &str, caps: [u32; 2]| {
            format!(
                "- name: \"{name}\"\n  containerEdits:\n    env: [BY={name}]\n    deviceNodes:\n    - path: /dev/nvidia0\n    \
                 - path: /dev/nvidia-caps/nvidia-cap{}\n    - path: /dev/nvidia-caps/nvidia-cap{}\n",
                caps[0], caps[1]
            )
        };
        // The first by index is out of date: the GPU has been cut anew.
        let text = format!(
            "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  deviceNodes:\n  - path: /dev/nvidiactl\ndevices:\n{}{}{}",
            device("0:0", [3, 4]),
            device("0:1", [75, 76]),
            device("MIG-9", [1, 2])
        );
        fs::write(dir.path().join("nvidia.yaml"), text).unwrap();
        let dirs = [dir.path().to_owned()];
        let nodes = |given: &Given| {
            let edits = edits(&dirs, proc.path(), std::slice::from_ref(given))
                .unwrap()
                .unwrap();
            let paths: Vec<String> = edits.device_nodes.into_iter().map(|node| node.path).collect();
            (paths, edits.env)
        };
        let expected = |caps: [u32; 2]| {
            let caps = caps.map(|cap| format!("/dev/nvidia-caps/nvidia-cap{cap}"));
            let [first, second] = caps;
            vec![
                "/dev/nvidia0".to_owned(),
                first,
                second,
                "/dev/nvidiactl".to_owned(),
            ]
        };
        let generated = slice_of(gpu(0, Some(0)), 7, 0);
        assert_eq!(nodes(&generated), (expected([66, 67]), vec![]));
        let by_index = slice_of(gpu(0, Some(0)), 8, 1);
        assert_eq!(nodes(&by_index), (expected([75, 76]), vec!["BY=0:1".to_owned()]));
        // Without the driver's word, only a UUID is sure.
        let by_uuid = slice_of(gpu(0, Some(0)), 9, 5);
        assert_eq!(nodes(&by_uuid), (expected([1, 2]), vec!["BY=MIG-9".to_owned()]));
        let nobody = slice_of(gpu(0, Some(0)), 10, 1);
        let error = edits(&dirs, proc.path(), &[nobody]).unwrap_err();
        assert!(
            format!("{error:#}").contains("gpu0/mig/gi10/ci0/access"),
            "{error:#}"
        );
        let env = environment_of(
            &ContainerEdits::default(),
            &[generated.clone(), generated, by_index],
        );
        assert!(env.contains(&("CUDA_VISIBLE_DEVICES".into(), "MIG-7,MIG-8".into())));
        assert_eq!(slice_nodes(&dirs).len(), 9);
    }
}
