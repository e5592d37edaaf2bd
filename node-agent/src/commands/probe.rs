//! `carrel-node probe`: what this host has, as the agent would report it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use carrel_core::model::gpu::{GpuInfo, Inventory, Mig};
use carrel_core::model::gpu_unit::Sharing;
use carrel_core::model::topology::{Topology, TopologyNic};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::config::{NodeArgs, source_of};
use crate::gpu;

/// Shows what this host has: GPUs, what they are cut into, their links, CPUs, memory, NICs.
///
/// Exits with 0 whether or not there are GPUs (a note says why there are none), with 1 on an error.
#[derive(Args, Debug)]
pub struct ProbeArgs {
    /// NVML library to load [default: libnvidia-ml.so.1, as the dynamic linker finds it]
    #[arg(long, value_name = "PATH", env = "CARREL_NVML_LIBRARY")]
    nvml_library: Option<PathBuf>,

    /// Configuration file, which is checked, and says what is offered [default: /etc/carrel/node.toml, if it is there]
    #[arg(long, value_name = "FILE", env = "CARREL_NODE_CONFIG")]
    config: Option<PathBuf>,

    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Tables for people; the matrix as `nvidia-smi topo -m` prints it
    Text,
    /// One JSON object
    Json,
}

/// Discovers the host and prints it.
pub fn run(args: ProbeArgs) -> anyhow::Result<ExitCode> {
    let inventory = gpu::discover(&source_of(&NodeArgs {
        config: args.config,
        nvml_library: args.nvml_library,
        ..NodeArgs::default()
    })?);
    let text = match args.output {
        Format::Text => text(&inventory),
        Format::Json => serde_json::to_string_pretty(&Report::new(&inventory))? + "\n",
    };
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("cannot write to the standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// What `--output json` prints.
#[derive(Serialize)]
struct Report<'a> {
    /// Hardware threads that jobs may use.
    cpus: u32,
    /// Memory that jobs may use, bytes.
    memory_bytes: u64,
    /// Operating system and kernel.
    os: &'a str,
    /// NVIDIA driver version; empty: none.
    driver_version: &'a str,
    /// NVML library that was used; empty: none.
    nvml_library: &'a str,
    nvlink_domain: &'a str,
    /// Why GPUs that may exist are not offered, or what is wrong with them; empty: nothing to say.
    gpu_note: &'a str,
    /// In the driver's order.
    gpus: Vec<GpuReport<'a>>,
    /// `links[i][j]` joins `gpus[i]` and `gpus[j]`, by nvidia-smi's names ("NV18", "SYS"); "X" on the diagonal.
    links: Vec<Vec<String>>,
    /// RDMA NICs.
    nics: Vec<NicReport<'a>>,
}

#[derive(Serialize)]
struct GpuReport<'a> {
    /// The driver's UUID.
    uuid: &'a str,
    /// The driver's index.
    index: u32,
    /// Product name.
    model: &'a str,
    /// Memory, bytes; 0: the driver does not say.
    memory_bytes: u64,
    /// "00000000:1B:00.0".
    pci_address: &'a str,
    /// NUMA node; null: the platform does not say.
    numa_node: Option<u32>,
    /// N of /dev/nvidiaN; null: the driver does not say.
    minor: Option<u32>,
    /// MIG mode is on, so that it is not offered as a whole GPU.
    mig_enabled: bool,
    /// What it can be cut into and is cut into; null: MIG mode is off.
    mig: Option<MigReport<'a>>,
    /// How jobs may share it ("time-slice"); null: they do not.
    sharing: Option<&'static str>,
    /// Why nothing may be placed on it; null: healthy.
    drained: Option<&'a str>,
    /// CPUs near to it, a kernel cpulist; empty: unknown.
    cpu_affinity: &'a str,
    /// NVLink generation; 0: no active NVLink.
    nvlink_version: u32,
}

