//! GPUs into containers by the Container Device Interface, applied by ourselves.
//!
//! containerd 1.6 does it for Kubernetes only. A specification (files in
//! `/etc/cdi` and `/var/run/cdi`, see <https://github.com/cncf-tags/container-device-interface>,
//! `SPEC.md`) says what a device needs in a container: device nodes, mounts,
//! environment, hooks. `nvidia-ctk cdi generate` writes one for a host's GPUs.
//! Without one for `nvidia.com/gpu`, `generate` makes the edits from what the
//! host has. A GPU that neither describes is refused with the reason: a
//! container without the driver's libraries has a CUDA that finds no GPU.
//!
//! # A specification for a described host
//!
//! Tests and `./dev try --described` have GPUs that NVML describes but no
//! device exists for. They put a file such as this one in a directory of
//! [`Cdi::new`], with one device for each GPU, named by its UUID:
//!
//! ```json
//! {
//!   "cdiVersion": "0.5.0",
//!   "kind": "nvidia.com/gpu",
//!   "devices": [
//!     {
//!       "name": "GPU-00000000-0000-0000-0000-000000000000",
//!       "containerEdits": {
//!         "deviceNodes": [
//!           {"path": "/dev/nvidia0", "type": "c", "major": 60, "minor": 0, "fileMode": 438}
//!         ]
//!       }
//!     }
//!   ],
//!   "containerEdits": {
//!     "deviceNodes": [
//!       {"path": "/dev/nvidiactl", "type": "c", "major": 1, "minor": 3, "fileMode": 438}
//!     ]
//!   }
//! }
//! ```
//!
//! With `type`, `major` and `minor` given, nothing need exist on the host: majors 60 to 63 are nobody's
//! (Linux, `admin-guide/devices.txt`, "LOCAL/EXPERIMENTAL USE"), so that a container in which a node
//! is its own gets "no such device" and any other "not permitted"; 1:3 is `/dev/null`. Each GPU needs a
//! number of its own: a fence cannot tell two with one number apart. The node's number is the GPU's minor number where NVML says
//! one, else its index: a specification whose `/dev/nvidiaN` is another GPU's
//! is refused.
//!
//! # MIG devices
//!
//! A slice is the GPU's node and two capability nodes. A specification's device counts where it is named by the
//! MIG device's UUID, or by the indices of the GPU and of the device on it ("0:3"), and has exactly the nodes
//! that the driver says are the slice's: indices move with each cut, and specifications are not renewed by it.
//! Otherwise the nodes are the driver's, and the rest is as for any GPU.

mod capabilities;
mod generate;
mod registry;
mod spec;

use std::path::{Path, PathBuf};

use anyhow::Result;
use carrel_core::model::gpu::GpuInfo;
use carrel_core::model::ids::GpuUuid;

use crate::gpu::Given;

pub use spec::{ContainerEdits, DeviceNode, Hook, Mount};

/// Where specifications lie by default; later directories take precedence.
pub const DEFAULT_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Where the driver's libraries appear in a container when we place them.
///
/// They are not put among the image's own libraries: that would leave empty
/// files in a session's kept changes, and an image's ld cache cannot be renewed
/// without a program in it. `LD_LIBRARY_PATH` finds them in any image.
pub const LIBRARY_DIR: &str = "/.carrel/nvidia/lib";
/// Where the driver's programs (nvidia-smi) appear then; on PATH.
pub const PROGRAM_DIR: &str = "/.carrel/nvidia/bin";

/// The way from GPUs to what a container needs for them.
#[derive(Clone, Debug)]
pub struct Cdi {
    dirs: Vec<PathBuf>,
}

impl Cdi {
    /// Reads specifications from these directories; each time anew, since they
    /// change with the driver.
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        Self { dirs }
    }

    /// What a container needs to reach these GPUs, and no other. Blocks on files
    /// and, without a specification, on `ldconfig`.
    ///
    /// # Errors
    /// A GPU is described nowhere, or its description is another GPU's.
    pub fn edits(&self, gpus: &[Given]) -> Result<ContainerEdits> {
        if gpus.is_empty() {
            return Ok(ContainerEdits::default());
        }
        let proc = Path::new(capabilities::PROC);
        match registry::edits(&self.dirs, proc, gpus)? {
            Some(edits) => Ok(edits),
            None => generate::edits(proc, gpus),
        }
    }

    /// The device nodes of all MIG devices, with names for people; as far as they are known. Blocks on files.
    pub fn slice_nodes(&self) -> Vec<(String, DeviceNode)> {
        let mut nodes = registry::slice_nodes(&self.dirs);
        nodes.extend(capabilities::all(Path::new(capabilities::PROC)));
        nodes
    }

    /// The device nodes of each of these GPUs, with the GPU's index; as far as they are known. Blocks on files.
    pub fn device_nodes(&self, gpus: &[GpuInfo]) -> Vec<(u32, DeviceNode)> {
        registry::device_nodes(&self.dirs, gpus)
    }

    /// The environment by which programs find these GPUs, in the container's order:
    /// what the specification says, and the UUIDs (of MIG devices, theirs), which are valid on both sides.
    /// To be merged into the environment of every process.
    pub fn environment(&self, gpus: &[Given]) -> Result<Vec<(String, String)>> {
        let edits = self.edits(gpus)?;
        Ok(environment_of(&edits, gpus))
    }
}

/// As [`Cdi::environment`], of edits at hand.
pub(crate) fn environment_of(edits: &ContainerEdits, gpus: &[Given]) -> Vec<(String, String)> {
    let said = edits.env.iter().filter_map(|line| line.split_once('='));
    let mut env: Vec<(String, String)> = said
        .filter(|(name, _)| !VISIBLE.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let uuids: Vec<GpuUuid> = gpus.iter().map(|given| given.visible().clone()).collect();
    env.extend(visible(&uuids));
    env
}

/// Variables that name the GPUs, or MIG devices, which programs may use.
const VISIBLE: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];

/// The environment that names these GPUs or MIG devices.
pub(crate) fn visible(uuids: &[GpuUuid]) -> Vec<(String, String)> {
    if uuids.is_empty() {
        // CUDA images say "all".
        return vec![("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())];
    }
    // Two shares of a GPU are one device.
    let mut once: Vec<&str> = Vec::with_capacity(uuids.len());
    for uuid in uuids.iter().map(GpuUuid::as_str) {
        if !once.contains(&uuid) {
            once.push(uuid);
        }
    }
    VISIBLE.map(|name| (name.to_owned(), once.join(","))).to_vec()
}
