//! Access to MIG devices: the driver has a device node for each GPU instance and each compute instance
//! (MIG User Guide, "Device Nodes and Capabilities"). Who can open both can use the slice.
//!
//! ```text
//! /proc/driver/nvidia/capabilities/gpu0/mig/gi7/access       DeviceFileMinor: 66
//! /proc/driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access   DeviceFileMinor: 67
//! /proc/devices                                              238 nvidia-caps
//! /dev/nvidia-caps/nvidia-cap66                              238:66
//! ```

use std::fs;
use std::path::Path;

use super::spec::DeviceNode;

/// The kernel's files about itself.
pub(super) const PROC: &str = "/proc";
/// Where the nodes are.
pub(super) const DIR: &str = "/dev/nvidia-caps";
/// Most capabilities that are listed: 32 GPUs in 7 instances, each with a node for both of its parts.
const MAX_LISTED: usize = 512;
/// `gpu0/mig/gi7/ci0/access`.
const MAX_DEPTH: usize = 5;

/// The nodes of a compute instance of a GPU instance of `/dev/nvidiaN`; none: the driver does not say.
pub(super) fn of(
    proc: &Path,
    gpu_minor: u32,
    gpu_instance: u32,
    compute_instance: u32,
) -> Option<[DeviceNode; 2]> {
    let dir = proc.join(format!(
        "driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{gpu_instance}"
    ));
    let major = major(proc)?;
    let node = |dir: &Path| Some(node(major, minor(&dir.join("access"))?));
    Some([node(&dir)?, node(&dir.join(format!("ci{compute_instance}")))?])
}

/// The nodes of everything of which there is a capability, with its name ("gpu0/mig/gi7").
pub(super) fn all(proc: &Path) -> Vec<(String, DeviceNode)> {
    let mut found = Vec::new();
    let Some(major) = major(proc) else { return found };
    let root = proc.join("driver/nvidia/capabilities");
    let mut dirs = vec![(root.clone(), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                if depth < MAX_DEPTH && dirs.len() < MAX_LISTED {
                    dirs.push((path, depth + 1));
                }
            } else if let Some(minor) = minor(&path)
                && found.len() < MAX_LISTED
            {
                let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
                let name = name.strip_suffix("/access").unwrap_or(&name).to_owned();
                found.push((name, node(major, minor)));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn node(major: i64, minor: i64) -> DeviceNode {
    DeviceNode {
        path: format!("{DIR}/nvidia-cap{minor}"),
        kind: Some("c".to_owned()),
        major: Some(major),
        minor: Some(minor),
        // The driver's own, where it lets users have it; the host's may be root's alone.
        file_mode: Some(0o444),
        ..DeviceNode::default()
    }
}

/// "238 nvidia-caps" in the list of character devices.
fn major(proc: &Path) -> Option<i64> {
    let devices = fs::read_to_string(proc.join("devices")).ok()?;
    let characters = devices.lines().take_while(|line| !line.starts_with("Block"));
    let mut found = characters.filter_map(|line| line.trim().split_once(' '));
    found.find(|(_, name)| *name == "nvidia-caps")?.0.parse().ok()
}

/// "DeviceFileMinor: 66".
fn minor(path: &Path) -> Option<i64> {
    let text = fs::read_to_string(path).ok()?;
    let minor = text
        .lines()
        .find_map(|line| line.strip_prefix("DeviceFileMinor:"))?;
    minor.trim().parse().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A described /proc: capabilities by their paths and minor numbers.
    pub fn described(capabilities: &[(&str, u32)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let devices = "Character devices:\n  1 mem\n 61 nvidia-caps\n\nBlock devices:\n 62 nvidia-caps\n";
        fs::write(proc.path().join("devices"), devices).unwrap();
        for (path, minor) in capabilities {
            let file = proc.path().join("driver/nvidia/capabilities").join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
            fs::write(file, text).unwrap();
        }
        proc
    }

    #[test]
    fn capabilities_are_the_drivers() {
        let proc = described(&[
            ("mig/config", 1),
            ("gpu2/mig/gi7/access", 66),
            ("gpu2/mig/gi7/ci0/access", 67),
            ("gpu2/mig/gi8/access", 75),
        ]);
        let [gpu_instance, compute_instance] = of(proc.path(), 2, 7, 0).unwrap();
        assert_eq!(gpu_instance.path, "/dev/nvidia-caps/nvidia-cap66");
        assert_eq!(
            (compute_instance.major, compute_instance.minor),
            (Some(61), Some(67))
        );
        assert_eq!(of(proc.path(), 2, 8, 0), None);
        assert_eq!(of(proc.path(), 0, 7, 0), None);
        let all = all(proc.path());
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["gpu2/mig/gi7", "gpu2/mig/gi7/ci0", "gpu2/mig/gi8", "mig/config"]
        );
        let none = tempfile::tempdir().unwrap();
        assert_eq!(super::all(none.path()), []);
    }
}