#[derive(Serialize)]
struct MigReport<'a> {
    /// Idle instances may be removed to make others.
    recut: bool,
    /// GPU instances that it can be cut into.
    profiles: Vec<ProfileReport<'a>>,
    /// GPU instances that there are and can be given.
    instances: Vec<InstanceReport<'a>>,
}

#[derive(Serialize)]
struct ProfileReport<'a> {
    /// "1g.10gb".
    name: &'a str,
    /// The driver's number.
    id: u32,
    /// Compute slices.
    compute: u8,
    /// Memory, bytes.
    memory_bytes: u64,
    /// Memory slices.
    width: u8,
    /// Memory slices that it may start at.
    starts: &'a [u8],
    /// Most of them on one GPU.
    most: u8,
}

#[derive(Serialize)]
struct InstanceReport<'a> {
    /// The profile's name.
    profile: &'a str,
    /// First of its memory slices.
    start: u8,
    /// Number of its memory slices.
    width: u8,
    /// UUID of its MIG device.
    uuid: &'a str,
}

impl<'a> From<&'a Mig> for MigReport<'a> {
    fn from(mig: &'a Mig) -> Self {
        let profiles = mig.profiles.iter().map(|profile| ProfileReport {
            name: &profile.name,
            id: profile.id,
            compute: profile.compute,
            memory_bytes: profile.memory_bytes,
            width: profile.width,
            starts: &profile.starts,
            most: profile.most,
        });
        let instances = mig.instances.iter().map(|instance| InstanceReport {
            profile: &instance.profile,
            start: instance.start,
            width: instance.width,
            uuid: instance.uuid.as_str(),
        });
        Self {
            recut: mig.recut,
            profiles: profiles.collect(),
            instances: instances.collect(),
        }
    }
}

#[derive(Serialize)]
struct NicReport<'a> {
    /// RDMA device name.
    name: &'a str,
    /// NUMA node; null: the platform does not say.
    numa_node: Option<u32>,
    /// Link to each GPU, in the order of `gpus`.
    gpu_links: Vec<String>,
}

impl<'a> Report<'a> {
    fn new(inventory: &'a Inventory) -> Self {
        let gpus = inventory.gpus.iter().map(|gpu| GpuReport {
            uuid: gpu.uuid.as_str(),
            index: gpu.index,
            model: &gpu.model,
            memory_bytes: gpu.memory_bytes,
            pci_address: &gpu.pci_address,
            numa_node: gpu.numa_node,
            minor: gpu.minor,
            mig_enabled: gpu.mig.is_some(),
            mig: gpu.mig.as_ref().map(Into::into),
            sharing: gpu.sharing.map(Sharing::name),
            drained: gpu.drained.as_deref(),
            cpu_affinity: &gpu.cpu_affinity,
            nvlink_version: gpu.nvlink_version,
        });
        let count = inventory.links.len();
        let link = |a, b| {
            if a == b {
                "X".to_owned()
            } else {
                inventory.links.link(a, b).to_string()
            }
        };
        let nics = inventory.nics.iter().map(|nic| NicReport {
            name: &nic.name,
            numa_node: nic.numa_node,
            gpu_links: nic.gpu_links.iter().map(ToString::to_string).collect(),
        });
        Self {
            cpus: inventory.cpus,
            memory_bytes: inventory.memory_bytes,
            os: &inventory.os,
            driver_version: &inventory.driver_version,
            nvml_library: &inventory.nvml_library,
            nvlink_domain: &inventory.nvlink_domain,
            gpu_note: &inventory.gpu_note,
            gpus: gpus.collect(),
            links: (0..count)
                .map(|a| (0..count).map(|b| link(a, b)).collect())
                .collect(),
            nics: nics.collect(),
        }
    }
}

