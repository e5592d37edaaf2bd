//! The specifications of a host.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use carrel_core::model::gpu::GpuInfo;

use super::spec::{ContainerEdits, Device, DeviceNode, Spec};

/// The kind under which NVIDIA's GPUs are described.
const KIND: &str = "nvidia.com/gpu";

/// The edits for these GPUs; none where no specification speaks of GPUs.
pub(super) fn edits(dirs: &[PathBuf], gpus: &[GpuInfo]) -> Result<Option<ContainerEdits>> {
    let specs = load(dirs)?;
    if specs.is_empty() {
        return Ok(None);
    }
    let mut edits = ContainerEdits::default();
    for gpu in gpus {
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
        let own = || DeviceNode {
            path: format!("/dev/nvidia{}", gpu.minor.unwrap_or(gpu.index)),
            ..DeviceNode::default()
        };
        let found = described.unwrap_or_else(|| vec![own()]);
        nodes.extend(found.into_iter().map(|node| (gpu.index, node)));
    }
    nodes
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
        let gpus = [gpu(1, Some(1))];
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
        let unknown = cdi.edits(&[gpu(7, None)]).unwrap_err();
        assert!(format!("{unknown:#}").contains("GPU-7"), "{unknown:#}");
        let moved = cdi.edits(&[gpu(0, Some(1))]).unwrap_err();
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
        let edits = cdi.edits(&[gpu(0, Some(0))]).unwrap();
        assert_eq!(edits.device_nodes[0].major, Some(1));
        assert!(edits.hooks.is_empty());
    }
}
