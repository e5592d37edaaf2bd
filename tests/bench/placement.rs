//! `placement`: which GPUs of a host requests get, against the best that a look at every set finds.
//!
//! On each host requests of random sizes come and random ones end, until its free GPUs are what is left
//! over. Each pick is compared with the best set of the GPUs that were free, found by brute force from the raw
//! matrix: the fastest worst link first, then the highest sum of bandwidths. Beside it stands what the lowest
//! free indices would have given, as tools give them that do not look at links.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use carrel_core::model::gpu::{GpuInfo, Inventory};
use carrel_core::model::ids::NodeName;
use carrel_core::model::resources::ResourceRequest;
use carrel_core::model::topology::{Link, Topology};
use carrel_core::placement::{Assume, Demand, HostKind, Hosts, Room, Shape, Table, place};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::report::figure;

/// NVLink's version on described hosts: Volta to Hopper have links of one speed.
const NVLINK_VERSION: u32 = 4;
/// Requests on each host.
const REQUESTS: usize = 20_000;

/// Which hosts.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What `nvidia-smi topo -m` printed on a host; may be repeated
    #[arg(long, value_name = "FILE", required = true)]
    topo: Vec<PathBuf>,
    /// Seed of what comes and ends
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What requests of one size got.
#[derive(Clone, Copy, Default)]
struct Got {
    picks: u32,
    optimal: u32,
    /// Sum of the shares of the optimum's links.
    links: f64,
    lowest_optimal: u32,
    lowest_links: f64,
}

/// Runs it on every host, and prints the figures of all hosts together, and of each.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut all: BTreeMap<u32, Got> = BTreeMap::new();
    for path in &options.topo {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let topology = Topology::parse(&text).with_context(|| path.display().to_string())?;
        let inventory = inventory(&topology);
        ensure!(!inventory.gpus.is_empty(), "{}: no GPUs", path.display());
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        let shape = Shape::of(&HostKind::of(&inventory))
            .with_context(|| format!("{name}: too many GPUs for a table"))?;
        let started = Instant::now();
        let table = Table::new(shape, &Demand::default());
        let built = started.elapsed();
        let got = churn(&inventory, options.seed)?;
        eprintln!("{name}: {} GPUs", inventory.gpus.len());
        figure(
            &format!("placement.{name}.build"),
            built.as_secs_f64() * 1e6,
            "us",
            "",
        );
        figure(
            &format!("placement.{name}.lookup"),
            lookup_ns(&table, inventory.gpus.len()),
            "ns",
            "1000",
        );
        let shares: Vec<f64> = got
            .values()
            .map(|got| f64::from(got.optimal) / f64::from(got.picks))
            .collect();
        figure(
            &format!("placement.{name}.optimal"),
            shares.iter().copied().fold(1.0, f64::min),
            "share",
            "1",
        );
        for (size, got) in got {
            let sum = all.entry(size).or_default();
            sum.picks += got.picks;
            sum.optimal += got.optimal;
            sum.links += got.links;
            sum.lowest_optimal += got.lowest_optimal;
            sum.lowest_links += got.lowest_links;
        }
    }
    for (size, got) in all {
        let of = |n: f64| n / f64::from(got.picks);
        figure(&format!("placement.links.k{size}"), of(got.links), "ratio", "1");
        figure(
            &format!("placement.optimal.k{size}"),
            of(got.optimal.into()),
            "share",
            "1",
        );
        figure(
            &format!("placement.links.k{size}.lowest_indices"),
            of(got.lowest_links),
            "ratio",
            "",
        );
        figure(
            &format!("placement.optimal.k{size}.lowest_indices"),
            of(got.lowest_optimal.into()),
            "share",
            "",
        );
    }
    Ok(())
}

fn inventory(topology: &Topology) -> Inventory {
    let gpus = (0..topology.links.len()).map(|index| GpuInfo {
        uuid: format!("GPU-{index}").parse().expect("a UUID"),
        index: index as u32,
        model: "described".into(),
        memory_bytes: 80 << 30,
        pci_address: String::new(),
        numa_node: topology.numa_affinity.get(index).copied().flatten(),
        minor: Some(index as u32),
        mig: None,
        sharing: None,
        drained: None,
        cpu_affinity: topology.cpu_affinity.get(index).cloned().unwrap_or_default(),
        nvlink_version: NVLINK_VERSION,
    });
    Inventory {
        cpus: 128,
        memory_bytes: 1 << 40,
        gpus: gpus.collect(),
        links: topology.links.clone(),
        nics: topology
            .nics
            .iter()
            .map(|nic| carrel_core::model::gpu::NicInfo {
                name: nic.name.clone(),
                gpu_links: nic.gpu_links.clone(),
                numa_node: None,
            })
            .collect(),
        ..Inventory::default()
    }
}

