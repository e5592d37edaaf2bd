//! The store was lost, or is older than the cluster: nobody's work ends, and operators take it over.

use super::*;
use crate::model::ids::{Generation, JobKey};

/// What a node runs that the broker does not know: session 7 of alice, named "dev", on 4 GPUs.
fn stranger(world: &World, name: &str) -> ObservedJob {
    let inventory = inventory(name);
    ObservedJob {
        key: "900@5.1".parse().expect("a key"),
        session: Some(SessionId(7)),
        phase: ObservedPhase::Ready,
        detail: String::new(),
        host_key: "ssh-ed25519 AAAA".into(),
        cause: None,
        exit_code: None,
        gpus: inventory.gpus[..4]
            .iter()
            .map(|gpu| gpu.uuid.clone().into())
            .collect(),
        cpus: 8,
        memory_bytes: 1 << 30,
        user: Some("alice".parse().expect("a user name")),
        name: "dev".into(),
        deadline: world.now.after(Duration::from_hours(1)),
        cluster: cluster(),
        connections: 1,
        rank: 0,
        nodes: 1,
        started: world.now,
        image: "local/debian".into(),
        containment: Containment::default(),
        binding: Binding::default(),
        network: RankNetwork::Own,
    }
}

fn adopt(key: JobKey) -> Input {
    Input::AdoptJob(caller("root"), key)
}

#[test]
fn a_lost_store_is_made_good_by_adopting() {
    let mut world = World::new(&[]);
    world.must(Input::FindNode {
        node: node("n1"),
        certificate: "aa".into(),
    });
    let seen = stranger(&world, "n1");
    world.report("n1", vec![seen.clone()]);
    assert_eq!(node_state(world.broker.state(), &node("n1")).0, "FOUND");
    let (_, waiting) = world.open("bob", open("four", gpus(4)));
    assert_eq!(
        world.state(waiting),
        JobState::Pending,
        "nothing is placed on a found node"
    );
    let desired = world.broker.desired(&node("n1")).expect("it is answered");
    assert!(desired.jobs.is_empty() && desired.tombstones.is_empty());

    let early = world
        .handle(adopt(seen.key))
        .expect_err("its node is not adopted");
    assert!(early.hint.contains("carrel node adopt n1"), "{early:?}");
    let theirs = Input::AdoptNode(caller("alice"), node("n1"));
    assert!(world.handle(theirs).is_err(), "operators only");
    world.must(Input::AdoptNode(caller("root"), node("n1")));
    assert_eq!(
        world.state(waiting),
        JobState::Configuring,
        "the other four are free"
    );

    let found = found_jobs(world.broker.state());
    assert_eq!((found.len(), &found[0].obstacle), (1, &None));
    world.must(adopt(seen.key));
    assert!(found_jobs(world.broker.state()).is_empty());
    let job = world.job(JobId(900)).clone();
    assert_eq!((job.state(), job.key()), (JobState::Running, Some(seen.key)));
    let dev = "dev".parse().expect("a name");
    let wanted = SessionRef::Own(dev);
    let session = world
        .broker
        .state()
        .session_for(&caller("alice"), &wanted, Call::GetSession);
    assert_eq!(session.expect("hers").job, Some(JobId(900)));
    world.restart(9);
    assert_eq!(world.state(JobId(900)), JobState::Running, "it is kept");
    world.report_at("n1", vec![seen], 0);
    let wanted = world.broker.desired(&node("n1")).expect("desired").jobs;
    assert!(wanted.iter().any(|job| job.key.job == JobId(900) && job.ready));
}

#[test]
fn found_jobs_end_when_an_operator_says_so() {
    let mut world = World::new(&["n1"]);
    let seen = stranger(&world, "n1");
    world.report("n1", vec![seen.clone()]);
    let mine = Input::EndFound(caller("alice"), seen.key);
    assert!(world.handle(mine).is_err(), "operators only");
    world.must(Input::EndFound(caller("root"), seen.key));
    world.restart(9);
    world.report_at("n1", vec![seen.clone()], 0);
    let stones = world.broker.desired(&node("n1")).expect("desired").tombstones;
    assert_eq!(
        stones.iter().map(|stone| stone.key).collect::<Vec<_>>(),
        [seen.key]
    );
    assert!(found_jobs(world.broker.state())[0].ending);
    assert!(world.handle(adopt(seen.key)).is_err(), "it is ending");
    world.report("n1", vec![]);
    assert!(world.broker.state().tombstones.is_empty());
    assert!(
        world.handle(Input::EndFound(caller("root"), seen.key)).is_err(),
        "it is gone"
    );
}

/// A restored backup gives ids out again before it has heard of the nodes that know them.
#[test]
fn another_job_of_the_same_id_is_not_the_same_job() {
    let mut world = World::new(&["n1", "n2"]);
    let (_, own) = world.open("bob", open("theirs", gpus(8)));
    let placed = world.job(own).placed().expect("placed").clone();
    let on = placed.allocation.nodes[0].node.clone();
    let other = if on == node("n1") { "n2" } else { "n1" };
    let seen = ObservedJob {
        key: JobKey {
            job: own,
            generation: Generation(placed.generation.0 - 1),
        },
        ..stranger(&world, other)
    };
    world.report(other, vec![seen.clone()]);
    let refused = world.handle(adopt(seen.key)).expect_err("the id is taken");
    assert!(refused.message.contains("bob"), "{refused:?}");
    let session = world.job(own).session.expect("a session");
    world.must(Input::StopSession(caller("bob"), SessionRef::Id(session), None));
    let desired = world.broker.desired(&node(other)).expect("desired");
    assert!(
        desired.tombstones.is_empty(),
        "bob's end is not alice's: {desired:?}"
    );
    world.must(Input::EndFound(caller("root"), seen.key));
    let desired = world.broker.desired(&node(other)).expect("desired");
    assert_eq!(desired.tombstones.len(), 1);
}