fn text(inventory: &Inventory) -> String {
    let gibibytes = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let known = |number: Option<u32>| number.map_or("-".to_owned(), |n| n.to_string());
    let mut facts = vec![
        ["host".to_owned(), inventory.os.clone()],
        ["cpus".to_owned(), inventory.cpus.to_string()],
        ["memory".to_owned(), gibibytes(inventory.memory_bytes)],
    ];
    if !inventory.nvml_library.is_empty() {
        facts.push(["driver".to_owned(), inventory.driver_version.clone()]);
        facts.push(["nvml".to_owned(), inventory.nvml_library.clone()]);
    }
    let mut text = table(&facts);
    if !inventory.gpus.is_empty() {
        let title = [
            "GPU",
            "MODEL",
            "MEMORY",
            "UUID",
            "PCI ADDRESS",
            "MINOR",
            "NUMA",
            "NVLINK",
            "STATE",
        ];
        let mut rows = vec![title.map(str::to_owned)];
        rows.extend(inventory.gpus.iter().map(|gpu| {
            [
                gpu.index.to_string(),
                gpu.model.clone(),
                gibibytes(gpu.memory_bytes),
                gpu.uuid.to_string(),
                gpu.pci_address.clone(),
                known(gpu.minor),
                known(gpu.numa_node),
                if gpu.nvlink_version > 0 {
                    gpu.nvlink_version.to_string()
                } else {
                    "-".to_owned()
                },
                state(gpu),
            ]
        }));
        text = format!(
            "{text}\n{}{}\n{}",
            table(&rows),
            slices(inventory),
            topology(inventory)
        );
    }
    if !inventory.gpu_note.is_empty() {
        text = format!("{text}\nnote: {}\n", inventory.gpu_note);
    }
    text
}

fn state(gpu: &GpuInfo) -> String {
    match (&gpu.drained, &gpu.mig, gpu.sharing) {
        (Some(reason), ..) => reason.clone(),
        (None, Some(Mig { recut: true, .. }), _) => {
            "ok, in MIG slices that are cut as jobs need them".to_owned()
        }
        (None, Some(_), _) => "ok, in MIG slices".to_owned(),
        (None, None, Some(sharing)) => format!("ok, shared by {}", sharing.name()),
        (None, None, None) => "ok".to_owned(),
    }
}

/// What GPUs in MIG mode can be cut into, and are; empty: none is in MIG mode.
fn slices(inventory: &Inventory) -> String {
    let title = [
        "GPU",
        "MIG PROFILE",
        "ID",
        "MEMORY",
        "SLICES",
        "MOST",
        "MAY START AT",
        "THERE NOW AT",
    ];
    let mut rows = vec![title.map(str::to_owned)];
    for gpu in &inventory.gpus {
        let Some(mig) = &gpu.mig else { continue };
        for profile in &mig.profiles {
            let list = |starts: &mut dyn Iterator<Item = u8>| {
                let starts: Vec<String> = starts.map(|start| start.to_string()).collect();
                if starts.is_empty() {
                    "-".to_owned()
                } else {
                    starts.join(" ")
                }
            };
            let there = mig
                .instances
                .iter()
                .filter(|instance| instance.profile == profile.name);
            rows.push([
                gpu.index.to_string(),
                profile.name.clone(),
                profile.id.to_string(),
                format!("{:.2} GiB", profile.memory_bytes as f64 / f64::from(1 << 30)),
                profile.width.to_string(),
                profile.most.to_string(),
                list(&mut profile.starts.iter().copied()),
                list(&mut there.map(|instance| instance.start)),
            ]);
        }
    }
    match rows.len() {
        1 => String::new(),
        _ => format!("\n{}", table(&rows)),
    }
}

fn topology(inventory: &Inventory) -> Topology {
    let nic = |nic: &carrel_core::model::gpu::NicInfo| TopologyNic {
        name: nic.name.clone(),
        gpu_links: nic.gpu_links.clone(),
    };
    Topology {
        links: inventory.links.clone(),
        cpu_affinity: inventory
            .gpus
            .iter()
            .map(|gpu| gpu.cpu_affinity.clone())
            .collect(),
        numa_affinity: inventory.gpus.iter().map(|gpu| gpu.numa_node).collect(),
        nics: inventory.nics.iter().map(nic).collect(),
    }
}

/// Columns two spaces apart, each as wide as its widest cell.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; N]| {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
