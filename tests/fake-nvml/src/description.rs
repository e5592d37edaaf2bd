//! The file that describes a host.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use carrel_core::model::topology::{Link, Topology};
use serde::Deserialize;

use crate::host::{Gpu, Host};
use crate::mig::{Profile, State};

/// A described host. Only `topology` is needed; the rest has defaults that fit it.
///
/// ```toml
/// topology = "h100.txt"               # or the text itself, over several lines
/// model = "NVIDIA H100 80GB HBM3"
/// memory_mib = 81559
/// driver_version = "570.124.06"
/// nvlink_version = 4
/// nvswitch = true                     # NVLinks end at switches, not at GPUs
/// nvlink_works = true                 # false: as without the fabric manager
/// processes = "busy.txt"              # lines of "<index or UUID> <pid> [<MIG GPU instance>]"; need not exist
/// utilization = "busy"                # how busy GPUs are, "<index or UUID> <per cent> [<pid>]" a line; need not exist
/// mig_state = "mig"                   # what GPUs in MIG mode are cut into, once something has changed it
/// compute_modes = "modes"            # GPUs' compute modes, "<index> <NVML's number>" a line; need not exist
/// mig_faults = "faults"               # what `nvidia-smi mig` fails at; need not exist
/// init = "ok"                         # or driver-not-loaded, lib-rm-version-mismatch, no-permission
/// unsupported = ["nvmlDeviceGetMemoryAffinity"]   # calls that answer "not supported"
///
/// [[gpus]]                            # by position; each field is optional
/// uuid = "GPU-…"
/// minor = 0
/// pci = "00000000:1B:00.0"
/// model = "…"
/// mig = false                         # or true, or { mode = "on", instances = ["3g.40gb@4", "1g.10gb@0:"] }
/// lost = false                        # it has fallen off the bus
/// processes = [4711]
///
/// [fabric]                            # an NVLink domain that spans hosts
/// cluster = "00112233445566778899aabbccddeeff"
/// clique = 1
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// `nvidia-smi topo -m` text, or the path of a file with it, from the description's folder.
    #[serde(default)]
    pub topology: String,
    /// Product name of all GPUs.
    pub model: Option<String>,
    /// Memory of each GPU.
    pub memory_mib: Option<u64>,
    /// Driver version.
    pub driver_version: Option<String>,
    /// NVLink generation.
    pub nvlink_version: Option<u32>,
    /// NVLinks end at switches; by default when there are more than a GPU has.
    pub nvswitch: Option<bool>,
    /// Peer access over NVLink works; by default it does.
    pub nvlink_works: Option<bool>,
    /// File of processes, from the description's folder.
    pub processes: Option<PathBuf>,
    /// File of how busy GPUs are, in all or with a process, from the description's folder.
    pub utilization: Option<PathBuf>,
    /// File of what GPUs in MIG mode are cut into, from the description's folder; without it, that stays.
    pub mig_state: Option<PathBuf>,
    /// File of what `nvidia-smi mig` fails at, from the description's folder.
    pub mig_faults: Option<PathBuf>,
    /// File of compute modes, from the description's folder; without it, nobody may set them.
    pub compute_modes: Option<PathBuf>,
    /// What `nvmlInit` answers.
    #[serde(default)]
    pub init: Init,
    /// Calls that answer "not supported".
    #[serde(default)]
    pub unsupported: Vec<String>,
    /// GPUs, by position.
    #[serde(default)]
    pub gpus: Vec<GpuDescription>,
    /// NVLink domain.
    pub fabric: Option<Fabric>,
}

/// What is special about one GPU.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuDescription {
    /// UUID.
    pub uuid: Option<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// PCI address.
    pub pci: Option<String>,
    /// Product name.
    pub model: Option<String>,
    /// MIG.
    #[serde(default)]
    pub mig: MigDescription,
    /// It has fallen off the bus: its UUID is known, nothing else.
    #[serde(default)]
    pub lost: bool,
    /// Process ids that use it; listed while they live.
    #[serde(default)]
    pub processes: Vec<u32>,
}

