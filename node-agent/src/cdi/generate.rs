//! Edits for hosts without a CDI specification, from what the host has.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::spec::{ContainerEdits, DeviceNode, Mount};
use super::{LIBRARY_DIR, PROGRAM_DIR, capabilities};
use crate::gpu::Given;
use crate::runtime::client::find_program;

/// Device nodes that serve all GPUs; the first is a must.
const SHARED_NODES: [&str; 4] = [
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
];

/// Libraries of the driver, as libnvidia-container and nvidia-container-toolkit know them
/// (compute, utility and video capabilities).
const LIBRARIES: [&str; 18] = [
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-ml.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-nvvm.so",
    "libnvidia-nvvm70.so",
    "libnvidia-opencl.so",
    "libnvidia-gpucomp.so",
    "libnvidia-cfg.so",
    "libnvidia-allocator.so",
    "libnvidia-pkcs11.so",
    "libnvidia-pkcs11-openssl3.so",
    "libnvidia-nscq.so",
    "libnvidia-sandboxutils.so",
    "libnvidia-encode.so",
    "libnvidia-opticalflow.so",
    "libnvcuvid.so",
    "libvdpau_nvidia.so",
];
/// Without it nothing works.
const REQUIRED_LIBRARY: &str = "libcuda.so.1";

/// Directories that may hold them though the ld cache does not say so.
const LIBRARY_DIRS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/usr/lib",
];

const PROGRAMS: [&str; 3] = ["nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control"];
/// Sockets and files of services on the host.
const SERVICES: [&str; 2] = [
    "/run/nvidia-persistenced/socket",
    "/run/nvidia-fabricmanager/socket",
];

/// The edits for these GPUs, or why there can be none.
pub(super) fn edits(proc: &Path, gpus: &[Given]) -> Result<ContainerEdits> {
    let mut edits = ContainerEdits::default();
    for given in gpus {
        let gpu = &given.gpu;
        let path = format!("/dev/nvidia{}", given.minor());
        ensure!(
            is_device(Path::new(&path)),
            "GPU {} ({}) has no device node {path} and no CDI specification: load the driver (nvidia-modprobe), or put \
             a specification in /etc/cdi with `nvidia-ctk cdi generate`",
            gpu.index,
            gpu.uuid
        );
        let mut nodes = vec![node(path)];
        nodes.extend(slice_nodes(proc, given)?);
        edits.merge(&ContainerEdits {
            device_nodes: nodes,
            ..ContainerEdits::default()
        });
    }
    for (index, path) in SHARED_NODES.into_iter().enumerate() {
        if is_device(Path::new(path)) {
            edits.device_nodes.push(node(path.to_owned()));
        } else if index == 0 {
            bail!("{path} is missing: load the driver (nvidia-modprobe)");
        }
    }
    let libraries = libraries().context("looking for the driver's libraries")?;
    ensure!(
        libraries.contains_key(REQUIRED_LIBRARY),
        "{REQUIRED_LIBRARY} is not on this host, so that CUDA would find no GPU: install the driver's libraries \
         (Debian: libcuda1), or put a CDI specification in /etc/cdi"
    );
    edits.mounts.extend(
        libraries
            .into_iter()
            .map(|(name, path)| bind(&path, &format!("{LIBRARY_DIR}/{name}"))),
    );
    let programs = PROGRAMS.into_iter().filter_map(find_program);
    edits.mounts.extend(programs.map(|path| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        bind(&path, &format!("{PROGRAM_DIR}/{name}"))
    }));
    let services = SERVICES.into_iter().filter(|path| Path::new(path).exists());
    edits
        .mounts
        .extend(services.map(|path| bind(Path::new(path), path)));
    Ok(edits)
}

