//! PCI devices and RDMA NICs, from sysfs.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use carrel_core::model::gpu::{GpuInfo, NicInfo};
use carrel_core::model::topology::Link;

const NVIDIA_VENDOR: &str = "0x10de";

/// PCI class of display controllers (3D controllers too): the first byte of the class code.
const DISPLAY_CLASS: &str = "0x03";

/// A mounted sysfs.
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self { root: "/sys".into() }
    }
}

impl Sysfs {
    /// NUMA node of an NVIDIA device, by its PCI address as NVML prints it.
    pub fn numa_node(&self, pci_address: &str) -> Option<u32> {
        numa_node_of(&self.nvidia_device(pci_address)?)
    }

    /// CPUs near to an NVIDIA device, as a kernel cpulist; empty: unknown.
    pub fn cpu_list(&self, pci_address: &str) -> String {
        self.nvidia_device(pci_address)
            .and_then(|device| word(&device.join("local_cpulist")))
            .unwrap_or_default()
    }

    /// PCI addresses of NVIDIA's GPUs, whether or not a driver runs them.
    pub fn nvidia_gpus(&self) -> Vec<String> {
        let devices = entries(&self.root.join("bus/pci/devices"));
        let is_gpu = |device: &PathBuf| {
            word(&device.join("vendor")).is_some_and(|vendor| vendor == NVIDIA_VENDOR)
                && word(&device.join("class")).is_some_and(|class| class.starts_with(DISPLAY_CLASS))
        };
        devices
            .into_iter()
            .filter(is_gpu)
            .filter_map(|device| file_name(&device))
            .collect()
    }

    /// Version of the loaded `nvidia` kernel module.
    pub fn kernel_module_version(&self) -> Option<String> {
        word(&self.root.join("module/nvidia/version"))
    }

    /// RDMA NICs, by name, with their links to these GPUs.
    pub fn nics(&self, gpus: &[GpuInfo]) -> Vec<NicInfo> {
        let nic = |path: PathBuf| {
            let device = fs::canonicalize(path.join("device")).ok()?;
            let numa_node = numa_node_of(&device);
            let link = |gpu: &GpuInfo| {
                let place = self
                    .nvidia_device(&gpu.pci_address)
                    .and_then(|path| fs::canonicalize(path).ok());
                let over_pcie = place.and_then(|place| pcie_link(&place, &device));
                over_pcie.unwrap_or_else(|| numa_link(gpu.numa_node, numa_node))
            };
            Some(NicInfo {
                name: file_name(&path)?,
                gpu_links: gpus.iter().map(link).collect(),
                numa_node,
            })
        };
        entries(&self.root.join("class/infiniband"))
            .into_iter()
            .filter_map(nic)
            .collect()
    }

    /// The device at an address, if it is NVIDIA's: the kernel writes domains
    /// with four digits, NVML with eight.
    fn nvidia_device(&self, pci_address: &str) -> Option<PathBuf> {
        let (domain, rest) = pci_address.split_once(':')?;
        let domain = u32::from_str_radix(domain, 16).ok()?;
        let name = format!("{domain:04x}:{}", rest.to_ascii_lowercase());
        let device = self.root.join("bus/pci/devices").join(name);
        (word(&device.join("vendor"))? == NVIDIA_VENDOR).then_some(device)
    }
}

/// The link that NUMA nodes alone tell of.
pub(super) fn numa_link(a: Option<u32>, b: Option<u32>) -> Link {
    if a.is_some() && a == b {
        Link::Node
    } else {
        Link::Sys
    }
}

/// The link between two devices by their places in the PCI tree
/// (`/sys/devices/pci0000:00/<root port>/<upstream>/<downstream>/<device>`);
/// none when they hang on different host bridges.
///
/// As nvidia-smi names them: PIX over one switch (one upstream port and its
/// downstream ports), PXB over several, PHB over the host bridge.
fn pcie_link(a: &Path, b: &Path) -> Option<Link> {
    let hops = |path: &Path| {
        let all: Vec<_> = path.iter().map(OsStr::to_os_string).collect();
        let bridge = all
            .iter()
            .position(|part| part.to_string_lossy().starts_with("pci"))?;
        Some(all[bridge..].to_vec())
    };
    let (a, b) = (hops(a)?, hops(b)?);
    let shared = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let below = a.len().max(b.len()) - shared;
    match (shared, below) {
        (0, _) => None,
        (1, _) => Some(Link::Phb),
        (_, 0..=2) => Some(Link::Pix),
        _ => Some(Link::Pxb),
    }
}

fn numa_node_of(device: &Path) -> Option<u32> {
    // The kernel writes -1 where the firmware does not say.
    word(&device.join("numa_node"))?.parse().ok()
}

