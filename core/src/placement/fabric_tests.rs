//! Protects: where hosts lie decides between hosts that are alike inside, for gangs, single hosts and components.

use std::sync::Arc;

use super::{Assume, Hosts, Room, find};
use crate::model::fabric::{BlockText, Fabric, FabricText, SwitchText};
use crate::model::gpu::{GpuInfo, Inventory};
use crate::model::ids::NodeName;
use crate::model::resources::ResourceRequest;
use crate::model::topology::{Link, LinkMatrix};

/// Four GPUs of a model, all joined, or none.
fn inventory(model: &str) -> Inventory {
    let gpu = |index: u32| GpuInfo {
        uuid: format!("GPU-{index}").parse().expect("a UUID"),
        index,
        model: model.to_owned(),
        memory_bytes: 80 << 30,
        pci_address: String::new(),
        numa_node: Some(0),
        minor: None,
        mig: None,
        sharing: None,
        drained: None,
        cpu_affinity: String::new(),
        nvlink_version: 4,
    };
    let count = if model.is_empty() { 0 } else { 4 };
    Inventory {
        cpus: 64,
        memory_bytes: 512 << 30,
        gpus: (0..count).map(gpu).collect(),
        links: LinkMatrix::from_fn(count as usize, |_, _| Link::NvLink(18)),
        ..Inventory::default()
    }
}

/// Leaf switches under one spine, and blocks, by their nodes.
fn over(leaves: &[&str], blocks: &[&str]) -> Hosts {
    let leaf = |(at, nodes): (usize, &&str)| SwitchText {
        name: format!("leaf{at}"),
        nodes: (*nodes).to_owned(),
        switches: String::new(),
    };
    let spine = SwitchText {
        name: "spine".to_owned(),
        nodes: String::new(),
        switches: format!("leaf[0-{}]", leaves.len() - 1),
    };
    let block = |(at, nodes): (usize, &&str)| BlockText {
        name: format!("block{at}"),
        nodes: (*nodes).to_owned(),
    };
    let text = FabricText {
        switch: leaves.iter().enumerate().map(leaf).chain([spine]).collect(),
        block: blocks.iter().enumerate().map(block).collect(),
    };
    Hosts::over(Arc::new(Fabric::try_from(text).expect("a fabric")))
}

fn add(hosts: &mut Hosts, node: &str, model: &str, gpus: u64) {
    let node: NodeName = node.parse().expect("a node name");
    let inventory = inventory(model);
    hosts.set_inventory(&node, &inventory);
    let taken = gpus.count_ones() as usize != inventory.gpus.len();
    let room = Room {
        gpus,
        cpus: inventory.cpus - u32::from(taken),
        memory_bytes: inventory.memory_bytes,
        ..Room::default()
    };
    hosts.set_room(&node, room);
}

fn nodes(hosts: &Hosts, request: &ResourceRequest) -> Vec<String> {
    let parts = find(hosts, request, Assume::Now).expect("a place");
    parts.iter().map(|part| part.node.to_string()).collect()
}

fn gang(nodes: u32, gpus: u32) -> ResourceRequest {
    ResourceRequest {
        nodes,
        gpus_per_node: gpus,
        ..ResourceRequest::default()
    }
}

/// Names of nodes do not: of two models with equal links the one that lies closer together is taken.
#[test]
fn of_models_with_equal_links_the_fabric_decides() {
    for (near, model, other) in [
        ("a", "A100-40", "A100-80"),
        ("z", "A100-80", "A100-40"),
        ("a", "A100-80", "A100-40"),
    ] {
        for gpus in [1, 4] {
            let mut hosts = over(&[&format!("{near}[1-2],b1"), "b[2-3]", "b4"], &[]);
            add(&mut hosts, &format!("{near}1"), model, 15);
            add(&mut hosts, &format!("{near}2"), model, 15);
            for far in ["b1", "b2", "b4"] {
                add(&mut hosts, far, other, 15);
            }
            let both = [format!("{near}1"), format!("{near}2")];
            assert_eq!(nodes(&hosts, &gang(2, gpus)), both, "{model}, {gpus} GPUs each");
        }
    }
}

/// A job on one host takes what is left of a block, and not one of a whole block; so with leaf switches.
#[test]
fn a_single_host_leaves_blocks_and_switches_whole() {
    for blocks in [&["a[1-4]", "b[1-4]"][..], &[]] {
        for exclusive in [false, true] {
            let mut hosts = over(&["a[1-4]", "b[1-4]"], blocks);
            for (node, free) in [
                ("a1", 15),
                ("a2", 15),
                ("a3", 15),
                ("a4", 15),
                ("b1", 0),
                ("b2", 0),
                ("b3", 15),
            ] {
                add(&mut hosts, node, "H100", free);
            }
            let one = ResourceRequest {
                exclusive,
                ..gang(1, 4)
            };
            assert_eq!(nodes(&hosts, &one), ["b3"], "{blocks:?}");
            add(&mut hosts, "b3", "H100", 0);
            assert_eq!(nodes(&hosts, &one), ["a1"]);
            add(&mut hosts, "a1", "H100", 0);
            for back in ["b1", "b2", "b3", "b4"] {
                add(&mut hosts, back, "H100", 15);
            }
            assert_eq!(nodes(&hosts, &one), ["a2"], "the one that is begun");
        }
    }
}

/// A component lies beside those that have their place, but not on slower GPUs for it.
#[test]
fn components_lie_near_each_other() {
    for busy in ["g1", "g3"] {
        let mut hosts = over(&["c1,g[1-2]", "c2,g[3-4]"], &[]);
        for node in ["c1", "c2"] {
            add(&mut hosts, node, "", 0);
        }
        for node in ["g1", "g2", "g3", "g4"] {
            add(&mut hosts, node, "H100", if node == busy { 0 } else { 15 });
        }
        let cpu = ResourceRequest {
            cpus_per_node: 16,
            ..gang(1, 0)
        };
        let first = ResourceRequest {
            more: vec![gang(2, 4)],
            ..cpu.clone()
        };
        let last = ResourceRequest {
            more: vec![cpu],
            ..gang(2, 4)
        };
        let near = if busy == "g1" {
            ["c2", "g3", "g4"]
        } else {
            ["c1", "g1", "g2"]
        };
        assert_eq!(nodes(&hosts, &first), near);
        assert_eq!(nodes(&hosts, &last), [near[1], near[2], near[0]]);
    }
}
