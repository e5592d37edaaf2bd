//! What users may ask, and what they are told.

use super::*;
use crate::placement::Outlook;

fn kind(result: Result<Output, Reject>) -> RejectKind {
    result.expect_err("refused").kind
}

#[test]
fn impossible_requests_are_refused_at_once() {
    let mut world = World::new(&["n1"]);
    let refused = |world: &mut World, change: fn(&mut SessionSpec)| {
        let mut spec = gpus(1);
        change(&mut spec);
        let reject = world
            .handle(Input::OpenSession(caller("alice"), open("dev", spec)))
            .expect_err("refused");
        assert_eq!(reject.kind, RejectKind::Invalid, "{reject}");
        reject
    };
    let reject = refused(&mut world, |spec| spec.request.gpus_per_node = 9);
    assert!(reject.message.contains("can never hold"), "{reject}");
    refused(&mut world, |spec| spec.request.gpu_model = "B200".into());
    refused(&mut world, |spec| spec.request.nodes = 0);
    refused(&mut world, |spec| spec.request.nodes = 2);
    refused(&mut world, |spec| spec.request.gpus_per_node = u32::MAX);
    refused(&mut world, |spec| spec.request.cpus_per_node = 1 << 20);
    refused(&mut world, |spec| spec.request.memory_bytes_per_node = u64::MAX);
    refused(&mut world, |spec| spec.time_limit = Duration::from_hours(10_000));
    assert!(
        world.broker.state().sessions.is_empty(),
        "a refused request changes nothing"
    );
    assert!(world.broker.state().jobs.is_empty());
}

#[test]
fn a_cluster_without_nodes_says_so() {
    let mut world = World::new(&[]);
    let result = world.handle(Input::OpenSession(caller("alice"), open("dev", gpus(1))));
    assert!(result.expect_err("refused").message.contains("no nodes"));
}

#[test]
fn opening_twice_finds_the_same_session() {
    let mut world = World::new(&["n1"]);
    let first = world.open("alice", open("dev", gpus(2)));
    let second = world.open("alice", open("dev", gpus(4)));
    assert_eq!(first, second);
    let taken = OpenSession {
        must_start: true,
        ..open("dev", gpus(1))
    };
    assert_eq!(
        kind(world.handle(Input::OpenSession(caller("alice"), taken))),
        RejectKind::AlreadyExists
    );
    let other = world.open("bob", open("dev", gpus(1)));
    assert_ne!(first.0, other.0, "names are each user's own");
}

#[test]
fn a_repeated_request_has_one_effect() {
    let mut world = World::new(&["n1"]);
    let request = OpenSession {
        name: None,
        request_key: "k1".into(),
        start: StartWish::default(),
        ..open("x", gpus(1))
    };
    let first = world.open("alice", request.clone());
    assert_eq!(world.open("alice", request.clone()), first);
    world.restart(8);
    assert_eq!(
        world.open("alice", request.clone()),
        first,
        "also after a restart"
    );
    assert_ne!(world.open("bob", request).0, first.0, "keys are each user's own");
}

#[test]
fn another_users_session_is_not_theirs_to_touch() {
    let mut world = World::new(&["n1"]);
    let (id, _) = world.open("alice", open("dev", gpus(1)));
    for wanted in [SessionRef::Id(id), "dev.alice".parse().expect("a name")] {
        let stop = Input::StopSession(caller("bob"), wanted.clone(), None);
        assert_eq!(kind(world.handle(stop)), RejectKind::Denied);
        let extend = Input::ExtendSession(caller("bob"), wanted.clone(), Duration::from_mins(1));
        assert_eq!(kind(world.handle(extend)), RejectKind::Denied);
        assert_eq!(
            kind(world.handle(Input::RemoveSession(caller("bob"), wanted))),
            RejectKind::Denied
        );
    }
    let own = Input::StopSession(caller("bob"), "dev".parse().expect("a name"), None);
    assert_eq!(kind(world.handle(own)), RejectKind::NotFound);
    world.must(Input::StopSession(
        caller("root"),
        "dev.alice".parse().expect("a name"),
        None,
    ));
}

#[test]
fn only_administrators_administer() {
    let mut world = World::new(&["n1"]);
    let drain = |who: &str| Input::DrainNode(caller(who), node("n1"), "fan".into());
    assert_eq!(kind(world.handle(drain("alice"))), RejectKind::Denied);
    world.must(drain("root"));
    let (_, id) = world.open("alice", open("dev", gpus(1)));
    assert!(
        world.reason(id).starts_with("ReqNodeNotAvail: "),
        "{}",
        world.reason(id)
    );
    world.must(Input::ResumeNode(caller("root"), node("n1")));
    assert_eq!(world.state(id), JobState::Configuring);
}

