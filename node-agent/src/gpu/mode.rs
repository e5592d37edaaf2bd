//! Compute modes: how many processes may have a context on a GPU ("CUDA C++ Programming Guide", Compute Modes).

use anyhow::{Context as _, Result};
use carrel_core::model::ids::GpuUuid;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::error::NvmlError;
use serde::{Deserialize, Serialize};

use super::{Library, NvmlSource};

/// How many processes may have a context on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Any number.
    Default,
    /// One, from one of its threads. Drivers of today do not have it.
    ExclusiveThread,
    /// One.
    ExclusiveProcess,
    /// None.
    Prohibited,
}

impl From<ComputeMode> for Mode {
    fn from(mode: ComputeMode) -> Self {
        match mode {
            ComputeMode::Default => Self::Default,
            ComputeMode::ExclusiveThread => Self::ExclusiveThread,
            ComputeMode::ExclusiveProcess => Self::ExclusiveProcess,
            ComputeMode::Prohibited => Self::Prohibited,
        }
    }
}

impl From<Mode> for ComputeMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Default => Self::Default,
            Mode::ExclusiveThread => Self::ExclusiveThread,
            Mode::ExclusiveProcess => Self::ExclusiveProcess,
            Mode::Prohibited => Self::Prohibited,
        }
    }
}

/// A GPU's compute mode. Blocks.
pub fn compute_mode(source: &NvmlSource, gpu: &GpuUuid) -> Result<Mode> {
    let library = Library::open(source.library.as_deref()).context("cannot ask for a GPU's compute mode")?;
    let mode = library.device(gpu).and_then(|device| device.compute_mode());
    mode.map(Mode::from)
        .with_context(|| format!("GPU {gpu} does not tell its compute mode"))
}

/// Sets a GPU's compute mode; false: it has fallen away, and has none. Blocks.
pub fn set_compute_mode(source: &NvmlSource, gpu: &GpuUuid, mode: Mode) -> Result<bool> {
    let library = Library::open(source.library.as_deref()).context("cannot set a GPU's compute mode")?;
    let set = library
        .device(gpu)
        .and_then(|mut device| device.set_compute_mode(mode.into()));
    match set {
        Ok(()) => Ok(true),
        Err(NvmlError::NotFound | NvmlError::GpuLost) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("GPU {gpu} does not take compute mode {mode:?}")),
    }
}
