//! The network of a gang, and what its ranks know of each other.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::*;
use crate::model::gang_network::Subnet;
use crate::model::node::DesiredJob;

/// A session over all of these nodes, with so many of their GPUs.
fn gang(world: &mut World, name: &str, nodes: u32, each: u32) -> JobId {
    let mut spec = gpus(each);
    spec.request.nodes = nodes;
    world.open("alice", open(name, spec)).1
}

fn networks(world: &World, id: JobId) -> Vec<RankNetwork> {
    let placed = world.job(id).last_placed().expect("placed");
    placed.ranks.iter().map(|rank| rank.network).collect()
}

fn wanted(world: &World, name: &str, id: JobId) -> DesiredJob {
    let desired = world.broker.desired(&node(name)).expect("a desired state");
    let job = desired.jobs.into_iter().find(|job| job.key.job == id);
    job.expect("wanted there")
}

#[test]
fn every_rank_is_told_of_all_addresses_before_any_starts() {
    let mut world = World::new(&["net1", "net2", "net3"]);
    let id = gang(&mut world, "dev", 3, 8);
    let given: BTreeSet<Ipv4Addr> = networks(&world, id)
        .into_iter()
        .filter_map(RankNetwork::address)
        .collect();
    assert_eq!(given.len(), 3, "each its own");
    assert!(given.iter().all(|address| Subnet::GANGS.has(*address)));
    let jobs = ["net1", "net2", "net3"].map(|name| wanted(&world, name, id));
    for job in &jobs {
        assert_eq!(job.peers, jobs[0].peers);
        assert_eq!(job.network(), job.peers[job.rank as usize].network);
        let hosts: Vec<&str> = job.peers.iter().map(|peer| &*peer.reach.namespace).collect();
        assert_eq!(hosts, ["net1", "net2", "net3"]);
        assert!(!job.go);
    }
    // Across the broker's death, and whatever is told twice.
    world.restart(8);
    for name in ["net1", "net2", "net3"] {
        let ready = world.seen(id, name, ObservedPhase::Ready);
        world.report(name, vec![ready.clone()]);
        world.report(name, vec![ready]);
        assert_eq!(wanted(&world, name, id).peers, jobs[0].peers);
    }
    assert!(wanted(&world, "net1", id).go);
}

#[test]
fn a_gang_has_what_all_of_its_nodes_can_give() {
    let mut world = World::new(&["net1", "n2"]);
    let id = gang(&mut world, "dev", 2, 8);
    assert_eq!(networks(&world, id), [RankNetwork::Own; 2], "one cannot route");
    let mut world = World::new(&["net1", "open2"]);
    let id = gang(&mut world, "dev", 2, 8);
    assert!(
        networks(&world, id)
            .iter()
            .all(|network| network.address().is_some())
    );
    let mut world = World::new(&["net1"]);
    let id = gang(&mut world, "dev", 1, 8);
    assert_eq!(networks(&world, id), [RankNetwork::Own], "it has no peers");
}

/// The host's network is for gangs of whole nodes alone.
#[test]
fn hosts_networks_are_for_gangs_that_have_the_hosts() {
    let mut world = World::new(&["open1", "open2"]);
    let id = gang(&mut world, "part", 2, 4);
    assert!(
        networks(&world, id)
            .iter()
            .all(|network| network.address().is_some())
    );
    let mut world = World::new(&["open1", "open2"]);
    let id = gang(&mut world, "whole", 2, 8);
    assert_eq!(networks(&world, id), [RankNetwork::Host; 2]);
    let mut world = World::new(&["open1", "open2"]);
    let mut spec = gpus(8);
    spec.request.nodes = 2;
    spec.container.root = true;
    let (_, id) = world.open("alice", open("root", spec));
    assert!(
        networks(&world, id)
            .iter()
            .all(|network| network.address().is_some()),
        "root in a user namespace owns no host's network"
    );
}

/// Two gangs side by side, one after the other, and one that no record knows: no address is two containers'.
#[test]
fn an_address_is_one_containers() {
    let small = Settings {
        gang_subnet: "10.9.0.0/29".parse().expect("a range"),
        ..settings()
    };
    let mut world = World::with(small, &["net1", "net2"]);
    let first = gang(&mut world, "first", 2, 2);
    let second = gang(&mut world, "second", 2, 2);
    let of = |world: &World, id| -> BTreeSet<Ipv4Addr> {
        networks(world, id)
            .into_iter()
            .filter_map(RankNetwork::address)
            .collect()
    };
    assert!(of(&world, first).is_disjoint(&of(&world, second)));
    // Five there are in all: the third gang cannot have two, and starts without.
    let third = gang(&mut world, "third", 2, 2);
    assert_eq!(networks(&world, third), [RankNetwork::Own; 2]);
    // One node has released the first, the other one not: its routes may be there.
    let first_name = "first".parse().expect("a name");
    world.must(Input::StopSession(caller("alice"), first_name, None));
    let after = |world: &World, name: &str, live: &[JobId]| -> Vec<ObservedJob> {
        let released = ObservedJob {
            network: RankNetwork::Own,
            ..world.seen(first, name, ObservedPhase::Released)
        };
        let live = live.iter().map(|id| world.seen(*id, name, ObservedPhase::Ready));
        live.chain([released]).collect()
    };
    let seen = after(&world, "net1", &[second, third]);
    world.report("net1", seen);
    let fourth = gang(&mut world, "fourth", 2, 2);
    assert_eq!(networks(&world, fourth), [RankNetwork::Own; 2]);
    let seen = after(&world, "net2", &[second, third, fourth]);
    world.report("net2", seen);
    let fifth = gang(&mut world, "fifth", 2, 2);
    assert_eq!(world.state(fifth), JobState::Configuring);
    assert!(of(&world, fifth).is_disjoint(&of(&world, second)) && of(&world, fifth).len() == 2);
}