/// `--root` waits for a node that can, and is refused where none ever could.
#[test]
fn root_is_had_on_nodes_that_can() {
    let mut world = World::new(&["old1", "old2"]);
    let as_root = |count: u32| {
        let mut spec = gpus(count);
        spec.container.root = true;
        spec
    };
    let refused = world.handle(Input::OpenSession(caller("alice"), open("dev", as_root(1))));
    let refused = refused.expect_err("no node can").message;
    assert!(
        refused.contains("node is not able to make its users root (it has Linux 5.10) on 2 nodes"),
        "{refused}"
    );
    let mut world = World::new(&["n1", "old1"]);
    let (_, all) = world.open("alice", open("all", as_root(8)));
    assert_eq!(
        world.job(all).last_placed().expect("placed").allocation.nodes[0].node,
        node("n1")
    );
    let (_, more) = world.open("alice", open("more", as_root(1)));
    assert!(
        world
            .reason(more)
            .contains("node is not able to make its users root"),
        "{}",
        world.reason(more)
    );
}

#[test]
fn defaults_are_no_more_than_the_gpus_share() {
    let mut world = World::new(&["n1"]);
    let (_, id) = world.open("alice", open("dev", gpus(2)));
    let request = &world.job(id).request;
    assert_eq!(request.cpus_per_node, 24);
    assert_eq!(request.memory_bytes_per_node, 256 << 30);
    let (_, all) = world.open("alice", open("all", gpus(8)));
    assert_eq!(world.job(all).request.cpus_per_node, 96);
    assert_eq!(world.job(all).request.memory_bytes_per_node, 1 << 40);
}

/// A request for one GPU unit of this kind.
fn unit(unit: UnitRequest) -> SessionSpec {
    let mut spec = gpus(1);
    spec.request.unit = unit;
    spec.request.nvlink = false;
    spec
}

/// What the job of a session holds.
fn held(world: &World, session: SessionId) -> Vec<String> {
    let state = world.broker.state();
    let job = state.live_job(&state.sessions[&session]).expect("a live job");
    let placed = job.placed().expect("it has been placed");
    let units = placed.allocation.nodes.iter().flat_map(|part| &part.gpus);
    units.map(ToString::to_string).collect()
}

#[test]
fn slices_and_shares_are_held_beside_each_other() {
    let mut world = World::new(&["mig1"]);
    let mut start = |name: &str, what: UnitRequest| world.open("alice", open(name, unit(what))).0;
    let half = || UnitRequest::Mig("3g.40gb".into());
    let share = |milli| UnitRequest::Share { milli, sharing: None };
    let sessions = [
        start("a", half()),
        start("b", half()),
        start("c", share(600)),
        start("d", share(600)),
        start("e", share(400)),
        start("f", UnitRequest::Whole),
    ];
    let held: Vec<String> = sessions
        .iter()
        .flat_map(|session| held(&world, *session))
        .collect();
    assert_eq!(
        held,
        [
            "GPU-mig1-7:3g.40gb@0+4",
            "GPU-mig1-7:3g.40gb@4+4",
            "GPU-mig1-0:600/1000,time-slice",
            "GPU-mig1-1:600/1000,time-slice",
            "GPU-mig1-0:400/1000,time-slice",
            "GPU-mig1-4",
        ]
    );
    // A third half waits, with the reason, until one of them has ended.
    let third = world.open("alice", open("g", unit(half()))).0;
    let reason = |world: &World| {
        let state = world.broker.state();
        let job = state
            .live_job(&state.sessions[&third])
            .expect("a live job")
            .clone();
        crate::broker::state_reason(state, &job)
    };
    assert!(
        reason(&world).contains("no free slice 3g.40gb"),
        "{}",
        reason(&world)
    );
    assert_eq!(check(world.broker.state()), []);
}

#[test]
fn slices_that_no_node_can_have_are_refused_at_once() {
    let mut world = World::new(&["n1"]);
    for (what, why) in [
        (UnitRequest::Mig("1g.10gb".into()), "no slice 1g.10gb"),
        (
            UnitRequest::Share {
                milli: 500,
                sharing: None,
            },
            "no GPU that jobs may share",
        ),
    ] {
        let result = world.handle(Input::OpenSession(caller("alice"), open("dev", unit(what))));
        let message = result.expect_err("refused").message;
        assert!(message.contains(why), "{message}");
    }
    // What has 90 GB is no H100.
    let mut spec = unit(UnitRequest::Least);
    spec.request.gpu_memory_bytes = 90_000_000_000;
    let result = world.handle(Input::OpenSession(caller("alice"), open("dev", spec.clone())));
    let message = result.expect_err("refused").message;
    assert!(
        message.contains("no GPU or slice with 90 GB of memory"),
        "{message}"
    );
    spec.request.gpu_memory_bytes = 80_000_000_000;
    let session = world.open("alice", open("dev", spec)).0;
    assert_eq!(held(&world, session), ["GPU-n1-0"]);
}

/// What hosts are worth follows from what was asked for: a start finds it again, and a refusal asks for nothing.
#[test]
fn what_was_asked_for_lately_outlives_a_restart() {
    let mut world = World::new(&["n1"]);
    for n in 0..100 {
        world.open("alice", open(&format!("s{n}"), gpus(1 + n % 2)));
    }
    let before = world.broker.state().recent.outlook();
    assert_ne!(before, Outlook::default());
    kind(world.handle(Input::OpenSession(caller("alice"), open("large", gpus(9)))));
    assert_eq!(world.broker.state().recent.outlook(), before);
    world.restart(8);
    assert_eq!(world.broker.state().recent.outlook(), before);
}
