//! `pass`: every pending job looked at once, in order, on a cluster that fills up meanwhile; and again after one
//! release.

use std::sync::Arc;
use std::time::{Duration, Instant};

use carrel_core::model::fabric::{BlockText, Fabric, FabricText, SwitchText};
use carrel_core::model::gpu::{GpuInfo, Inventory};
use carrel_core::model::ids::NodeName;
use carrel_core::model::resources::ResourceRequest;
use carrel_core::model::topology::{Link, LinkMatrix};
use carrel_core::placement::{Assume, Hosts, Part, Recent, Room, fits, place};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::report::figure;

/// Sizes of GPU requests, as often as they stand here.
const SIZES: [u32; 10] = [1, 1, 1, 1, 2, 2, 4, 4, 8, 8];

/// How large.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Seed of what is asked for
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs it at two sizes.
pub fn run(options: &Options) {
    let flat = || Arc::new(Fabric::default());
    for (jobs, nodes, budget, fabric, kind) in [
        (10_000, 1_000, "<= 50", flat(), ""),
        (10_000, 1_000, "<= 50", leaves(1_000), ".fabric"),
        (100_000, 10_000, "", flat(), ""),
        (100_000, 10_000, "", leaves(10_000), ".fabric"),
    ] {
        let size = format!("{jobs}x{nodes}{kind}");
        let mut hosts = cluster(nodes, fabric);
        let mut random = SmallRng::seed_from_u64(options.seed);
        let mut pending: Vec<ResourceRequest> = (0..jobs).map(|_| request(&mut random)).collect();
        let mut recent = Recent::default();
        for request in &pending {
            recent.note(request);
        }
        hosts.expect(recent.outlook());
        let before = resident();
        let mut running = Vec::new();
        let cold = pass(&mut hosts, &mut pending, &mut running);
        eprintln!("{size}: {} started, {} wait", running.len(), pending.len());
        figure(&format!("pass.{size}.cold"), millis(cold), "ms", budget);
        let grown = resident().saturating_sub(before);
        figure(
            &format!("pass.{size}.memory"),
            grown as f64 / f64::from(1 << 20),
            "MiB",
            "",
        );

        let (request, parts) = running.swap_remove(random.random_range(0..running.len()));
        for part in &parts {
            change(&mut hosts, part, &request, true);
        }
        let after = pass(&mut hosts, &mut pending, &mut running);
        figure(&format!("pass.{size}.after_release"), millis(after), "ms", budget);
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// This process' resident memory, bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Leaf switches of 32 nodes, sixteen below a spine, and blocks of 16 nodes.
fn leaves(nodes: usize) -> Arc<Fabric> {
    let count = nodes.div_ceil(32);
    let switch = |name, nodes, switches| SwitchText {
        name,
        nodes,
        switches,
    };
    let leaf = |n: usize| {
        let range = format!("n[{}-{}]", 32 * n, (32 * n + 31).min(nodes - 1));
        switch(format!("leaf{n}"), range, String::new())
    };
    let spine = |n: usize| {
        let range = format!("leaf[{}-{}]", 16 * n, (16 * n + 15).min(count - 1));
        switch(format!("spine{n}"), String::new(), range)
    };
    let block = |n: usize| BlockText {
        name: format!("block{n}"),
        nodes: format!("n[{}-{}]", 16 * n, (16 * n + 15).min(nodes - 1)),
    };
    let text = FabricText {
        switch: (0..count)
            .map(leaf)
            .chain((0..count.div_ceil(16)).map(spine))
            .collect(),
        block: (0..nodes.div_ceil(16)).map(block).collect(),
    };
    Arc::new(text.try_into().expect("a fabric"))
}

/// Hosts of eight H100 each.
fn cluster(nodes: usize, fabric: Arc<Fabric>) -> Hosts {
    let gpus = (0..8).map(|index| GpuInfo {
        uuid: format!("GPU-{index}").parse().expect("a UUID"),
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 80 << 30,
        pci_address: String::new(),
        numa_node: Some(index / 4),
        minor: Some(index),
        mig: None,
        sharing: None,
        drained: None,
        cpu_affinity: String::new(),
        nvlink_version: 4,
    });
    let inventory = Inventory {
        cpus: 192,
        memory_bytes: 2 << 40,
        gpus: gpus.collect(),
        links: LinkMatrix::from_fn(8, |_, _| Link::NvLink(18)),
        ..Inventory::default()
    };
    let mut hosts = Hosts::over(fabric);
    for n in 0..nodes {
        let node: NodeName = format!("n{n}").parse().expect("a name");
        hosts.set_inventory(&node, &inventory);
        hosts.set_room(
            &node,
            Room {
                gpus: 0xff,
                cpus: inventory.cpus,
                memory_bytes: inventory.memory_bytes,
                ..Room::default()
            },
        );
    }
    hosts
}

/// One in ten is a gang; CPUs and memory vary, so that hosts come to differ in what is left.
fn request(random: &mut SmallRng) -> ResourceRequest {
    let gpus = SIZES[random.random_range(0..SIZES.len())];
    ResourceRequest {
        nodes: if random.random_range(0..10) == 0 {
            random.random_range(2..=8)
        } else {
            1
        },
        gpus_per_node: gpus,
        nvlink: gpus > 1,
        cpus_per_node: gpus * random.random_range(4..=16),
        memory_bytes_per_node: u64::from(gpus * random.random_range(16..=128)) << 30,
        ..ResourceRequest::default()
    }
}

/// Looks at every pending job once.
fn pass(
    hosts: &mut Hosts,
    pending: &mut Vec<ResourceRequest>,
    running: &mut Vec<(ResourceRequest, Vec<Part>)>,
) -> Duration {
    let started = Instant::now();
    pending.retain(|request| {
        if !fits(hosts, request, Assume::Now) {
            return true;
        }
        let Ok(parts) = place(hosts, request, Assume::Now) else {
            return true;
        };
        for part in &parts {
            change(hosts, part, request, false);
        }
        running.push((request.clone(), parts));
        false
    });
    started.elapsed()
}

/// Takes a part from its host's room, or gives it back.
fn change(hosts: &mut Hosts, part: &Part, request: &ResourceRequest, give_back: bool) {
    let mut room = hosts.room(&part.node).expect("a host").clone();
    if give_back {
        room.gpus |= part.units.gpus();
        room.cpus += request.cpus_per_node;
        room.memory_bytes += request.memory_bytes_per_node;
    } else {
        room.gpus &= !part.units.gpus();
        room.cpus -= request.cpus_per_node;
        room.memory_bytes -= request.memory_bytes_per_node;
    }
    hosts.set_room(&part.node, room);
}
