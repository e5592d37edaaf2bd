//! Nodes that vanish, return, restart, or know better.

use super::*;
use crate::model::ids::{Generation, Incarnation, JobKey};

fn running(world: &mut World, name: &str) -> JobId {
    let (_, id) = world.open("alice", open(name, gpus(4)));
    let ready = world.seen(id, "n1", ObservedPhase::Ready);
    world.report("n1", vec![ready]);
    assert_eq!(world.state(id), JobState::Running);
    id
}

#[test]
fn a_restarted_broker_desires_what_it_did() {
    let mut world = World::new(&["n1"]);
    let id = running(&mut world, "dev");
    let before = world.broker.desired(&node("n1")).expect("desired").jobs;
    let ready = world.seen(id, "n1", ObservedPhase::Ready);
    world.restart(8);
    assert!(
        world.broker.desired(&node("n1")).is_none(),
        "nothing is said before the node has spoken"
    );
    assert_eq!(world.state(id), JobState::Running);
    world.report_at("n1", vec![ready], 0);
    assert_eq!(world.broker.desired(&node("n1")).expect("desired").jobs, before);
    assert_eq!(world.state(id), JobState::Running);
}

#[test]
fn what_a_silent_node_holds_is_free_only_after_its_lease() {
    let mut world = World::new(&["n1"]);
    let id = running(&mut world, "dev");
    world.must(Input::Disconnected(node("n1")));
    world.wait(settings().lease);
    world.must(Input::Tick);
    assert_eq!(world.state(id), JobState::Running);
    world.wait(settings().lease_margin);
    world.must(Input::Tick);
    assert_eq!(world.state(id), JobState::NodeFail);
}

#[test]
fn a_restart_grants_a_whole_lease_to_nodes_not_heard_of() {
    let mut world = World::new(&["n1"]);
    let id = running(&mut world, "dev");
    world.wait(settings().lease);
    world.restart(8);
    world.wait(settings().lease);
    world.must(Input::Tick);
    assert_eq!(world.state(id), JobState::Running);
}

#[test]
fn a_node_that_acted_and_has_nothing_has_lost_the_job() {
    let mut world = World::new(&["n1"]);
    let id = running(&mut world, "dev");
    let generation = world.broker.state().links[&node("n1")].since[&id];
    world.report_at("n1", vec![], generation - 1);
    assert_eq!(
        world.state(id),
        JobState::Running,
        "it may not have heard of it as it stands"
    );
    world.report_at("n1", vec![], generation);
    assert_eq!(world.state(id), JobState::NodeFail);
}

#[test]
fn an_empty_store_ends_nobodys_work_and_gives_away_nothing_of_it() {
    let mut world = World::new(&["n1"]);
    let id = running(&mut world, "dev");
    let mut seen = world.seen(id, "n1", ObservedPhase::Ready);
    let mut fresh = World::new(&["n1"]);
    seen.key = JobKey {
        job: JobId(900),
        generation: Generation::first_of(5),
    };
    fresh.report("n1", vec![seen.clone()]);
    let desired = fresh.broker.desired(&node("n1")).expect("desired");
    assert!(desired.jobs.is_empty() && desired.tombstones.is_empty());
    assert_eq!(node_view(fresh.broker.state(), &node("n1")).unknown.len(), 1);
    let (_, five) = fresh.open("bob", open("five", gpus(5)));
    assert_eq!(
        fresh.state(five),
        JobState::Pending,
        "four of eight are in use by a stranger"
    );
    assert!(five > JobId(900), "ids that the node has seen are not used again");
}

#[test]
fn a_restored_store_goes_on_after_what_nodes_have_seen() {
    let mut world = World::new(&["n1"]);
    let before = world.broker.state().cluster.incarnation;
    let observed = Observed {
        node: node("n1"),
        boot_id: "boot".into(),
        seq: 1_000,
        accepted: Some((cluster(), Incarnation { number: 9, nonce: 99 })),
        generation: 50,
        inventory: inventory("n1"),
        jobs: vec![],
        version: String::new(),
        images: vec![],
        activity: BTreeMap::new(),
    };
    world.must(Input::Observed(Arc::new(observed)));
    let after = world.broker.state().cluster.incarnation;
    assert_eq!(
        after,
        Incarnation {
            number: 10,
            nonce: before.nonce
        }
    );
    let (_, id) = world.open("alice", open("dev", gpus(1)));
    let placed = world.job(id).placed().expect("placed").generation;
    assert!(placed > Generation::first_of(10));
    assert!(
        world
            .store
            .iter()
            .any(|change| matches!(change, Change::PutCluster(c) if c.incarnation == after))
    );
}

#[test]
fn late_and_repeated_reports_change_nothing() {
    let mut world = World::new(&["n1"]);
    let id = running(&mut world, "dev");
    world.seq -= 1;
    let state = world.broker.state();
    let stale = Observed {
        node: node("n1"),
        boot_id: "boot".into(),
        seq: world.seq,
        accepted: Some((cluster(), state.cluster.incarnation)),
        generation: 1_000,
        inventory: inventory("n1"),
        jobs: vec![],
        version: String::new(),
        images: vec![],
        activity: BTreeMap::new(),
    };
    assert!(world.handle(Input::Observed(Arc::new(stale))).is_err());
    assert_eq!(world.state(id), JobState::Running);
}

#[test]
fn a_join_token_is_good_once() {
    let mut world = World::new(&[]);
    let token = NodeToken {
        hash: [9; 32],
        node: Some(node("n9")),
        expires: world.now.after(Duration::from_secs(9)),
    };
    world.must(Input::CreateNodeToken(caller("root"), token));
    let join = |name: &str| Input::JoinNode {
        token: [9; 32],
        node: node(name),
        certificate: "aa".into(),
        origin: Origin::Local(0),
    };
    assert!(world.handle(join("other")).is_err(), "it is for another node");
    world.must(join("n9"));
    assert!(world.handle(join("n9")).is_err(), "it was used");
    assert!(world.broker.state().nodes[&node("n9")].accepts("aa"));
    let renew = |old: &str, new: &str| Input::RenewNode {
        node: node("n9"),
        old: old.into(),
        certificate: new.into(),
    };
    world.must(renew("aa", "bb"));
    world.must(renew("aa", "cc"));
    let record = world.broker.state().nodes[&node("n9")].clone();
    assert!(
        record.accepts("aa") && record.accepts("cc") && !record.accepts("bb"),
        "the lost answer's is void"
    );
    assert!(world.handle(renew("bb", "dd")).is_err());
}