/// MIG of a GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum MigDescription {
    /// MIG mode is on or off; there is no instance.
    Mode(bool),
    /// With instances.
    Cut {
        /// MIG mode.
        #[serde(default)]
        mode: MigMode,
        /// "3g.40gb@4": profile and first memory slice. With a colon, the slices of its compute instances
        /// follow ("3g.40gb@4:1,1"); without one, there is one over all of it.
        #[serde(default)]
        instances: Vec<String>,
    },
}

impl Default for MigDescription {
    fn default() -> Self {
        Self::Mode(false)
    }
}

/// MIG mode, now and after a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigMode {
    /// On.
    #[default]
    On,
    /// Off, and on after a reset.
    PendingOn,
    /// On, and off after a reset.
    PendingOff,
}

impl MigDescription {
    /// What the GPU is cut into; instances that cannot be are left out.
    pub fn state(&self, host: &Host, gpu: &Gpu) -> State {
        let (mode, instances) = match self {
            Self::Mode(false) => return State::default(),
            Self::Mode(true) => (MigMode::On, &[][..]),
            Self::Cut { mode, instances } => (*mode, &instances[..]),
        };
        let mut state = State {
            on: mode != MigMode::PendingOn,
            pending: mode != MigMode::PendingOff,
            instances: Vec::new(),
        };
        let geometry = host.geometry(gpu);
        for text in instances {
            let (place, parts) = text
                .split_once(':')
                .map_or((&text[..], None), |(a, b)| (a, Some(b)));
            let (name, start) = place.split_once('@').unwrap_or((place, "0"));
            let named = |profile: &&Profile| geometry.name(profile, host.memory_mib()) == name;
            let profile = geometry.profiles.iter().find(named);
            let (Some(profile), Ok(start)) = (profile, start.parse()) else {
                eprintln!("fake NVML: no instance {text:?}");
                continue;
            };
            let Ok(instance) = state.create(geometry, profile.id, start) else {
                eprintln!("fake NVML: no room for instance {text:?}");
                continue;
            };
            instance.parts = match parts {
                None => vec![profile.compute],
                Some(parts) => parts.split(',').filter_map(|part| part.parse().ok()).collect(),
            };
        }
        state
    }
}

/// What `nvmlInit` answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Init {
    /// Success.
    #[default]
    Ok,
    /// `NVML_ERROR_DRIVER_NOT_LOADED`.
    DriverNotLoaded,
    /// `NVML_ERROR_LIB_RM_VERSION_MISMATCH`.
    LibRmVersionMismatch,
    /// `NVML_ERROR_NO_PERMISSION`.
    NoPermission,
}

/// An NVLink domain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Its UUID: 32 hexadecimal digits.
    pub cluster: String,
    /// The clique in it.
    pub clique: u32,
}

/// What GPUs with such links usually are.
struct Usual {
    model: &'static str,
    memory_mib: u64,
    nvlink_version: u32,
}

impl Description {
    /// Reads a file: TOML, or `nvidia-smi topo -m` text.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let toml = path.extension().is_some_and(|extension| extension == "toml");
        if !toml {
            return Ok(Self {
                topology: text,
                ..Self::default()
            });
        }
        toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The topology, which stands in the description at `path` or in a file that it names.
    pub fn read_topology(&self, path: &Path) -> Result<Topology, String> {
        if self.topology.is_empty() {
            return Ok(Topology::default());
        }
        let in_place = self.topology.contains('\n');
        let (at, text) = if in_place {
            (path.to_owned(), self.topology.clone())
        } else {
            let file = beside(path, Path::new(&self.topology));
            let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            (file, text)
        };
        Topology::parse(&text).map_err(|error| format!("{}: {error}", at.display()))
    }

    /// Fills what is not given with what GPUs with such links usually are.
    pub fn complete(&mut self, topology: &Topology) {
        let usual = usual(topology);
        self.model.get_or_insert_with(|| usual.model.into());
        self.memory_mib.get_or_insert(usual.memory_mib);
        self.nvlink_version.get_or_insert(usual.nvlink_version);
        self.driver_version.get_or_insert_with(|| "570.124.06".into());
        // No GPU has more than 18 NVLinks, so more of them can only be switched.
        const MOST_LINKS: u32 = 18;
        let links = topology.links.len();
        let row = |gpu: usize| {
            (0..links)
                .filter(|other| *other != gpu)
                .map(|other| nvlinks(topology, gpu, other))
                .sum::<u32>()
        };
        self.nvswitch
            .get_or_insert_with(|| (0..links).any(|gpu| row(gpu) > MOST_LINKS));
        self.nvlink_works.get_or_insert(true);
    }

