//! What a host has.

use std::collections::BTreeSet;

use carrel_core::model::features::{MAX_FEATURES, is_feature};
use carrel_core::model::gpu::{GpuInfo, Inventory, NicInfo};
use carrel_core::model::gpu_unit::Sharing;
use carrel_core::model::topology::{Link, LinkMatrix};

use super::{ConvertError, text};
use crate::v1::{self, LinkKind};

/// Most GPUs of a node that are looked at: the largest hosts have 16, each in at most 8 slices.
const MAX_GPUS: usize = 256;

fn kind(link: Link) -> LinkKind {
    match link {
        Link::Sys => LinkKind::Sys,
        Link::Node => LinkKind::Node,
        Link::Phb => LinkKind::Phb,
        Link::Pxb => LinkKind::Pxb,
        Link::Pix => LinkKind::Pix,
        Link::NvLink(_) => LinkKind::Nvlink,
    }
}

fn link(value: i32, nvlinks: u32) -> Result<Link, ConvertError> {
    match LinkKind::try_from(value) {
        Ok(LinkKind::Sys) => Ok(Link::Sys),
        Ok(LinkKind::Node) => Ok(Link::Node),
        Ok(LinkKind::Phb) => Ok(Link::Phb),
        Ok(LinkKind::Pxb) => Ok(Link::Pxb),
        Ok(LinkKind::Pix) => Ok(Link::Pix),
        Ok(LinkKind::Nvlink) => match u8::try_from(nvlinks) {
            Ok(count) if count > 0 => Ok(Link::NvLink(count)),
            _ => Err(ConvertError::Invalid {
                field: "nvlinks",
                why: "1 to 255 for a link by NVLink",
            }),
        },
        Ok(LinkKind::Unspecified) | Err(_) => Err(ConvertError::Unknown {
            field: "link kind",
            value,
        }),
    }
}

impl From<Link> for v1::Link {
    fn from(link: Link) -> Self {
        let nvlinks = match link {
            Link::NvLink(count) => u32::from(count),
            Link::Sys | Link::Node | Link::Phb | Link::Pxb | Link::Pix => 0,
        };
        Self {
            kind: kind(link).into(),
            nvlinks,
        }
    }
}

impl TryFrom<v1::Link> for Link {
    type Error = ConvertError;

    fn try_from(message: v1::Link) -> Result<Self, ConvertError> {
        link(message.kind, message.nvlinks)
    }
}

impl From<&GpuInfo> for v1::GpuInfo {
    fn from(gpu: &GpuInfo) -> Self {
        Self {
            uuid: gpu.uuid.to_string(),
            index: gpu.index,
            model: gpu.model.clone(),
            memory_bytes: gpu.memory_bytes,
            pci_address: gpu.pci_address.clone(),
            numa_node: gpu.numa_node,
            minor: gpu.minor,
            mig: gpu.mig.as_ref().map(Into::into),
            sharing: sharing_message(gpu.sharing).into(),
            drained: gpu.drained.clone().unwrap_or_default(),
            cpu_affinity: gpu.cpu_affinity.clone(),
            nvlink_version: gpu.nvlink_version,
        }
    }
}

impl TryFrom<v1::GpuInfo> for GpuInfo {
    type Error = ConvertError;

    fn try_from(gpu: v1::GpuInfo) -> Result<Self, ConvertError> {
        Ok(Self {
            uuid: gpu.uuid.parse()?,
            index: gpu.index,
            model: text(gpu.model),
            memory_bytes: gpu.memory_bytes,
            pci_address: text(gpu.pci_address),
            numa_node: gpu.numa_node,
            minor: gpu.minor,
            mig: gpu.mig.map(TryInto::try_into).transpose()?,
            sharing: sharing(gpu.sharing)?,
            drained: (!gpu.drained.is_empty()).then(|| text(gpu.drained)),
            cpu_affinity: text(gpu.cpu_affinity),
            nvlink_version: gpu.nvlink_version,
        })
    }
}

/// No sharing is unspecified.
pub(super) fn sharing_message(sharing: Option<Sharing>) -> v1::Sharing {
    match sharing {
        None => v1::Sharing::Unspecified,
        Some(Sharing::TimeSlice) => v1::Sharing::TimeSlice,
        Some(Sharing::Mps) => v1::Sharing::Mps,
    }
}