/// A one-line file's content; none when it is not there or empty.
fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A directory's entries in order of their names; none when it is not there.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs with devices at paths below /sys/devices, and RDMA NICs among them.
    fn tree(devices: &[(&str, &str, i32)], nics: &[(&str, &str)]) -> (tempfile::TempDir, Sysfs) {
        let root = tempfile::tempdir().expect("a directory");
        let of = |path: &str| root.path().join("devices").join(path);
        fs::create_dir_all(root.path().join("bus/pci/devices")).expect("bus");
        for (path, vendor, numa) in devices {
            fs::create_dir_all(of(path)).expect("device");
            fs::write(of(path).join("vendor"), format!("{vendor}\n")).expect("vendor");
            fs::write(of(path).join("class"), "0x030200\n").expect("class");
            fs::write(of(path).join("numa_node"), format!("{numa}\n")).expect("numa_node");
            fs::write(of(path).join("local_cpulist"), "0-3\n").expect("local_cpulist");
            let name = Path::new(path).file_name().expect("a name");
            symlink(of(path), root.path().join("bus/pci/devices").join(name)).expect("link");
        }
        for (name, path) in nics {
            let class = root.path().join("class/infiniband").join(name);
            fs::create_dir_all(&class).expect("class");
            symlink(of(path), class.join("device")).expect("link");
        }
        let sysfs = Sysfs {
            root: root.path().to_owned(),
        };
        (root, sysfs)
    }

    fn gpu(pci_address: &str, numa_node: Option<u32>) -> GpuInfo {
        GpuInfo {
            uuid: "GPU-0".parse().expect("a UUID"),
            index: 0,
            model: String::new(),
            memory_bytes: 0,
            pci_address: pci_address.into(),
            numa_node,
            minor: None,
            mig: None,
            sharing: None,
            drained: None,
            cpu_affinity: String::new(),
            nvlink_version: 0,
        }
    }

    #[test]
    fn nics_are_linked_to_gpus_by_their_place_in_the_pci_tree() {
        const SWITCH: &str = "pci0000:00/0000:00:01.0/0000:01:00.0";
        let under = |path: &str| format!("{SWITCH}/{path}");
        let near = under("0000:02:00.0/0000:1b:00.0");
        let far = under("0000:02:01.0/0000:05:00.0/0000:06:00.0/0000:2c:00.0");
        let devices = [
            (near.as_str(), NVIDIA_VENDOR, 0),
            (far.as_str(), NVIDIA_VENDOR, 0),
            ("pci0000:00/0000:00:02.0/0000:3d:00.0", NVIDIA_VENDOR, 0),
            ("pci0000:80/0000:80:01.0/0000:9a:00.0", NVIDIA_VENDOR, 1),
            (&under("0000:02:02.0/0000:18:00.0"), "0x15b3", 0),
        ];
        let (_root, sysfs) = tree(&devices, &[("mlx5_0", &under("0000:02:02.0/0000:18:00.0"))]);
        let gpus = [
            gpu("00000000:1B:00.0", Some(0)),
            gpu("00000000:2C:00.0", Some(0)),
            gpu("00000000:3D:00.0", Some(0)),
            gpu("00000000:9A:00.0", Some(1)),
            gpu("00000000:FF:00.0", Some(0)),
        ];
        let nics = sysfs.nics(&gpus);
        assert_eq!(nics.len(), 1);
        assert_eq!((nics[0].name.as_str(), nics[0].numa_node), ("mlx5_0", Some(0)));
        assert_eq!(
            nics[0].gpu_links,
            [Link::Pix, Link::Pxb, Link::Phb, Link::Sys, Link::Node]
        );
    }

    #[test]
    fn facts_are_taken_from_nvidia_devices_only() {
        let devices = [
            ("pci0000:00/0000:1b:00.0", NVIDIA_VENDOR, 1),
            ("pci0000:00/0000:1c:00.0", NVIDIA_VENDOR, -1),
            ("pci0000:00/0000:1d:00.0", "0x1af4", 0),
        ];
        let (_root, sysfs) = tree(&devices, &[]);
        assert_eq!(sysfs.numa_node("00000000:1B:00.0"), Some(1));
        assert_eq!(sysfs.cpu_list("00000000:1B:00.0"), "0-3");
        assert_eq!(sysfs.numa_node("00000000:1C:00.0"), None);
        assert_eq!(sysfs.numa_node("00000000:1D:00.0"), None);
        assert_eq!(sysfs.nvidia_gpus(), ["0000:1b:00.0", "0000:1c:00.0"]);
        assert_eq!(sysfs.kernel_module_version(), None);
    }
}