/// What nodes run that no record knows has its addresses, and keeps them when it is taken over.
#[test]
fn a_found_gang_keeps_its_addresses() {
    let mut world = World::new(&["net1", "net2"]);
    let id = gang(&mut world, "dev", 2, 4);
    let before = networks(&world, id);
    let seen = ["net1", "net2"].map(|name| world.seen(id, name, ObservedPhase::Ready));
    let key = seen[0].key;
    let mut world = World::new(&["net1", "net2"]);
    for (name, seen) in ["net1", "net2"].into_iter().zip(seen) {
        world.report(name, vec![seen]);
    }
    let taken = super::super::gang::taken(world.broker.state());
    assert!(
        before
            .iter()
            .all(|network| taken.contains(&network.address().expect("routed")))
    );
    world.must(Input::AdoptJob(caller("root"), key));
    assert_eq!(networks(&world, key.job), before);
}

/// A node that is reached by another address: those who have routes through it are told.
#[test]
fn peers_hear_where_a_node_is_now() {
    let mut world = World::new(&["net1", "net2"]);
    let id = gang(&mut world, "dev", 2, 8);
    let ready = world.seen(id, "net2", ObservedPhase::Ready);
    let before = world.broker.desired(&node("net1")).expect("desired").generation;
    world.seq += 1;
    let state = world.broker.state();
    let mut inventory = inventory("net2");
    inventory.reach.address = Some([192, 0, 2, 200].into());
    let observed = Observed {
        node: node("net2"),
        boot_id: "boot".into(),
        seq: world.seq,
        accepted: Some((state.cluster.id.clone(), state.cluster.incarnation)),
        generation: 0,
        inventory,
        jobs: vec![ready],
        version: "0.1.0".into(),
        images: vec![],
        activity: BTreeMap::new(),
    };
    world.must(Input::Observed(Arc::new(observed)));
    let wanted = wanted(&world, "net1", id);
    assert_eq!(wanted.peers[1].reach.address, Some([192, 0, 2, 200].into()));
    assert!(world.broker.desired(&node("net1")).expect("desired").generation > before);
}

#[test]
fn ranks_know_their_allocation_by_slurms_names() {
    let mut world = World::new(&["net1", "net2", "net3"]);
    let id = gang(&mut world, "dev", 3, 4);
    let env: BTreeMap<String, String> = wanted(&world, "net2", id).env.into_iter().collect();
    let is = |name: &str, value: &str| assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    is("SLURM_JOB_NODELIST", "net[1-3]");
    is("CARREL_NODES", "net1,net2,net3");
    is("SLURM_NNODES", "3");
    is("SLURM_NODEID", "1");
    is("SLURMD_NODENAME", "net2");
    is("SLURM_TASKS_PER_NODE", "1(x3)");
    is("SLURM_GPUS_ON_NODE", "4");
    is("MASTER_ADDR", "net1");
    is("MASTER_PORT", &(20_000 + id.0).to_string());
    assert!(
        !env.contains_key("SLURM_NTASKS"),
        "nobody asked for a number of tasks"
    );
    assert_eq!(wanted(&world, "net2", id).peers[0].slots, 4);
}

/// Programs take a job that is called "interactive" or "bash" for no step of many tasks.
#[test]
fn who_gives_no_name_says_what_slurm_would_call_it() {
    for (ephemeral, called) in [(true, "interactive"), (false, "dev")] {
        let mut world = World::new(&["net1"]);
        let mut spec = gpus(1);
        spec.env.insert("SLURM_JOB_NAME".into(), "interactive".into());
        let request = OpenSession {
            ephemeral,
            ..open("dev", spec)
        };
        let id = world.open("alice", request).1;
        let env: BTreeMap<String, String> = wanted(&world, "net1", id).env.into_iter().collect();
        assert_eq!(env["SLURM_JOB_NAME"], called);
    }
}

/// Only the first node has the command: of another one it is the container that ended, and the whole gang ends with it.
#[test]
fn a_container_that_ends_alone_is_named() {
    let mut world = World::new(&["net1", "net2"]);
    let mut spec = gpus(8);
    spec.request.nodes = 2;
    let id = world.submit("alice", spec);
    for name in ["net1", "net2"] {
        let ready = world.seen(id, name, ObservedPhase::Ready);
        world.report(name, vec![ready]);
    }
    let other = world.job(id).placed().expect("placed").allocation.nodes[1]
        .node
        .to_string();
    let mut killed = world.seen(id, &other, ObservedPhase::Released);
    killed.cause = Some(EndCause::Exited);
    killed.exit_code = Some(137);
    world.report(&other, vec![killed]);
    let first = world
        .job(id)
        .placed()
        .expect("the other one is told")
        .allocation
        .nodes[0]
        .node
        .to_string();
    let gone = world.seen(id, &first, ObservedPhase::Released);
    world.report(&first, vec![gone]);
    assert_eq!(world.state(id), JobState::Failed);
    let reason = world.reason(id);
    assert!(
        reason.contains(&format!("its container ended with exit code 137 (node {other})")),
        "{reason}"
    );
}
