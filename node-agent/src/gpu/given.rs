//! What of a GPU a container is given.

use carrel_core::model::gpu::GpuInfo;
use carrel_core::model::ids::GpuUuid;

use super::MigDevice;

/// What of a GPU a container is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The GPU.
    pub gpu: GpuInfo,
    /// Its MIG device; none: the GPU itself, alone or beside others.
    pub slice: Option<GivenSlice>,
}

/// A MIG device that a container is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenSlice {
    /// The driver's number of its GPU instance.
    pub gpu_instance: u32,
    /// The device.
    pub device: MigDevice,
}

impl Given {
    /// By what programs find it: the driver's UUID of the GPU, or of the MIG device.
    pub fn visible(&self) -> &GpuUuid {
        self.slice
            .as_ref()
            .map_or(&self.gpu.uuid, |slice| &slice.device.uuid)
    }

    /// N of the GPU's `/dev/nvidiaN`.
    pub fn minor(&self) -> u32 {
        self.gpu.minor.unwrap_or(self.gpu.index)
    }
}

impl From<GpuInfo> for Given {
    fn from(gpu: GpuInfo) -> Self {
        Self { gpu, slice: None }
    }
}
