//! NVML, loaded and asked.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_ulong;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use carrel_core::model::cpus::CpuSet;
use carrel_core::model::gpu::{GpuInfo, Inventory, Mig};
use carrel_core::model::ids::GpuUuid;
use carrel_core::model::topology::Link;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as sys;
use thiserror::Error;

use super::fabric;
use super::links::{self, FarEnd, Pairs, PciAddress, Port, Ports};
use super::mig::{self, MigState};
use super::policy::GpuPolicy;
use super::sysfs::{Sysfs, numa_link};

/// What the dynamic linker is asked for when no path is given.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Directories tried after that: WSL, the GPU operator's driver container,
/// Google's container-optimised system, NixOS.
const MORE_DIRECTORIES: [&str; 5] = [
    "/usr/lib/wsl/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
];

/// Most NVLinks of a GPU that are asked for: twice the 18 of Hopper and Blackwell.
const MAX_NVLINKS: u32 = 36;

/// CPUs and NUMA nodes that a mask has room for, in words.
const CPU_WORDS: usize = 4096 / c_ulong::BITS as usize;
const NUMA_WORDS: usize = 1024 / c_ulong::BITS as usize;

/// Why NVML cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no such library, or it is no NVML.
    #[error("cannot load NVML from {library}: {reason}")]
    NotThere {
        /// Path or name that was tried.
        library: String,
        /// The dynamic linker's words.
        reason: String,
        /// It was named by the operator, so that it is missed.
        asked_for: bool,
    },
    /// The library is there and refuses.
    #[error("NVML from {library} does not start: {error}")]
    Refused {
        /// Path that was loaded.
        library: String,
        /// NVML's reason.
        error: NvmlError,
    },
}

impl OpenError {
    /// Why no GPUs are offered and what to do, for a node's `gpu_note`.
    pub(super) fn note(&self, sysfs: &Sysfs) -> String {
        let hardware = sysfs.nvidia_gpus();
        match self {
            Self::NotThere { asked_for: true, .. } => format!("{self}; correct the path of the NVML library"),
            Self::NotThere { .. } if hardware.is_empty() => {
                format!("no NVIDIA GPU and no NVIDIA driver on this host ({self})")
            }
            Self::NotThere { .. } => {
                let count = hardware.len();
                format!(
                    "{count} NVIDIA GPUs without a driver ({self}): install the NVIDIA driver, or give the library's path"
                )
            }
            Self::Refused {
                error: NvmlError::DriverNotLoaded,
                ..
            } => {
                format!("{self}: load the kernel module (modprobe nvidia) and see `nvidia-smi` and `dmesg`")
            }
            Self::Refused {
                error: NvmlError::LibRmVersionMismatch,
                ..
            } => {
                let module = sysfs
                    .kernel_module_version()
                    .map(|v| format!(" {v}"))
                    .unwrap_or_default();
                format!(
                    "{self}: the loaded kernel module{module} is not of the installed driver; \
                     restart the host, or unload and reload the nvidia modules"
                )
            }
            Self::Refused {
                error: NvmlError::NoPermission,
                ..
            } => {
                format!("{self}: run the agent as root, with /dev/nvidiactl and /dev/nvidia* readable")
            }
            Self::Refused { .. } => format!("{self}: see `nvidia-smi` and `dmesg`"),
        }
    }
}

/// A process with a compute context on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its id on the host.
    pub pid: u32,
    /// The MIG GPU instance that it is in; none: the driver does not say, or the GPU has none.
    pub gpu_instance: Option<u32>,
}

/// NVML, initialised. While one lives, the driver keeps its GPUs initialised.
pub struct Library {
    nvml: Nvml,
    path: String,
}

impl Library {
    /// Loads and initialises NVML, from a path or from where drivers put it. Blocks.
    pub fn open(path: Option<&Path>) -> Result<Self, OpenError> {
        if let Some(path) = path {
            return Self::open_at(path, true);
        }
        let elsewhere = MORE_DIRECTORIES
            .iter()
            .map(|directory| Path::new(directory).join(LIBRARY));
        let candidates =
            std::iter::once(PathBuf::from(LIBRARY)).chain(elsewhere.filter(|path| path.exists()));
        let mut first_error = None;
        for candidate in candidates {
            match Self::open_at(&candidate, false) {
                Err(error @ OpenError::NotThere { .. }) => {
                    first_error.get_or_insert(error);
                }
                other => return other,
            }
        }
        let nothing = || OpenError::NotThere {
            library: LIBRARY.into(),
            reason: String::new(),
            asked_for: false,
        };
        Err(first_error.unwrap_or_else(nothing))
    }

