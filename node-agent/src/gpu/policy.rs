//! What the operator lets be done with GPUs.

use std::fmt;
use std::path::PathBuf;

use carrel_core::model::gpu::GpuInfo;
use carrel_core::model::gpu_unit::Sharing;
use carrel_core::model::resources::model_matches;
use serde::Deserialize;

use crate::runtime::client::find_program;

/// What the operator lets be done with GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuPolicy {
    /// GPUs whose idle MIG instances may be removed to make others.
    pub recut: Chosen,
    /// `nvidia-smi`, which makes them; none: the one on PATH.
    pub nvidia_smi: Option<PathBuf>,
    /// GPUs that jobs may share, unless they are in MIG mode.
    pub shared: Chosen,
    /// How.
    pub sharing: Option<Sharing>,
    /// `nvidia-cuda-mps-control`; none: the one on PATH.
    pub mps_control: Option<PathBuf>,
}

impl GpuPolicy {
    /// `nvidia-smi`; none: it is not there.
    pub fn smi(&self) -> Option<PathBuf> {
        let named = self.nvidia_smi.clone();
        named
            .or_else(|| find_program("nvidia-smi"))
            .filter(|program| program.is_file())
    }

    /// `nvidia-cuda-mps-control`; none: it is not there.
    pub fn mps_control(&self) -> Option<PathBuf> {
        let named = self.mps_control.clone();
        named
            .or_else(|| find_program("nvidia-cuda-mps-control"))
            .filter(|program| program.is_file())
    }

    /// Whether idle instances of a GPU may be removed to make others.
    pub(super) fn may_cut(&self, gpu: &GpuInfo) -> bool {
        self.recut.has(gpu) && self.smi().is_some()
    }

    /// How jobs may share a GPU.
    pub fn sharing_of(&self, gpu: &GpuInfo) -> Option<Sharing> {
        let can = |sharing: &Sharing| match sharing {
            Sharing::TimeSlice => true,
            Sharing::Mps => self.mps_control().is_some(),
        };
        self.sharing
            .filter(|_| gpu.mig.is_none() && self.shared.has(gpu))
            .filter(can)
    }

    /// What is asked for of GPUs that cannot have it.
    pub(super) fn notes(&self, gpus: &[GpuInfo]) -> Vec<String> {
        let mut notes = Vec::new();
        let uncut = gpus.iter().any(|gpu| gpu.mig.is_some() && self.recut.has(gpu));
        if uncut && self.smi().is_none() {
            notes.push(
                "GPUs are not cut anew: nvidia-smi is not found; [mig] nvidia_smi can name it".to_owned(),
            );
        }
        let shared = gpus.iter().any(|gpu| gpu.mig.is_none() && self.shared.has(gpu));
        if shared && self.sharing == Some(Sharing::Mps) && self.mps_control().is_none() {
            notes.push(
                "GPUs are not shared by MPS: nvidia-cuda-mps-control is not found; [sharing] mps_control can name it"
                    .to_owned(),
            );
        }
        for (section, chosen) in [("[mig] recut", &self.recut), ("[sharing] gpus", &self.shared)] {
            let Chosen::These(names) = chosen else { continue };
            let absent = names.iter().filter(|name| !gpus.iter().any(|gpu| name.is(gpu)));
            notes.extend(
                absent.map(|name| format!("{section} names GPU {name}, which this host does not have")),
            );
        }
        if let Chosen::These(names) = &self.shared {
            let in_mig_mode = gpus
                .iter()
                .filter(|gpu| gpu.mig.is_some() && names.iter().any(|name| name.is(gpu)));
            notes.extend(in_mig_mode.map(|gpu| {
                format!(
                    "GPU {} is in MIG mode and is given in slices, not shared as [sharing] gpus says",
                    gpu.index
                )
            }));
        }
        notes
    }
}

/// Which GPUs of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Chosen {
    /// No GPU.
    #[default]
    None,
    /// Every one.
    All,
    /// These.
    These(Vec<GpuName>),
}

impl Chosen {
    /// Whether this is one of them.
    pub fn has(&self, gpu: &GpuInfo) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::These(names) => names.iter().any(|name| name.is(gpu)),
        }
    }

    /// Names that both have.
    pub fn common<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a GpuName> {
        let names = |chosen: &'a Self| match chosen {
            Self::None | Self::All => &[][..],
            Self::These(names) => names,
        };
        names(self).iter().filter(move |name| names(other).contains(name))
    }
}

/// A GPU, or several, as an operator names them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum GpuName {
    /// The driver's index.
    Index(u32),
    /// The driver's UUID; or a model, as users write it for `--gpus`.
    Text(String),
}

impl GpuName {
    fn is(&self, gpu: &GpuInfo) -> bool {
        match self {
            Self::Index(index) => *index == gpu.index,
            Self::Text(text) if text.starts_with("GPU-") => text == gpu.uuid.as_str(),
            Self::Text(text) => !text.is_empty() && model_matches(text, &gpu.model),
        }
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}
