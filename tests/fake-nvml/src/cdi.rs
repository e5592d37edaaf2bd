//! A CDI specification for a described host, as `nvidia-ctk cdi generate` makes one for a real one; with every
//! MIG device that its GPUs could be cut into.
//!
//! Nobody drives majors 60 and 61: opening a node says "no such device" where it is the container's own, and
//! "not permitted" where it is not.

use crate::host::Host;
use crate::mig::Instance;

/// Majors of GPUs' nodes, and of capabilities'.
const GPU_MAJOR: u32 = 60;
const CAPABILITY_MAJOR: u32 = 61;
/// Minor of what all GPUs share.
const CONTROL: u32 = 255;
/// Capabilities of a GPU: two for each profile at each start.
const OF_GPU: u32 = 256;

fn node(path: &str, major: u32, minor: u32) -> String {
    format!(r#"{{"path": "{path}", "type": "c", "major": {major}, "minor": {minor}, "fileMode": 438}}"#)
}

fn device(name: &str, nodes: &[String]) -> String {
    let nodes = nodes.join(", ");
    format!(r#"{{"name": "{name}", "containerEdits": {{"deviceNodes": [{nodes}]}}}}"#)
}

/// The specification, JSON.
pub fn specification(host: &Host) -> String {
    let mut devices = Vec::new();
    for gpu in &host.gpus {
        let own = node(&format!("/dev/nvidia{}", gpu.minor), GPU_MAJOR, gpu.minor);
        devices.push(device(&gpu.uuid, std::slice::from_ref(&own)));
        let can_be_cut = host.description.mig_state.is_some() || host.mig(gpu).on;
        let profiles = host.geometry(gpu).profiles.iter().enumerate();
        for (kind, profile) in profiles.filter(|_| can_be_cut) {
            for start in profile.starts {
                let first = gpu.index as u32 * OF_GPU + (kind as u32 * 8 + start) * 2;
                let instance = Instance {
                    profile: profile.id,
                    start: *start,
                    parts: vec![profile.compute],
                };
                let capability = |minor: u32| {
                    let path = format!("/dev/nvidia-caps/nvidia-cap{minor}");
                    node(&path, CAPABILITY_MAJOR, minor)
                };
                let nodes = [own.clone(), capability(first + 1), capability(first + 2)];
                devices.push(device(&host.mig_uuid(gpu, &instance, 0), &nodes));
            }
        }
    }
    let shared = node("/dev/nvidiactl", GPU_MAJOR, CONTROL);
    format!(
        "{{\"cdiVersion\": \"0.5.0\", \"kind\": \"nvidia.com/gpu\", \"devices\": [\n{}\n], \
         \"containerEdits\": {{\"deviceNodes\": [{shared}]}}}}\n",
        devices.join(",\n")
    )
}