    fn open_at(path: &Path, asked_for: bool) -> Result<Self, OpenError> {
        let library = path.display().to_string();
        match Nvml::builder().lib_path(path.as_os_str()).init() {
            Ok(nvml) => Ok(Self {
                nvml,
                path: loaded_path(path).unwrap_or(library),
            }),
            Err(NvmlError::LibloadingError(error)) => Err(OpenError::NotThere {
                library,
                reason: error.to_string(),
                asked_for,
            }),
            Err(NvmlError::FailedToLoadSymbol(reason)) => Err(OpenError::NotThere {
                library,
                reason,
                asked_for,
            }),
            Err(error) => Err(OpenError::Refused { library, error }),
        }
    }

    /// Adds the GPUs and the driver to an inventory.
    pub(super) fn describe(&self, sysfs: &Sysfs, policy: &GpuPolicy, inventory: &mut Inventory) {
        inventory.nvml_library.clone_from(&self.path);
        inventory.driver_version = self.nvml.sys_driver_version().unwrap_or_default();
        let mut notes = Vec::new();
        let mut devices = Vec::new();
        match self.nvml.device_count() {
            Err(error) => notes.push(format!("NVML does not count its GPUs: {error}")),
            Ok(count) => {
                for index in 0..count {
                    match self.gpu(index, sysfs) {
                        Ok((device, mut gpu)) => {
                            notes.extend(mig::describe(&device, policy, &mut gpu));
                            gpu.sharing = policy.sharing_of(&gpu);
                            devices.push(device);
                            inventory.gpus.push(gpu);
                        }
                        Err(error) => notes.push(format!("GPU {index} is not offered: {error:#}")),
                    }
                }
            }
        }
        notes.extend(policy.notes(&inventory.gpus));
        let mut ports: Vec<Ports> = devices.iter().map(active_ports).collect();
        // Slices have no peers: MIG User Guide, "Application Considerations".
        let in_mig_mode = ports
            .iter()
            .zip(&inventory.gpus)
            .filter(|(_, gpu)| gpu.mig.is_some());
        let without: BTreeSet<PciAddress> = in_mig_mode.map(|(ports, _)| ports.address).collect();
        for ports in &mut ports {
            let own = without.contains(&ports.address);
            ports
                .active
                .retain(|port| !own && port.remote.is_none_or(|remote| !without.contains(&remote)));
        }
        for ((gpu, device), ports) in inventory.gpus.iter_mut().zip(&devices).zip(&ports) {
            gpu.nvlink_version = if ports.active.is_empty() {
                0
            } else {
                nvlink_version(device)
            };
        }
        let (links, broken) = links::matrix(
            &ports,
            &Driver {
                nvml: &self.nvml,
                devices: &devices,
                gpus: &inventory.gpus,
            },
        );
        if !broken.is_empty() {
            let pairs: Vec<String> = broken.iter().map(|(a, b)| format!("{a}-{b}")).collect();
            notes.push(format!(
                "the NVLinks between GPUs {} do not work: see `nvidia-smi nvlink -s`; \
                 hosts with NVSwitch need nvidia-fabricmanager running",
                pairs.join(", ")
            ));
        }
        inventory.links = links;
        inventory.nvlink_domain = fabric::domain(&self.nvml, &devices);
        inventory.gpu_note = notes.join("; ");
    }