/// The capability nodes of a slice; none for a GPU itself.
pub(super) fn slice_nodes(proc: &Path, given: &Given) -> Result<Vec<DeviceNode>> {
    let Some(slice) = &given.slice else {
        return Ok(Vec::new());
    };
    let (gpu, compute) = (slice.gpu_instance, slice.device.compute_instance);
    let nodes = capabilities::of(proc, given.minor(), gpu, compute);
    let nodes = nodes.with_context(|| {
        format!(
            "the driver does not say what gives access to MIG device {} \
             ({}/driver/nvidia/capabilities/gpu{}/mig/gi{gpu}/ci{compute}/access), and no CDI specification names it",
            slice.device.uuid,
            proc.display(),
            given.minor()
        )
    })?;
    Ok(nodes.into())
}

fn node(path: String) -> DeviceNode {
    DeviceNode {
        path,
        ..DeviceNode::default()
    }
}

fn bind(host: &Path, container: &str) -> Mount {
    let options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
        .map(str::to_owned)
        .to_vec();
    Mount {
        host_path: host.display().to_string(),
        container_path: container.to_owned(),
        options,
        kind: String::new(),
    }
}

fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_char_device())
}

/// The driver's libraries: the name that programs ask for (its soname, and the name without
/// a version for those that are opened by it), and the file.
fn libraries() -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    if let Some(ldconfig) = find_program("ldconfig") {
        let listed = Command::new(ldconfig)
            .arg("-p")
            .output()
            .context("running ldconfig -p")?;
        found = cached(&String::from_utf8_lossy(&listed.stdout));
    }
    for dir in LIBRARY_DIRS {
        let Ok(listed) = fs::read_dir(dir) else { continue };
        for entry in listed {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if is_drivers(&name) {
                found.entry(name).or_insert(path);
            }
        }
    }
    // A link is replaced by what it names: only that is mounted.
    let resolved = found
        .into_iter()
        .filter_map(|(name, path)| Some((name, fs::canonicalize(path).ok()?)));
    Ok(resolved.collect())
}

/// Reads `ldconfig -p`: "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1".
fn cached(listing: &str) -> BTreeMap<String, PathBuf> {
    let wanted = match std::env::consts::ARCH {
        "x86_64" => "x86-64",
        "aarch64" => "AArch64",
        other => other,
    };
    let mut found = BTreeMap::new();
    for line in listing.lines() {
        let Some((name, path)) = line.trim().split_once(" => ") else {
            continue;
        };
        let (name, kind) = name.split_once(' ').unwrap_or((name, ""));
        if is_drivers(name) && kind.contains(wanted) {
            found
                .entry(name.to_owned())
                .or_insert_with(|| PathBuf::from(path));
        }
    }
    found
}

/// One of [`LIBRARIES`] with at most one number after it: the whole version is the file itself.
fn is_drivers(name: &str) -> bool {
    LIBRARIES.into_iter().any(|library| {
        name.strip_prefix(library)
            .is_some_and(|rest| match rest.strip_prefix('.') {
                Some(version) => version.bytes().all(|byte| byte.is_ascii_digit()),
                None => rest.is_empty(),
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sonames_are_taken_and_full_versions_and_foreign_architectures_are_not() {
        let arch = if cfg!(target_arch = "aarch64") {
            "AArch64"
        } else {
            "x86-64"
        };
        let listing = format!(
            "2 libs found in cache `/etc/ld.so.cache'\n\
             \tlibnvidia-ml.so.1 (libc6,{arch}) => /usr/lib/libnvidia-ml.so.1\n\
             \tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n\
             \tlibcuda.so.1 (libc6,{arch}) => /usr/lib/libcuda.so.1\n\
             \tlibcuda.so (libc6,{arch}) => /usr/lib/libcuda.so\n\
             \tlibcudart.so.12 (libc6,{arch}) => /usr/lib/libcudart.so.12\n"
        );
        let found = cached(&listing);
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"]
        );
        assert_eq!(found["libcuda.so.1"], PathBuf::from("/usr/lib/libcuda.so.1"));
        assert!(!is_drivers("libcuda.so.550.54.15"));
    }
}
