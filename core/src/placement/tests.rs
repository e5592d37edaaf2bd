//! Protects: on any host the chosen GPUs are as good as brute force finds, no
//! GPU is placed that may not be, and refusals say what is true.

use proptest::prelude::*;

use super::*;
use crate::model::constraints::Constraints;
use crate::model::gpu::GpuInfo;
use crate::model::gpu_unit::{GpuUnit, Sharing, WHOLE_MILLI};
use crate::model::ids::GpuUuid;
use crate::model::resources::{Allocation, UnitRequest};
use crate::model::topology::{Link, LinkMatrix, Topology};

fn uuid(gpu: usize) -> GpuUuid {
    format!("GPU-{gpu}").parse().expect("a UUID")
}

fn inventory(links: LinkMatrix, numa: &[Option<u32>], model: &str, nvlink_version: u32) -> Inventory {
    let gpu = |position: usize| GpuInfo {
        uuid: uuid(position),
        index: position as u32,
        model: model.into(),
        memory_bytes: 80 << 30,
        pci_address: format!("00000000:{position:02X}:00.0"),
        numa_node: numa[position],
        minor: Some(position as u32),
        mig: None,
        sharing: None,
        drained: None,
        cpu_affinity: String::new(),
        nvlink_version,
    };
    let gpus = (0..links.len()).map(gpu).collect();
    Inventory {
        cpus: 64,
        memory_bytes: 512 << 30,
        gpus,
        links,
        ..Inventory::default()
    }
}

macro_rules! host {
    ($name:literal, $model:literal, $version:literal) => {{
        let text = include_str!(concat!("../model/topology/testdata/", $name, ".txt"));
        let topology = Topology::parse(text).expect($name);
        inventory(topology.links, &topology.numa_affinity, $model, $version)
    }};
}

fn h100() -> Inventory {
    host!("h100-8x-nv18-noNIC", "NVIDIA H100 80GB HBM3", 4)
}

fn dgx1() -> Inventory {
    host!("dgx1-v100-8x-4ib", "Tesla V100-SXM2-16GB", 2)
}

fn cpu_node() -> Inventory {
    inventory(LinkMatrix::default(), &[], "", 0)
}

fn request(gpus: u32) -> ResourceRequest {
    ResourceRequest {
        nodes: 1,
        gpus_per_node: gpus,
        gpu_model: String::new(),
        nvlink: false,
        cpus_per_node: 4,
        memory_bytes_per_node: 1 << 30,
        ..ResourceRequest::default()
    }
}

fn nvlink(gpus: u32) -> ResourceRequest {
    ResourceRequest {
        nvlink: true,
        ..request(gpus)
    }
}

fn names(count: usize) -> Vec<NodeName> {
    (0..count)
        .map(|n| format!("n{n}").parse().expect("a node name"))
        .collect()
}

/// One host of a test.
#[derive(Clone)]
struct View<'a> {
    node: &'a NodeName,
    inventory: &'a Inventory,
    room: Room,
}