    /// A GPU.
    pub(super) fn device(&self, uuid: &GpuUuid) -> Result<Device<'_>, NvmlError> {
        self.nvml.device_by_uuid(uuid.as_str())
    }

    /// A GPU in MIG mode, as it is now; none: it is not in MIG mode, or not there.
    pub fn mig_state(&self, uuid: &GpuUuid) -> anyhow::Result<Option<MigState>> {
        let device = match self.nvml.device_by_uuid(uuid.as_str()) {
            Err(NvmlError::NotFound) => return Ok(None),
            device => device.with_context(|| format!("GPU {uuid} does not answer"))?,
        };
        if !mig::is_on(&device) {
            return Ok(None);
        }
        let memory = self.memory(&device).unwrap_or(0);
        mig::look(&device, memory).map(Some)
    }

    /// The processes that use each GPU.
    pub fn processes(&self) -> anyhow::Result<BTreeMap<GpuUuid, Vec<Process>>> {
        let count = self.nvml.device_count().context("NVML does not count its GPUs")?;
        let mut used = BTreeMap::new();
        for index in 0..count {
            let device = self
                .nvml
                .device_by_index(index)
                .with_context(|| format!("GPU {index} does not answer"))?;
            let uuid = device
                .uuid()
                .with_context(|| format!("GPU {index} does not tell its UUID"))?;
            let uuid: GpuUuid = uuid.parse()?;
            let compute = match device.running_compute_processes() {
                // Drivers before 510 know only the second version of the call.
                Err(NvmlError::FailedToLoadSymbol(_)) => device.running_compute_processes_v2(),
                other => other,
            };
            let compute = compute.with_context(|| format!("{uuid} does not list its processes"))?;
            // Not every GPU and driver has MPS; where it is missing it hides nobody.
            let mps = device.mps_running_compute_processes().unwrap_or_default();
            let processes: BTreeSet<Process> = compute
                .iter()
                .chain(&mps)
                .map(|process| Process {
                    pid: process.pid,
                    gpu_instance: process.gpu_instance_id,
                })
                .collect();
            used.insert(uuid, processes.into_iter().collect());
        }
        Ok(used)
    }

    /// A GPU and what is known of it alone; an error when it cannot be named.
    fn gpu(&self, index: u32, sysfs: &Sysfs) -> anyhow::Result<(Device<'_>, GpuInfo)> {
        let device = self.nvml.device_by_index(index)?;
        let uuid = device.uuid().context("no UUID")?.parse()?;
        let pci_address = device.pci_info().map(|pci| pci.bus_id).unwrap_or_default();
        let (memory_bytes, drained) = match self.memory(&device) {
            Ok(bytes) => (bytes, None),
            // Its memory may be the host's; then there is no number, and nothing wrong.
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => (0, None),
            Err(error) => (0, Some(format!("NVML: {error}"))),
        };
        let gpu = GpuInfo {
            uuid,
            index,
            model: device.name().unwrap_or_else(|_| "NVIDIA GPU".into()),
            memory_bytes,
            numa_node: numa_node(&device).or_else(|| sysfs.numa_node(&pci_address)),
            minor: device.minor_number().ok(),
            mig: mig::is_on(&device).then(Mig::default),
            sharing: None,
            drained,
            cpu_affinity: cpu_affinity(&device).unwrap_or_else(|| sysfs.cpu_list(&pci_address)),
            nvlink_version: 0,
            pci_address,
        };
        Ok((device, gpu))
    }

    /// Total memory in bytes, by the call of old drivers where the new one is missing.
    fn memory(&self, device: &Device<'_>) -> Result<u64, NvmlError> {
        match device.memory_info() {
            Err(NvmlError::FailedToLoadSymbol(missing)) => {
                let symbol = self.nvml.lib().nvmlDeviceGetMemoryInfo.as_ref();
                let call = symbol.map_err(|_| NvmlError::FailedToLoadSymbol(missing))?;
                let mut memory = sys::nvmlMemory_t {
                    total: 0,
                    free: 0,
                    used: 0,
                };
                // SAFETY: the handle is of this library, and NVML writes one nvmlMemory_t.
                #[allow(unsafe_code)]
                let code = unsafe { call(device.handle(), &raw mut memory) };
                nvml_try(code).map(|()| memory.total)
            }
            other => other.map(|memory| memory.total),
        }
    }
}

/// The NUMA node that the GPU is attached to. (`nvmlDeviceGetNumaNodeId` is
/// something else: the node that the GPU's own memory forms on Grace Hopper.)
fn numa_node(device: &Device<'_>) -> Option<u32> {
    let nodes = device
        .memory_affinity(NUMA_WORDS, sys::NVML_AFFINITY_SCOPE_NODE)
        .ok()?;
    match set_bits(&nodes).as_slice() {
        [node] => Some(*node),
        _ => None,
    }
}

/// CPUs near to the GPU, as a kernel cpulist; none: the driver does not say.
fn cpu_affinity(device: &Device<'_>) -> Option<String> {
    let cpus: CpuSet = set_bits(&device.cpu_affinity(CPU_WORDS).ok()?)
        .into_iter()
        .collect();
    (!cpus.is_empty()).then(|| cpus.to_string())
}

fn set_bits(words: &[c_ulong]) -> Vec<u32> {
    let bit = |at: u32| words[(at / c_ulong::BITS) as usize] >> (at % c_ulong::BITS) & 1 == 1;
    (0..words.len() as u32 * c_ulong::BITS)
        .filter(|at| bit(*at))
        .collect()
}

/// The GPU's NVLinks that are up, and what they end at.
fn active_ports(device: &Device<'_>) -> Ports {
    let address = device
        .pci_info()
        .map(|pci| (pci.domain, pci.bus, pci.device))
        .unwrap_or_default();
    let mut active = Vec::new();
    for link in 0..MAX_NVLINKS {
        let wrapper = device.link_wrapper_for(link);
        match wrapper.is_active() {
            Ok(true) => {
                let remote = wrapper
                    .remote_pci_info()
                    .ok()
                    .map(|pci| (pci.domain, pci.bus, pci.device));
                // Hypervisors that hide the switches show an address of zeros.
                let remote = remote.filter(|address| *address != (0, 0, 0));
                active.push(Port {
                    far_end: far_end(device, link),
                    remote,
                });
            }
            Ok(false) | Err(NvmlError::InvalidArg | NvmlError::NotSupported) => {}
            // A GPU that does not answer would be asked, and waited for, 36 times.
            Err(_) => break,
        }
    }
    Ports { address, active }
}

