//! A described host, ready to be asked.

use std::path::{Path, PathBuf};

use carrel_core::model::topology::{Link, Topology};

use crate::description::{Description, GpuDescription, Init, nvlinks};

/// A PCI address: domain, bus, device.
pub type PciAddress = (u32, u32, u32);

/// A host that NVML is asked about.
#[derive(Clone, Debug)]
pub struct Host {
    /// The file that it was read from.
    pub path: PathBuf,
    /// What tells it from other hosts of the description; may be empty.
    pub name: String,
    /// What the file says, with defaults filled in.
    pub description: Description,
    /// Links.
    pub topology: Topology,
    /// GPUs.
    pub gpus: Vec<Gpu>,
}

/// A GPU of a [`Host`].
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Position, and the driver's index.
    pub index: usize,
    /// UUID.
    pub uuid: String,
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    /// PCI address.
    pub pci: PciAddress,
    /// Product name.
    pub model: String,
    /// It has fallen off the bus.
    pub lost: bool,
    /// What each active NVLink ends at.
    pub nvlinks: Vec<FarEnd>,
}

/// The other end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarEnd {
    /// A GPU of this host.
    Gpu(PciAddress),
    /// An NVSwitch.
    Switch(PciAddress),
}

impl Host {
    /// Reads the host that `CARREL_FAKE_NVML` names.
    pub fn from_environment() -> Result<Self, String> {
        let path =
            std::env::var_os("CARREL_FAKE_NVML").ok_or("CARREL_FAKE_NVML names no description of a host")?;
        let name = std::env::var("CARREL_FAKE_NVML_HOST").unwrap_or_default();
        Self::read(Path::new(&path), &name)
    }

    /// Reads a description; `name` is mixed into the UUIDs unless empty.
    pub fn read(path: &Path, name: &str) -> Result<Self, String> {
        let path = path
            .canonicalize()
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let mut description = Description::read(&path)?;
        let mut host = if description.init == Init::Ok {
            let topology = description.read_topology(&path)?;
            description.complete(&topology);
            Self {
                path,
                name: name.to_owned(),
                description,
                topology,
                gpus: Vec::new(),
            }
        } else {
            return Ok(Self {
                path,
                name: name.to_owned(),
                description,
                topology: Topology::default(),
                gpus: Vec::new(),
            });
        };
        let count = host.topology.links.len();
        let special = host.description.gpus.len();
        if special > count {
            return Err(format!(
                "{}: {special} [[gpus]], but the topology has {count}",
                host.path.display()
            ));
        }
        for index in 0..count {
            let gpu = host.gpu(index, name)?;
            host.gpus.push(gpu);
        }
        for index in 0..count {
            host.gpus[index].nvlinks = host.far_ends(index);
        }
        Ok(host)
    }

    fn gpu(&self, index: usize, name: &str) -> Result<Gpu, String> {
        let special = self.description.gpus.get(index).cloned().unwrap_or_default();
        let GpuDescription {
            uuid,
            minor,
            pci,
            model,
            mig: _,
            lost,
            processes: _,
        } = special;
        let own = || uuid_of(&format!("{index}#{}", self.path.display()));
        let uuid = uuid.unwrap_or_else(own);
        let pci = match pci {
            // Buses below 8 are the switches'.
            None => (0, 8 + 8 * index as u32, 0),
            Some(text) => {
                pci_address(&text).ok_or_else(|| format!("{}: PCI address {text:?}", self.path.display()))?
            }
        };
        Ok(Gpu {
            index,
            uuid: if name.is_empty() {
                uuid
            } else {
                uuid_of(&format!("{name}/{uuid}"))
            },
            minor: minor.unwrap_or(index as u32),
            pci,
            model: model
                .or_else(|| self.description.model.clone())
                .unwrap_or_default(),
            lost,
            nvlinks: Vec::new(),
        })
    }

    fn far_ends(&self, gpu: usize) -> Vec<FarEnd> {
        let others = (0..self.gpus.len()).filter(|other| *other != gpu);
        let counts = others.map(|other| (other, nvlinks(&self.topology, gpu, other)));
        if self.description.nvswitch == Some(true) {
            // Four switches on Hopper's boards, six on those before.
            let most = counts.map(|(_, count)| count).max().unwrap_or(0);
            let switches = if most > 12 { 4 } else { 6 };
            return (0..most)
                .map(|link| FarEnd::Switch((0, 1 + link % switches, 0)))
                .collect();
        }
        counts
            .flat_map(|(other, count)| (0..count).map(move |_| FarEnd::Gpu(self.gpus[other].pci)))
            .collect()
    }