/// Lets requests come and end on one host.
fn churn(inventory: &Inventory, seed: u64) -> anyhow::Result<BTreeMap<u32, Got>> {
    let node: NodeName = "host".parse()?;
    let gpus = inventory.gpus.len() as u32;
    let mut random = SmallRng::seed_from_u64(seed);
    let mut free = (1_u64 << gpus) - 1;
    let mut hosts = Hosts::default();
    hosts.set_inventory(&node, inventory);
    let mut running: Vec<u64> = Vec::new();
    let mut got: BTreeMap<u32, Got> = BTreeMap::new();
    let mut known: BTreeMap<(u64, u32), (Option<Link>, u32)> = BTreeMap::new();
    for _ in 0..REQUESTS {
        let size = random.random_range(1..=gpus);
        while free.count_ones() < size {
            free |= running.swap_remove(random.random_range(0..running.len()));
        }
        let request = ResourceRequest {
            nodes: 1,
            gpus_per_node: size,
            gpu_model: String::new(),
            nvlink: false,
            cpus_per_node: 1,
            memory_bytes_per_node: 1,
            ..ResourceRequest::default()
        };
        let room = Room {
            gpus: free,
            cpus: inventory.cpus,
            memory_bytes: inventory.memory_bytes,
            ..Room::default()
        };
        hosts.set_room(&node, room);
        let parts =
            place(&hosts, &request, Assume::Now).map_err(|why| anyhow::anyhow!("{size} GPUs: {why}"))?;
        let set = parts[0].units.gpus();
        ensure!(
            set.count_ones() == size && set & !free == 0,
            "not {size} free GPUs"
        );
        let best = *known
            .entry((free, size))
            .or_insert_with(|| best_of(inventory, free, size));
        let lowest = (0..gpus).filter(|gpu| free >> gpu & 1 == 1).take(size as usize);
        let lowest = links(inventory, lowest.fold(0, |set, gpu| set | 1 << gpu));
        let entry = got.entry(size).or_default();
        entry.picks += 1;
        let share = |got: (Option<Link>, u32)| {
            if best.1 == 0 {
                1.0
            } else {
                f64::from(got.1) / f64::from(best.1)
            }
        };
        let mine = links(inventory, set);
        entry.optimal += u32::from(mine == best);
        entry.links += share(mine);
        entry.lowest_optimal += u32::from(lowest == best);
        entry.lowest_links += share(lowest);
        free &= !set;
        running.push(set);
        for _ in 0..random.random_range(0..2) {
            if !running.is_empty() {
                free |= running.swap_remove(random.random_range(0..running.len()));
            }
        }
    }
    Ok(got)
}

/// GB/s of a link in one direction, from the sources again and not from the scorer: one NVLink of Volta to Hopper by
/// NVIDIA's whitepapers, PCIe by NCCL's `topo.h`.
fn speed(link: Link) -> u32 {
    match link {
        Link::Sys => 6,
        Link::Node => 9,
        Link::Phb => 10,
        Link::Pxb => 11,
        Link::Pix => 12,
        Link::NvLink(count) => 25 * u32::from(count),
    }
}

/// The worst link of a set and the sum of its bandwidths, from the raw matrix.
fn links(inventory: &Inventory, set: u64) -> (Option<Link>, u32) {
    let (mut worst, mut sum) = (None, 0);
    for a in 0..inventory.gpus.len() {
        for b in a + 1..inventory.gpus.len() {
            if set >> a & set >> b & 1 == 1 {
                let link = inventory.links.link(a, b);
                worst = Some(worst.map_or(link, |worst: Link| worst.min(link)));
                sum += speed(link);
            }
        }
    }
    (worst, sum)
}

/// The best of all sets of a size.
fn best_of(inventory: &Inventory, free: u64, size: u32) -> (Option<Link>, u32) {
    let sets = (1..1_u64 << inventory.gpus.len()).filter(|set| set & !free == 0 && set.count_ones() == size);
    sets.map(|set| links(inventory, set)).max().unwrap_or_default()
}

/// Mean time of a lookup, of any size among any free GPUs, once they have been asked for.
fn lookup_ns(table: &Table, gpus: usize) -> f64 {
    let sets = 1_u32 << gpus;
    let mut found = 0_u64;
    let mut ask = || {
        let mut asked = 0_u64;
        for free in 1..sets {
            for size in 1..=free.count_ones() as usize {
                asked += 1;
                found += table.best(free, free, size).map_or(0, |best| best.set.into());
            }
        }
        asked
    };
    ask();
    let started = Instant::now();
    let asked = ask();
    let elapsed = started.elapsed();
    std::hint::black_box(found);
    elapsed.as_nanos() as f64 / asked as f64
}