fn place(hosts: &[View<'_>], request: &ResourceRequest) -> Result<Allocation, WhyNot> {
    let mut all = Hosts::default();
    for host in hosts {
        all.set_inventory(host.node, host.inventory);
        all.set_room(host.node, host.room.clone());
    }
    let parts = super::place(&all, request, Assume::Now)?;
    let inventory = |part: &Part| {
        hosts
            .iter()
            .find(|host| *host.node == part.node)
            .expect("a host")
            .inventory
    };
    Ok(Allocation {
        nodes: parts
            .iter()
            .map(|part| part.allocation(inventory(part), request))
            .collect(),
    })
}

/// A host of which everything but the CPUs and GPUs left out is free.
fn view<'a>(node: &'a NodeName, inventory: &'a Inventory, free_gpus: u64) -> View<'a> {
    View {
        node,
        inventory,
        room: Room {
            gpus: free_gpus,
            parts: Parts::default(),
            cpus: inventory.cpus,
            memory_bytes: inventory.memory_bytes,
            unavailable: None,
        },
    }
}

/// The positions that a request gets on one host.
fn on_host(inventory: &Inventory, free: u64, request: &ResourceRequest) -> Result<Vec<usize>, WhyNot> {
    positions_on(&view(&names(1)[0], inventory, free), request)
}

/// The same without a table, as on a host of too many GPUs for one.
fn searched(inventory: &Inventory, free: u64, request: &ResourceRequest) -> Option<Vec<usize>> {
    let host = HostKind::of(inventory);
    let free = free & host.placeable;
    let count = request.gpus_per_node as usize;
    let set = gpu_set::best_set(&host, None, free, free, count, request.nvlink)?;
    Some(gpu_set::positions(set.mask).collect())
}

fn positions_on(host: &View<'_>, request: &ResourceRequest) -> Result<Vec<usize>, WhyNot> {
    let allocation = place(std::slice::from_ref(host), request)?;
    let position = |unit: &GpuUnit| {
        let mut gpus = host.inventory.gpus.iter();
        gpus.position(|gpu| gpu.uuid == unit.gpu).expect("its own GPU")
    };
    Ok(allocation.nodes[0].gpus.iter().map(position).collect())
}

fn why(hosts: &[View<'_>], request: &ResourceRequest) -> WhyNot {
    place(hosts, request).expect_err("a refusal")
}

#[test]
fn a_host_with_equal_links_is_filled_numa_node_by_numa_node() {
    let host = h100();
    assert_eq!(on_host(&host, 0xff, &nvlink(4)).unwrap(), [0, 1, 2, 3]);
    // GPU 0 is taken: the whole node 1 holds four, node 0 only three.
    assert_eq!(on_host(&host, 0xfe, &nvlink(4)).unwrap(), [4, 5, 6, 7]);
    // One GPU comes from the node that is broken already.
    assert_eq!(on_host(&host, 0xfe, &request(1)).unwrap(), [1]);
    assert_eq!(on_host(&host, 0x7f, &request(1)).unwrap(), [4]);
    assert_eq!(
        on_host(&host, 0xff, &request(8)).unwrap(),
        [0, 1, 2, 3, 4, 5, 6, 7]
    );
}

#[test]
fn a_cube_mesh_gives_its_double_links_and_its_quads() {
    let host = dgx1();
    // Pairs with two NVLinks: 0-3, 0-4, 1-2, 1-5, 2-3, 4-7, 5-6, 6-7.
    let pair = on_host(&host, 0xff, &nvlink(2)).unwrap();
    assert_eq!(host.links.link(pair[0], pair[1]), Link::NvLink(2));
    assert_eq!(on_host(&host, 0xff, &nvlink(4)).unwrap(), [0, 1, 2, 3]);
    assert_eq!(on_host(&host, 0b1111_0001, &nvlink(4)).unwrap(), [4, 5, 6, 7]);
    // Five have no common NVLinks; without the wish they are found.
    assert_eq!(
        why(&[view(&names(1)[0], &host, 0xff)], &nvlink(5)).refusals,
        [(Refusal::NoNvlinkSet { wanted: 5 }, 1)]
    );
    assert_eq!(on_host(&host, 0xff, &request(5)).unwrap().len(), 5);
}

#[test]
fn bridged_pairs_stay_whole() {
    let host = host!("a100pcie-4x-bridge-pairs", "NVIDIA A100 80GB PCIe", 3);
    assert_eq!(on_host(&host, 0b1111, &nvlink(2)).unwrap(), [0, 1]);
    assert_eq!(on_host(&host, 0b1110, &nvlink(2)).unwrap(), [2, 3]);
    // A single GPU takes the one whose partner is gone.
    assert_eq!(on_host(&host, 0b1101, &request(1)).unwrap(), [0]);
    let names = names(1);
    let refused = why(&[view(&names[0], &host, 0b0101)], &nvlink(2));
    assert_eq!(refused.to_string(), "no 2 free GPUs joined by NVLink (1 node)");
    assert_eq!(
        refused.nearest.as_deref(),
        Some("2 GPUs not all joined by NVLink on n0; or 1 GPU on n0")
    );
    assert!(refused.ever);
}

#[test]
fn gpus_that_are_drained_cut_into_slices_or_of_another_model_are_not_placed() {
    let mut host = h100();
    host.gpus[0].drained = Some("a process would not end".into());
    host.gpus[1].mig = Some(crate::model::gpu::Mig::default());
    assert_eq!(on_host(&host, 0xff, &request(6)).unwrap(), [2, 3, 4, 5, 6, 7]);
    let names = names(1);
    let refused = why(&[view(&names[0], &host, 0xff)], &request(7));
    assert_eq!(
        refused.refusals,
        [(
            Refusal::FewerGpus {
                wanted: 7,
                model: String::new()
            },
            1
        )]
    );
    assert!(!refused.ever);

    host.gpus[7].model = "NVIDIA A100-SXM4-80GB".into();
    let a100 = ResourceRequest {
        gpu_model: "a100".into(),
        ..request(1)
    };
    assert_eq!(on_host(&host, 0xff, &a100).unwrap(), [7]);
    // One model before any mixture.
    assert_eq!(on_host(&host, 0b1100_1100, &request(3)).unwrap(), [2, 3, 6]);
}

#[test]
fn among_hosts_links_come_first_then_the_tightest_fit() {
    let names = names(4);
    let (h100, dgx1, none) = (h100(), dgx1(), cpu_node());
    let hosts = [
        view(&names[0], &none, 0),
        view(&names[1], &dgx1, 0xff),
        view(&names[2], &h100, 0xff),
        view(&names[3], &h100, 0x0f),
    ];
    let node = |request: &ResourceRequest| place(&hosts, request).unwrap().nodes[0].node.to_string();
    assert_eq!(node(&request(4)), "n3");
    assert_eq!(node(&request(8)), "n2");
    assert_eq!(node(&request(1)), "n3");
    assert_eq!(node(&request(0)), "n0");
    let v100 = ResourceRequest {
        gpu_model: "V100".into(),
        ..request(2)
    };
    assert_eq!(node(&v100), "n1");

    let mut backwards = hosts.clone();
    backwards.reverse();
    assert_eq!(place(&backwards, &request(4)), place(&hosts, &request(4)));
}

#[test]
fn a_gang_takes_distinct_nodes_of_one_kind_or_none() {
    let names = names(4);
    let (h100, dgx1) = (h100(), dgx1());
    let hosts = [
        view(&names[0], &h100, 0xff),
        view(&names[1], &dgx1, 0xff),
        view(&names[2], &dgx1, 0xff),
        view(&names[3], &h100, 0x0f),
    ];
    let gang = |nodes, gpus| ResourceRequest {
        nodes,
        ..request(gpus)
    };
    let nodes = |request: &ResourceRequest| {
        place(&hosts, request).map(|a| a.nodes.iter().map(|n| n.node.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(nodes(&gang(2, 4)).unwrap(), ["n0", "n3"]);
    // Only one H100 host has eight free; two DGX-1 are alike.
    assert_eq!(nodes(&gang(2, 8)).unwrap(), ["n1", "n2"]);
    assert_eq!(nodes(&gang(3, 8)).unwrap(), ["n0", "n1", "n2"]);
    let refused = nodes(&gang(4, 8)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "fits, but fewer than 4 such nodes (3 nodes), fewer than 8 free GPUs (1 node)"
    );
    assert_eq!(
        refused.nearest.as_deref(),
        Some("3 of 4 nodes: on each of n0, n1, n2; or 4 GPUs on each of n0, n1, n2, n3")
    );
    assert!(refused.ever);
    assert!(!nodes(&gang(5, 1)).unwrap_err().ever);
}

#[test]
fn refusals_name_what_is_missing() {
    let names = names(2);
    let (h100, none) = (h100(), cpu_node());
    let mut hosts = [view(&names[0], &h100, 0b11), view(&names[1], &none, 0)];
    let of = |hosts: &[View<'_>], request: &ResourceRequest| {
        let refused = why(hosts, request);
        (refused.to_string(), refused.ever)
    };
    assert_eq!(
        of(&hosts, &request(4)),
        ("fewer than 4 free GPUs (1 node), no GPUs (1 node)".into(), true)
    );
    assert_eq!(
        of(&hosts, &request(9)),
        ("no GPUs (1 node), fewer than 9 GPUs (1 node)".into(), false)
    );
    let h200 = ResourceRequest {
        gpu_model: "H200".into(),
        ..request(1)
    };
    assert_eq!(
        of(&hosts, &h200),
        ("no GPUs (1 node), no H200 (1 node)".into(), false)
    );
    let model = &h100.gpus[0].model;
    assert_eq!(
        why(&hosts, &h200).nearest,
        Some(format!("1 GPU ({model}) on {}", hosts[0].node))
    );
    let cpus = ResourceRequest {
        cpus_per_node: 65,
        ..request(0)
    };
    assert_eq!(of(&hosts, &cpus), ("fewer than 65 CPUs (2 nodes)".into(), false));
    let memory = ResourceRequest {
        memory_bytes_per_node: 1 << 40,
        ..request(0)
    };
    assert_eq!(
        of(&hosts, &memory),
        ("less than 1 TiB of memory (2 nodes)".into(), false)
    );

    hosts[0].room.cpus = 3;
    hosts[1].room.unavailable = Some("down".into());
    assert_eq!(
        of(&hosts, &request(2)),
        (
            "fewer than 4 free CPUs (1 node), node is down (1 node)".into(),
            true
        )
    );
    assert_eq!(
        why(&hosts, &request(2)).nearest.as_deref(),
        Some("3 CPUs instead of 4 on n0")
    );
    assert_eq!(of(&[], &request(1)), ("there are no nodes".into(), false));
}

/// Nobody is told of CPUs on a host whose GPUs would not do; what may change comes first, and last what the request
/// itself rules out, on however many hosts.
#[test]
fn refusals_begin_with_what_matters() {
    let names = names(5);
    let (h100, dgx1, none) = (h100(), dgx1(), cpu_node());
    let hosts = [
        view(&names[0], &h100, 0b11),
        view(&names[1], &dgx1, 0xff),
        view(&names[2], &none, 0),
        view(&names[3], &h100, 0xff),
        view(&names[4], &h100, 0xff),
    ];
    let asked = |gpus, cpus, model: &str| ResourceRequest {
        cpus_per_node: cpus,
        gpu_model: model.into(),
        ..nvlink(gpus)
    };
    for (request, refused) in [
        (
            asked(1, 65, "V100"),
            "no GPUs (1 node), fewer than 65 CPUs (1 node), no V100 (3 nodes)",
        ),
        (
            asked(5, 65, ""),
            "fewer than 65 CPUs (3 nodes), no GPUs (1 node), no 5 GPUs joined by NVLink (1 node)",
        ),
        (
            ResourceRequest {
                constraints: Constraints {
                    exclude: names[3..].iter().cloned().collect(),
                    ..Constraints::default()
                },
                ..asked(6, 4, "")
            },
            "fewer than 6 free GPUs (1 node), no GPUs (1 node), no 6 GPUs joined by NVLink (1 node), in --exclude (2 nodes)",
        ),
    ] {
        assert_eq!(why(&hosts, &request).to_string(), refused);
    }
}

/// Each of eight GPUs keeps 6 of 64 CPUs and 32 of 512 GiB for whoever will hold it.
#[test]
fn free_gpus_keep_cpus_and_memory_for_the_jobs_that_will_hold_them() {
    const GIB: u64 = 1 << 30;
    let names = names(1);
    let inventory = h100();
    assert_eq!((inventory.cpus, inventory.memory_bytes >> 30), (64, 512));
    let place = |free_gpus: u64, request: &ResourceRequest, reserve: Reserve| {
        let mut hosts = Hosts::default();
        hosts.keep(reserve);
        hosts.set_inventory(&names[0], &inventory);
        hosts.set_room(&names[0], view(&names[0], &inventory, free_gpus).room);
        assert_eq!(hosts.only(&names).reserve, reserve);
        let placed = super::place(&hosts, request, Assume::Now);
        placed.map(|_| ()).map_err(|why| (why.to_string(), why.ever))
    };
    let reserve = Reserve {
        cpus: 6,
        memory_bytes: 32 * GIB,
    };
    let with = |gpus: u32, cpus: u32, gib: u64| ResourceRequest {
        cpus_per_node: cpus,
        memory_bytes_per_node: gib * GIB,
        ..request(gpus)
    };
    let all = 0xff;
    assert_eq!(place(all, &with(0, 16, 256), reserve), Ok(()));
    // At once, and not after a wait that the free GPUs alone would not end.
    let why = "48 CPUs are kept for its free GPUs (1 node)".to_owned();
    assert_eq!(place(all, &with(0, 17, 1), reserve), Err((why, false)));
    let why = "256 GiB of memory is kept for its free GPUs (1 node)".to_owned();
    assert_eq!(place(all, &with(0, 1, 257), reserve), Err((why, false)));
    // What its own GPUs keep, a job gets.
    assert_eq!(place(all, &with(2, 28, 320), reserve), Ok(()));
    assert!(place(all, &with(2, 29, 1), reserve).is_err());
    assert_eq!(place(all, &with(8, 64, 512), reserve), Ok(()));
    // GPUs that are held keep nothing.
    assert_eq!(place(0b11, &with(0, 52, 448), reserve), Ok(()));
    assert!(place(0b11, &with(0, 53, 1), reserve).is_err());
    // No host keeps more than it has.
    let much = Reserve {
        cpus: 100,
        memory_bytes: u64::MAX,
    };
    assert_eq!(place(all, &with(1, 8, 64), much), Ok(()));
    assert!(place(all, &with(1, 9, 1), much).is_err());
    assert_eq!(place(all, &with(0, 64, 512), Reserve::default()), Ok(()));
}

#[test]
fn the_worst_link_of_an_allocation() {
    let host = dgx1();
    let worst_link = |host: &Inventory, units: &[GpuUnit]| seat(host, units).worst.map(|(.., link)| link);
    assert_eq!(
        worst_link(&host, &[uuid(0), uuid(3), uuid(2)].map(Into::into)),
        Some(Link::NvLink(1))
    );
    assert_eq!(
        worst_link(&host, &[uuid(0), uuid(7)].map(Into::into)),
        Some(Link::Sys)
    );
    assert_eq!(worst_link(&host, &[uuid(0).into()]), None);
    assert_eq!(worst_link(&host, &[uuid(0), uuid(9)].map(Into::into)), None);
}

/// A host as plain tables, for an oracle that shares no code with placement.
#[derive(Clone, Debug)]
struct Raw {
    /// Full matrix: 0 SYS … 4 PIX, 4 + n for n NVLinks.
    links: Vec<Vec<u32>>,
    numa: Vec<u32>,
}

impl Raw {
    fn inventory(&self) -> Inventory {
        let link = |a: usize, b: usize| match self.links[a][b] {
            0 => Link::Sys,
            1 => Link::Node,
            2 => Link::Phb,
            3 => Link::Pxb,
            4 => Link::Pix,
            nvlinks => Link::NvLink((nvlinks - 4) as u8),
        };
        let numa: Vec<Option<u32>> = self.numa.iter().map(|n| Some(*n)).collect();
        inventory(LinkMatrix::from_fn(self.numa.len(), link), &numa, "GPU", 3)
    }

    fn speed(&self, a: usize, b: usize) -> u64 {
        [6, 9, 10, 11, 12]
            .get(self.links[a][b] as usize)
            .copied()
            .unwrap_or(25 * (u64::from(self.links[a][b]).max(4) - 4))
    }

    fn pairs(set: &[usize]) -> Vec<(usize, usize)> {
        let all = set.iter().flat_map(|a| set.iter().map(move |b| (*a, *b)));
        all.filter(|(a, b)| a < b).collect()
    }

    /// Worst link, sum, fewest NUMA nodes, sum left, NUMA pairs left.
    fn value(&self, set: &[usize], left: &[usize]) -> (u32, u64, i32, u64, usize) {
        let sum = |set: &[usize]| {
            Self::pairs(set)
                .iter()
                .map(|(a, b)| self.speed(*a, *b))
                .sum::<u64>()
        };
        let worst = Self::pairs(set)
            .iter()
            .map(|(a, b)| self.links[*a][*b])
            .min()
            .unwrap_or(0);
        let mut nodes: Vec<u32> = set.iter().map(|gpu| self.numa[*gpu]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let together = Self::pairs(left)
            .iter()
            .filter(|(a, b)| self.numa[*a] == self.numa[*b])
            .count();
        (worst, sum(set), -(nodes.len() as i32), sum(left), together)
    }

    /// The best set, by trying all; the lowest of equals.
    fn best(&self, free: u64, count: u32, nvlink: bool) -> Option<Vec<usize>> {
        let list = |mask: u64| {
            (0..self.numa.len())
                .filter(|gpu| mask & (1 << gpu) != 0)
                .collect::<Vec<_>>()
        };
        let masks =
            (0..1u64 << self.numa.len()).filter(|mask| mask & !free == 0 && mask.count_ones() == count);
        let joined =
            |set: &Vec<usize>| !nvlink || Self::pairs(set).iter().all(|(a, b)| self.links[*a][*b] > 4);
        let sets = masks
            .map(|mask| (list(mask), list(free & !mask)))
            .filter(|(set, _)| joined(set));
        let ordered = sets.max_by(|(a, left_a), (b, left_b)| {
            self.value(a, left_a)
                .cmp(&self.value(b, left_b))
                .then_with(|| b.cmp(a))
        });
        ordered.map(|(set, _)| set)
    }
}

/// Hosts with random links of a few kinds, so that ties and twins are common.
fn raw_host() -> impl Strategy<Value = Raw> {
    (1usize..=8, proptest::collection::vec(0u32..=22, 1..4)).prop_flat_map(|(gpus, kinds)| {
        let links = proptest::collection::vec(proptest::sample::select(kinds), gpus * gpus);
        (links, proptest::collection::vec(0u32..3, gpus)).prop_map(move |(cells, numa)| {
            let cell = |a: usize, b: usize| cells[a.min(b) * gpus + a.max(b)];
            Raw {
                links: (0..gpus)
                    .map(|a| (0..gpus).map(|b| cell(a, b)).collect())
                    .collect(),
                numa,
            }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_chosen_set_is_the_one_that_brute_force_finds(
        host in raw_host(), free in 0u64..256, count in 1u32..=8, nvlink: bool
    ) {
        let free = free & ((1 << host.numa.len()) - 1);
        let expected = host.best(free, count, nvlink && count > 1);
        let request = ResourceRequest { nvlink, ..request(count) };
        let found = searched(&host.inventory(), free, &request);
        prop_assert_eq!(&found, &expected);
        // With the table of a real host, what the rest is worth is another matter; the set is as good.
        let worth = |set: &Vec<usize>| {
            let (worst, sum, numa, ..) = host.value(set, &[]);
            (worst, sum, numa)
        };
        let found = on_host(&host.inventory(), free, &request).ok();
        prop_assert_eq!(found.as_ref().map(worth), expected.as_ref().map(worth));
    }
}

#[test]
fn sixteen_gpus_with_irregular_links_are_searched_whole() {
    let link = |a: usize, b: usize| ((a * 7 + b * 13 + a * b) % 9) as u32;
    let links = (0..16)
        .map(|a: usize| (0..16).map(|b: usize| link(a.min(b), a.max(b))).collect())
        .collect();
    let host = Raw {
        links,
        numa: (0..16).map(|gpu| gpu / 8).collect(),
    };
    for count in [2, 5, 8] {
        assert_eq!(
            searched(&host.inventory(), 0xffff, &request(count)),
            host.best(0xffff, count, false)
        );
    }
}

/// A cluster of two kinds of hosts of one model, some of them partly used, some out of service.
fn rooms() -> impl Strategy<Value = Vec<(bool, Room)>> {
    let shared = (any::<u8>(), 1..WHOLE_MILLI);
    let room = (any::<u8>(), shared, 0..65_u32, 0..3_u64, 0..6_u32).prop_map(
        |(gpus, (begun, milli), cpus, memory, out)| Room {
            gpus: (gpus & !begun).into(),
            parts: gpu_set::positions((gpus & begun).into())
                .map(|gpu| (gpu as u8, PartRoom::Shared { milli, user: None }))
                .collect(),
            cpus,
            memory_bytes: memory << 30,
            unavailable: (out == 0).then(|| "node is down".into()),
        },
    );
    proptest::collection::vec((any::<bool>(), room), 0..12)
}

/// Requests that came before: GPUs, thousandths, CPUs.
fn before() -> impl Strategy<Value = Vec<(u32, u16, u32)>> {
    proptest::collection::vec((1..9_u32, 1..=WHOLE_MILLI, 1..33_u32), 0..20)
}

fn unit(milli: u16) -> UnitRequest {
    match milli {
        WHOLE_MILLI.. => UnitRequest::Whole,
        milli => UnitRequest::Share { milli, sharing: None },
    }
}

proptest! {
    /// Looking at hosts that are alike as one gives what looking at each gives, in whatever order they came.
    #[test]
    fn many_hosts_are_placed_on_as_each_of_them(
        rooms in rooms(), before in before(), nodes in 1..4_u32, gpus in 0..5_u32, milli in 500..1500_u16,
        cpus in 1..20_u32, nvlink: bool, whole in 0..4_u8,
    ) {
        let (exclusive, all_memory) = (whole == 0, whole == 1);
        let mut rooms = rooms;
        // Some are idle.
        for (_, room) in rooms.iter_mut().step_by(2).filter(|_| whole < 2) {
            *room = Room { gpus: 0xff, parts: Parts::default(), cpus: 64, memory_bytes: 512 << 30, unavailable: None };
        }
        let mut straight = h100();
        straight.gpus.iter_mut().for_each(|gpu| gpu.sharing = Some(Sharing::TimeSlice));
        let ring = {
            let mut host = dgx1();
            host.gpus.iter_mut().for_each(|gpu| {
                gpu.model = straight.gpus[0].model.clone();
                gpu.sharing = Some(Sharing::TimeSlice);
            });
            host
        };
        let mut recent = Recent::default();
        for (gpus, milli, cpus) in before.iter().cycle().take(if before.is_empty() { 0 } else { 300 }) {
            let unit = unit(if *gpus > 1 { WHOLE_MILLI } else { *milli });
            recent.note(&ResourceRequest { unit, cpus_per_node: *cpus, ..request(*gpus) });
        }
        let names = names(rooms.len());
        let hosts = |backwards: bool| {
            let mut all = Hosts::default();
            let mut order: Vec<_> = names.iter().zip(&rooms).collect();
            if backwards {
                order.reverse();
                all.expect(recent.outlook());
            }
            for (name, (kind, room)) in order {
                all.set_inventory(name, if *kind { &straight } else { &ring });
                all.set_room(name, room.clone());
            }
            all.expect(recent.outlook());
            all
        };
        let mut all = hosts(false);
        let request = ResourceRequest {
            nodes, cpus_per_node: cpus, nvlink, exclusive, all_memory,
            unit: if exclusive { UnitRequest::Whole } else { unit(milli) },
            ..request(gpus)
        };
        let one = ResourceRequest { nodes: 1, ..request.clone() };
        let mut each: Vec<_> = names
            .iter()
            .filter_map(|name| {
                let alone = all.only([name]);
                let candidate = fit::candidates(&alone, (&one).into(), Assume::Now).pop()?;
                let part = candidate.parts(1).next()?;
                Some((candidate.rank(), part))
            })
            .collect();
        each.sort_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.node.cmp(&other.node)));
        let enough = each.len() >= nodes as usize;
        let mut expected: Vec<Part> = each.into_iter().take(nodes as usize).map(|(_, part)| part).collect();
        expected.sort_by(|a, b| a.node.cmp(&b.node));
        let found = super::place(&all, &request, Assume::Now);
        prop_assert_eq!(found.is_ok(), enough);
        prop_assert_eq!(fits(&all, &request, Assume::Now), enough);
        prop_assert_eq!(&found, &super::place(&hosts(true), &request, Assume::Now));
        match found {
            Ok(parts) => {
                for part in parts.iter().filter(|_| exclusive) {
                    let at = names.iter().position(|name| *name == part.node).expect("a host");
                    prop_assert_eq!(at % 2, 0, "it is idle");
                    prop_assert_eq!(&part.units, &Units::Whole(0xff));
                }
                prop_assert_eq!(parts, expected);
            }
            // Every host is spoken of once.
            Err(why) => {
                let counted: u32 = why.refusals.iter().map(|(_, hosts)| hosts).sum();
                prop_assert_eq!(counted as usize, rooms.len());
            }
        }
        // And what was taken out leaves no trace.
        for name in &names {
            all.remove(name);
        }
        prop_assert!(!fits(&all, &request, Assume::Whole));
    }
}
