//! What a share by MPS is in MPS's own terms.
//!
//! MPS limits processes, not containers: the threads of the GPU that a client can have at once, in per cent, and the
//! memory that it can allocate. What the environment says can only be less than what the daemon says ("CUDA
//! Multi-Process Service", Volta MPS Execution Resource Provisioning, Volta MPS Device Memory Limit).

use carrel_core::model::gpu::{GpuInfo, Inventory};
use carrel_core::model::gpu_unit::{GpuUnit, Sharing, Slice, WHOLE_MILLI};

use super::control::PIPES;

/// The most that one client may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Limits {
    /// Threads, per cent of the GPU's, 1 to 100.
    pub percent: u16,
    /// Memory, MiB; none: how much the GPU has is not known.
    pub memory_mib: Option<u64>,
}

impl Limits {
    /// Those of so many thousandths of a GPU: threads rounded up, memory down, neither to nothing.
    pub fn of(gpu: &GpuInfo, milli: u16) -> Self {
        let memory = (u128::from(gpu.memory_bytes) * u128::from(milli) / u128::from(WHOLE_MILLI)) >> 20;
        Self {
            percent: milli.div_ceil(10).clamp(1, 100),
            memory_mib: (gpu.memory_bytes > 0).then(|| u64::try_from(memory).unwrap_or(u64::MAX).max(1)),
        }
    }
}

/// Thousandths of a share by MPS; none: it is something else.
pub(super) fn milli(unit: &GpuUnit) -> Option<u16> {
    match &unit.slice {
        Slice::Share {
            milli,
            sharing: Sharing::Mps,
        } => Some(*milli),
        Slice::Share {
            sharing: Sharing::TimeSlice,
            ..
        }
        | Slice::Whole
        | Slice::Mig { .. } => None,
    }
}

/// Variables by which a job's programs find the daemon of its share, and keep to it.
pub(crate) fn environment(inventory: &Inventory, units: &[GpuUnit]) -> Vec<(String, String)> {
    let Some((unit, milli)) = units.iter().find_map(|unit| Some((unit, milli(unit)?))) else {
        return Vec::new();
    };
    let mut env = vec![("CUDA_MPS_PIPE_DIRECTORY".to_owned(), PIPES.to_owned())];
    let Some(gpu) = inventory.gpus.iter().find(|gpu| gpu.uuid == unit.gpu) else {
        return env;
    };
    let Limits { percent, memory_mib } = Limits::of(gpu, milli);
    env.push((
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(),
        percent.to_string(),
    ));
    if let Some(memory) = memory_mib {
        // Device 0: the container has no other.
        env.push((
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(),
            format!("0={memory}M"),
        ));
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(memory_bytes: u64) -> GpuInfo {
        GpuInfo {
            uuid: "GPU-1".parse().expect("a UUID"),
            index: 0,
            model: "NVIDIA H100".into(),
            memory_bytes,
            pci_address: String::new(),
            numa_node: None,
            minor: None,
            mig: None,
            sharing: Some(Sharing::Mps),
            drained: None,
            cpu_affinity: String::new(),
            nvlink_version: 0,
        }
    }

    #[test]
    fn limits_are_the_share_and_never_nothing() {
        let of = |memory, milli| {
            let Limits { percent, memory_mib } = Limits::of(&gpu(memory), milli);
            (percent, memory_mib)
        };
        assert_eq!(of(80 << 30, 500), (50, Some(40 << 10)));
        assert_eq!(of(80 << 30, 1), (1, Some(81)));
        assert_eq!(of(80 << 30, 333), (34, Some(27_279)));
        assert_eq!(of(80 << 30, 999), (100, Some(81_838)));
        assert_eq!(of(1 << 20, 1), (1, Some(1)));
        assert_eq!(of(u64::MAX, 999), (100, Some(17_574_593_858_371)));
        assert_eq!(of(0, 500), (50, None));
    }

    #[test]
    fn programs_find_the_daemon_by_their_environment() {
        let inventory = Inventory {
            gpus: vec![gpu(80 << 30)],
            ..Inventory::default()
        };
        let env = |unit: &str| environment(&inventory, &[unit.parse().expect("a unit")]);
        let text: Vec<String> = env("GPU-1:250/1000,mps")
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            text,
            [
                "CUDA_MPS_PIPE_DIRECTORY=/dev/shm/nvidia-mps",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M",
            ]
        );
        assert_eq!(env("GPU-1:250/1000,time-slice"), []);
        assert_eq!(env("GPU-1"), []);
    }
}