    /// The link between two GPUs without NVLink: what the text hides where it says NV#.
    pub fn pcie(&self, a: usize, b: usize) -> Link {
        let numa = &self.topology.numa_affinity;
        match self.topology.links.link(a, b) {
            Link::NvLink(_) if numa[a] == numa[b] => Link::Node,
            Link::NvLink(_) => Link::Sys,
            other => other,
        }
    }

    /// Memory of each GPU.
    pub fn memory_mib(&self) -> u64 {
        self.description.memory_mib.unwrap_or(0)
    }

    /// Processes that use a GPU now and live, with their MIG GPU instance: a dead process holds no GPU.
    pub fn processes(&self, gpu: &Gpu) -> Vec<(u32, Option<u32>)> {
        let now = Description::read(&self.path).unwrap_or_else(|_| self.description.clone());
        let named = |name: &str| name == gpu.uuid || name.parse() == Ok(gpu.index);
        let alive = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
        let all = now.processes(&self.path).into_iter();
        all.filter(|(name, pid, _)| named(name) && alive(*pid))
            .map(|(_, pid, instance)| (pid, instance))
            .collect()
    }

    /// How busy a GPU is now, in all and with processes: per cent of its time, and process ids.
    pub fn utilization(&self, gpu: &Gpu) -> (u32, Vec<(u32, u32)>) {
        let named = |name: &str| name == gpu.uuid || name.parse() == Ok(gpu.index);
        let all = self.description.utilization(&self.path).into_iter();
        let own: Vec<_> = all.filter(|(name, ..)| named(name)).collect();
        let said = own.iter().find(|(_, _, pid)| pid.is_none());
        let of_processes = own
            .iter()
            .filter_map(|(_, percent, pid)| Some(((*pid)?, *percent)));
        let of_processes: Vec<(u32, u32)> = of_processes.collect();
        let sum = of_processes.iter().map(|(_, percent)| percent).sum::<u32>();
        (
            said.map_or(sum, |(_, percent, _)| *percent).min(100),
            of_processes,
        )
    }

    /// Those of them in a MIG GPU instance.
    pub fn processes_in(&self, gpu: &Gpu, instance: Option<u32>) -> Vec<u32> {
        let mut all = self.processes(gpu);
        all.retain(|(_, of)| *of == instance);
        all.into_iter().map(|(pid, _)| pid).collect()
    }
}

impl Gpu {
    /// Address as NVML prints it.
    pub fn bus_id(&self) -> String {
        bus_id(self.pci)
    }
}

/// An address as NVML prints it: "00000000:1B:00.0".
pub fn bus_id((domain, bus, device): PciAddress) -> String {
    format!("{domain:08X}:{bus:02X}:{device:02X}.0")
}

/// Reads "00000000:1B:00.0", with any number of digits.
pub fn pci_address(text: &str) -> Option<PciAddress> {
    let hex = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.split(':');
    let address = (hex(parts.next()?)?, hex(parts.next()?)?, hex(parts.next()?)?);
    (parts.next().is_none() && function == "0").then_some(address)
}

/// A UUID that always comes from the same text.
pub(crate) fn uuid_of(text: &str) -> String {
    // FNV-1a, 128 bits: enough to tell hosts apart, and no dependency.
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = text
        .bytes()
        .fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    let hex = format!("{hash:032x}");
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_printed() {
        assert_eq!(pci_address("00000000:1B:00.0"), Some((0, 0x1b, 0)));
        assert_eq!(bus_id((0, 0x1b, 0)), "00000000:1B:00.0");
        assert_eq!(pci_address("1B:00.0"), None);
    }

    #[test]
    fn uuids_differ_by_text_and_stay() {
        assert_eq!(uuid_of("a"), uuid_of("a"));
        assert_ne!(uuid_of("a"), uuid_of("b"));
        assert_eq!(
            uuid_of("a").len(),
            "GPU-d228cb69-6f1a-8caf-7891-2b704e4a8964".len()
        );
    }
}