pub(super) fn sharing(value: i32) -> Result<Option<Sharing>, ConvertError> {
    match v1::Sharing::try_from(value) {
        Ok(v1::Sharing::Unspecified) => Ok(None),
        Ok(v1::Sharing::TimeSlice) => Ok(Some(Sharing::TimeSlice)),
        Ok(v1::Sharing::Mps) => Ok(Some(Sharing::Mps)),
        Err(_) => Err(ConvertError::Unknown {
            field: "sharing",
            value,
        }),
    }
}

impl From<&NicInfo> for v1::NicInfo {
    fn from(nic: &NicInfo) -> Self {
        Self {
            name: nic.name.clone(),
            gpu_links: nic.gpu_links.iter().map(|link| kind(*link).into()).collect(),
            numa_node: nic.numa_node,
        }
    }
}

fn nic(message: v1::NicInfo, gpus: usize) -> Result<NicInfo, ConvertError> {
    if message.gpu_links.len() != gpus {
        return Err(ConvertError::Invalid {
            field: "NIC's GPU links",
            why: "one for each GPU",
        });
    }
    let links = message.gpu_links.into_iter().map(|value| link(value, 0));
    Ok(NicInfo {
        name: text(message.name),
        gpu_links: links.collect::<Result<_, _>>()?,
        numa_node: message.numa_node,
    })
}

fn features(names: Vec<String>) -> Result<BTreeSet<String>, ConvertError> {
    if names.len() > MAX_FEATURES || !names.iter().all(|name| is_feature(name)) {
        return Err(ConvertError::Invalid {
            field: "node's features",
            why: "at most 64, each of 1 to 64 letters, digits and . _ - = + : / @",
        });
    }
    Ok(names.into_iter().collect())
}

impl From<&Inventory> for v1::Inventory {
    fn from(inventory: &Inventory) -> Self {
        Self {
            cpus: inventory.cpus,
            memory_bytes: inventory.memory_bytes,
            gpus: inventory.gpus.iter().map(Into::into).collect(),
            gpu_links: inventory
                .links
                .upper()
                .iter()
                .map(|link| (*link).into())
                .collect(),
            nics: inventory.nics.iter().map(Into::into).collect(),
            driver_version: inventory.driver_version.clone(),
            os: inventory.os.clone(),
            gpu_note: inventory.gpu_note.clone(),
            nvml_library: inventory.nvml_library.clone(),
            isolation: inventory.isolation.clone(),
            no_root: inventory.no_root.clone(),
            features: inventory.features.iter().cloned().collect(),
            nvlink_domain: inventory.nvlink_domain.clone(),
            reach: Some((&inventory.reach).into()),
        }
    }
}

impl TryFrom<v1::Inventory> for Inventory {
    type Error = ConvertError;

    fn try_from(message: v1::Inventory) -> Result<Self, ConvertError> {
        let invalid = |field, why| ConvertError::Invalid { field, why };
        let count = message.gpus.len();
        if count > MAX_GPUS {
            return Err(invalid("GPUs", "at most 256"));
        }
        let gpus = message.gpus.into_iter().map(TryInto::try_into);
        let gpus: Vec<GpuInfo> = gpus.collect::<Result<_, _>>()?;
        let mut pairs = gpus.iter().enumerate();
        if pairs.any(|(n, gpu)| gpus[..n].iter().any(|other| other.uuid == gpu.uuid)) {
            return Err(invalid("GPUs", "each UUID once"));
        }
        let upper = message.gpu_links.into_iter().map(TryInto::try_into);
        let upper: Vec<Link> = upper.collect::<Result<_, _>>()?;
        let links = LinkMatrix::from_upper(count, upper)
            .ok_or_else(|| invalid("GPU links", "one for each pair of GPUs"))?;
        let nics = message.nics.into_iter().map(|message| nic(message, count));
        Ok(Self {
            cpus: message.cpus,
            memory_bytes: message.memory_bytes,
            gpus,
            links,
            nics: nics.collect::<Result<_, _>>()?,
            driver_version: text(message.driver_version),
            os: text(message.os),
            gpu_note: text(message.gpu_note),
            nvml_library: text(message.nvml_library),
            isolation: text(message.isolation),
            no_root: text(message.no_root),
            features: features(message.features)?,
            nvlink_domain: text(message.nvlink_domain),
            reach: message.reach.unwrap_or_default().try_into()?,
        })
    }
}