/// The kind of an NVLink's other end. (nvml-wrapper's own `remote_device_type`
/// reads the answer into a temporary and always says unknown.)
fn far_end(device: &Device<'_>, link: u32) -> FarEnd {
    let Ok(call) = device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref() else {
        return FarEnd::Unknown;
    };
    let mut kind = sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    // SAFETY: the handle is of this library, and NVML writes one nvmlIntNvLinkDeviceType_t.
    #[allow(unsafe_code)]
    let code = unsafe { call(device.handle(), link, &raw mut kind) };
    match (nvml_try(code), kind) {
        (Ok(()), sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU) => FarEnd::Gpu,
        (Ok(()), sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH) => FarEnd::Switch,
        (Ok(()), sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU) => FarEnd::Processor,
        _ => FarEnd::Unknown,
    }
}

/// NVLink generation of a GPU that has one. The architecture decides it: some
/// drivers answer `nvmlDeviceGetNvLinkVersion` in another numbering than nvml.h's.
fn nvlink_version(device: &Device<'_>) -> u32 {
    match device.architecture() {
        Ok(DeviceArchitecture::Pascal) => 1,
        Ok(DeviceArchitecture::Volta | DeviceArchitecture::Turing) => 2,
        Ok(DeviceArchitecture::Ampere) => 3,
        Ok(DeviceArchitecture::Hopper) => 4,
        Ok(DeviceArchitecture::Blackwell) => 5,
        Ok(
            DeviceArchitecture::Kepler
            | DeviceArchitecture::Maxwell
            | DeviceArchitecture::Ada
            | DeviceArchitecture::Unknown,
        )
        | Err(_) => match device.link_wrapper_for(0).version() {
            Ok(sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_1_0) => 1,
            Ok(
                sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_0
                | sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_2,
            ) => 2,
            Ok(
                sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_0
                | sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_1,
            ) => 3,
            Ok(sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_4_0) => 4,
            Ok(sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_5_0) => 5,
            Ok(_) | Err(_) => 0,
        },
    }
}

/// The driver's word on pairs of GPUs.
struct Driver<'a> {
    nvml: &'a Nvml,
    devices: &'a [Device<'a>],
    gpus: &'a [GpuInfo],
}

impl Pairs for Driver<'_> {
    fn nvlink_works(&self, a: usize, b: usize) -> Option<bool> {
        match self.devices[a].p2p_status(&self.devices[b], P2pCapabilitiesIndex::NvLink) {
            Ok(P2pStatus::Ok) => Some(true),
            Ok(
                P2pStatus::ChipsetNotSupported
                | P2pStatus::GpuNotSupported
                | P2pStatus::IohTopologyNotSupported
                | P2pStatus::DisabledByRegkey
                | P2pStatus::NotSupported,
            ) => Some(false),
            Ok(P2pStatus::Unknown) | Err(_) => None,
        }
    }

    fn pcie(&self, a: usize, b: usize) -> Link {
        match self
            .nvml
            .topology_common_ancestor(&self.devices[a], &self.devices[b])
        {
            Ok(TopologyLevel::Internal | TopologyLevel::Single) => Link::Pix,
            Ok(TopologyLevel::Multiple) => Link::Pxb,
            Ok(TopologyLevel::HostBridge) => Link::Phb,
            Ok(TopologyLevel::Node) => Link::Node,
            Ok(TopologyLevel::System) => Link::Sys,
            Err(_) => numa_link(self.gpus[a].numa_node, self.gpus[b].numa_node),
        }
    }
}

/// The file that the dynamic linker took for a name, from this process's map.
fn loaded_path(asked: &Path) -> Option<String> {
    if asked.is_absolute() {
        return None;
    }
    let name = asked.file_name()?.to_str()?.trim_end_matches(".1").to_owned();
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut files = maps
        .lines()
        .filter_map(|line| line.split_once('/').map(|(_, path)| format!("/{path}")));
    files.find(|path| {
        path.rsplit('/')
            .next()
            .is_some_and(|file| file.starts_with(&name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_become_numbers() {
        let mut words = vec![0; CPU_WORDS];
        words[0] = 0b1011;
        words[1] = 1 << 63;
        words[2] = 1;
        assert_eq!(set_bits(&words), [0, 1, 3, 127, 128]);
    }

    #[test]
    fn a_library_that_is_not_there_is_named_in_the_note() {
        let Err(error) = Library::open(Some(Path::new("/nowhere/libnvidia-ml.so.1"))) else {
            panic!("it opened");
        };
        let note = error.note(&Sysfs::default());
        assert!(
            note.contains("/nowhere/libnvidia-ml.so.1") && note.contains("correct the path"),
            "{note}"
        );
    }
}