    /// The processes of each GPU now: (index or UUID, process id, MIG GPU instance).
    pub fn processes(&self, path: &Path) -> Vec<(String, u32, Option<u32>)> {
        let mut listed = Vec::new();
        for (index, gpu) in self.gpus.iter().enumerate() {
            listed.extend(gpu.processes.iter().map(|pid| (index.to_string(), *pid, None)));
        }
        let file = self
            .processes
            .as_ref()
            .and_then(|file| fs::read_to_string(beside(path, file)).ok());
        for line in file.unwrap_or_default().lines() {
            let mut words = line.split_whitespace();
            if let (Some(gpu), Some(Ok(pid))) = (words.next(), words.next().map(str::parse)) {
                let instance = words.next().and_then(|id| id.parse().ok());
                listed.push((gpu.to_owned(), pid, instance));
            }
        }
        listed
    }
}

impl Description {
    /// How busy GPUs are now: (index or UUID, per cent, with which process).
    pub fn utilization(&self, path: &Path) -> Vec<(String, u32, Option<u32>)> {
        let file = self
            .utilization
            .as_ref()
            .and_then(|file| fs::read_to_string(beside(path, file)).ok());
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let (gpu, percent) = (words.next()?, words.next()?.parse().ok()?);
            Some((
                gpu.to_owned(),
                percent,
                words.next().and_then(|pid| pid.parse().ok()),
            ))
        };
        file.unwrap_or_default().lines().filter_map(line).collect()
    }

    /// Compute modes other than the default, by index, as NVML numbers them; none: nobody may set them.
    pub fn compute_modes(&self, path: &Path) -> Option<BTreeMap<usize, u32>> {
        let file = beside(path, self.compute_modes.as_ref()?);
        let text = fs::read_to_string(file).unwrap_or_default();
        let mode = |line: &str| {
            let (index, mode) = line.split_once(' ')?;
            Some((index.parse().ok()?, mode.parse().ok()?))
        };
        Some(text.lines().filter_map(mode).collect())
    }

    /// Writes what [`Self::compute_modes`] reads.
    pub fn set_compute_modes(&self, path: &Path, modes: &BTreeMap<usize, u32>) -> Option<()> {
        let file = beside(path, self.compute_modes.as_ref()?);
        let text: String = modes
            .iter()
            .map(|(index, mode)| format!("{index} {mode}\n"))
            .collect();
        fs::write(file, text).ok()
    }
}

/// A path as written in the description at `description`.
fn beside(description: &Path, path: &Path) -> PathBuf {
    description.parent().unwrap_or(Path::new("")).join(path)
}

/// NVLinks between two GPUs.
pub fn nvlinks(topology: &Topology, a: usize, b: usize) -> u32 {
    match topology.links.link(a, b) {
        Link::NvLink(count) => u32::from(count),
        Link::Sys | Link::Node | Link::Phb | Link::Pxb | Link::Pix => 0,
    }
}

fn usual(topology: &Topology) -> Usual {
    let count = topology.links.upper().iter().max();
    let (model, memory_mib, nvlink_version) = match count {
        Some(Link::NvLink(18..)) if topology.links.len() == 4 => ("NVIDIA GB200", 189_471, 5),
        Some(Link::NvLink(13..)) => ("NVIDIA H100 80GB HBM3", 81_559, 4),
        Some(Link::NvLink(7..)) => ("NVIDIA A100-SXM4-80GB", 81_920, 3),
        Some(Link::NvLink(4)) => ("NVIDIA A100-SXM4-40GB", 40_960, 3),
        Some(Link::NvLink(_)) => ("Tesla V100-SXM2-32GB", 32_768, 2),
        Some(Link::Sys | Link::Node | Link::Phb | Link::Pxb | Link::Pix) | None => ("NVIDIA L40S", 46_068, 0),
    };
    Usual {
        model,
        memory_mib,
        nvlink_version,
    }
}