#[test]
fn a_job_that_waited_in_the_backup_and_runs_is_the_same_one() {
    let mut world = World::new(&["n1"]);
    let (_, first) = world.open("bob", open("all", gpus(8)));
    let (session, waiting) = world.open("alice", open("dev", gpus(4)));
    assert_eq!(world.state(waiting), JobState::Pending);
    // Since the backup bob's job has ended, and alice's was started.
    let seen = ObservedJob {
        key: JobKey {
            job: waiting,
            generation: Generation::first_of(50).next(),
        },
        session: Some(session),
        ..stranger(&world, "n1")
    };
    world.report("n1", vec![seen.clone()]);
    assert_eq!(world.state(first), JobState::NodeFail);
    assert_eq!(world.state(waiting), JobState::Running);
    assert_eq!(world.job(waiting).key(), Some(seen.key));
}

#[test]
fn a_gang_is_adopted_whole_or_not() {
    let mut world = World::new(&["n1", "n2"]);
    let part = |world: &World, name: &str, rank| ObservedJob {
        rank,
        nodes: 2,
        ..stranger(world, name)
    };
    let (one, two) = (part(&world, "n1", 0), part(&world, "n2", 1));
    world.report("n2", vec![two]);
    let key = one.key;
    assert!(world.handle(adopt(key)).is_err(), "half of it");
    world.report("n1", vec![one]);
    world.must(adopt(key));
    let placed = world.job(key.job).placed().expect("placed").clone();
    let nodes: Vec<_> = placed
        .allocation
        .nodes
        .iter()
        .map(|part| part.node.as_str())
        .collect();
    assert_eq!(nodes, ["n1", "n2"]);
    assert_eq!(world.state(key.job), JobState::Running);
}

/// A node's certificate was renewed after the backup was made.
#[test]
fn a_certificate_that_the_backup_does_not_know_is_the_newer_one() {
    let mut world = World::new(&["n1"]);
    let find = |certificate: &str| Input::FindNode {
        node: node("n1"),
        certificate: certificate.into(),
    };
    world.must(find("ff"));
    let record = world.broker.state().nodes[&node("n1")].clone();
    assert!(record.accepts("ff") && record.accepts("0") && record.found.is_none());
    world.must(find("ee"));
    let revoked = world.handle(find("0")).expect_err("replaced twice");
    assert_eq!(revoked.kind, RejectKind::Denied);
}

/// Without room on the disk a node keeps its lease all the same.
#[test]
fn a_contact_renews_the_lease_and_keeps_nothing() {
    let mut world = World::new(&["n1"]);
    let (_, id) = world.open("alice", open("dev", gpus(4)));
    let ready = world.seen(id, "n1", ObservedPhase::Ready);
    world.wait(settings().lease);
    let state = world.broker.state();
    let report = Observed {
        node: node("n1"),
        boot_id: "boot".into(),
        seq: world.seq + 1,
        accepted: Some((cluster(), state.cluster.incarnation)),
        generation: 0,
        inventory: Inventory::default(),
        jobs: vec![ready],
        version: String::new(),
        images: vec![],
        activity: BTreeMap::new(),
    };
    let output = world.must(Input::Contact(Arc::new(report)));
    assert!(output.changes.is_empty());
    assert!(output.effects.contains(&Effect::SendDesired(node("n1"))));
    assert_eq!(
        world.broker.desired(&node("n1")).expect("desired").renews,
        world.seq + 1
    );
    world.wait(settings().lease);
    world.must(Input::Tick);
    assert_ne!(world.state(id), JobState::NodeFail);
}

/// Room on the disk came back later than the node: jobs that waited for it start with its next report.
#[test]
fn what_a_contact_could_not_start_starts_with_the_next_report() {
    let mut world = World::new(&["n1"]);
    world.must(Input::Disconnected(node("n1")));
    let (_, id) = world.open("alice", open("dev", gpus(4)));
    assert_eq!(world.state(id), JobState::Pending);
    let state = world.broker.state();
    let report = Observed {
        node: node("n1"),
        boot_id: "boot".into(),
        seq: world.seq + 1,
        accepted: Some((cluster(), state.cluster.incarnation)),
        generation: 0,
        inventory: state.nodes[&node("n1")].inventory.clone(),
        jobs: vec![],
        version: String::new(),
        images: vec![],
        activity: BTreeMap::new(),
    };
    world.must(Input::Contact(Arc::new(report)));
    assert_eq!(world.state(id), JobState::Pending, "nothing can be kept");
    world.seq += 1;
    world.report("n1", vec![]);
    assert_ne!(world.state(id), JobState::Pending);
}

#[test]
fn leases_are_lengths_of_time_whatever_the_wall_clock_says() {
    let mut world = World::new(&["n1"]);
    let (_, id) = world.open("alice", open("dev", gpus(4)));
    let day = Duration::from_hours(4);
    world.wait(day);
    world.must(Input::ClockStepped(day));
    world.must(Input::Tick);
    assert_ne!(world.state(id), JobState::NodeFail);
    world.wait(settings().lease + settings().lease_margin);
    world.must(Input::Tick);
    assert_eq!(world.state(id), JobState::NodeFail);
}
