//! What a job may ask from inside: of itself, and nothing else.

use super::*;
use crate::model::audit::Action;
use crate::model::ids::JobKey;
use crate::model::session::Share;

fn reference(text: &str) -> SessionRef {
    text.parse().expect("a name")
}

fn key(world: &World, id: JobId) -> JobKey {
    world.job(id).key().expect("an allocation")
}

/// The certificate of n1 in a [`World`] whose first node it is, and of n2.
const N1: &str = "0";
const N2: &str = "1";

fn inside(world: &World, id: JobId) -> Caller {
    let state = world.broker.state();
    state
        .caller_inside(&node("n1"), N1, key(world, id))
        .expect("it runs there")
}

/// Alice's "dev" runs on n1 of two nodes; she has another session, "other", and bob shares his with her.
fn world() -> (World, JobId) {
    let mut world = World::new(&["n1", "n2"]);
    let (_, id) = world.open("alice", open("dev", gpus(8)));
    assert_eq!(
        world.job(id).placed().expect("placed").allocation.nodes[0].node,
        node("n1")
    );
    let seen = world.seen(id, "n1", ObservedPhase::Ready);
    world.report("n1", vec![seen]);
    world.open("alice", open("other", gpus(1)));
    world.open("bob", open("bobs", gpus(1)));
    let share = Input::ShareSession(
        caller("bob"),
        reference("bobs"),
        "alice".parse().expect("a name"),
        Share::Full,
    );
    world.must(share);
    (world, id)
}

/// The table, call by call: these and no others, whatever the owner's role is outside.
#[test]
fn the_table_names_every_call_that_is_possible_from_inside() {
    let (world, id) = world();
    let caller = inside(&world, id);
    let possible: Vec<Call> = Call::ALL
        .into_iter()
        .filter(|call| caller.must(*call).is_ok())
        .collect();
    let wanted = [
        Call::GetCluster,
        Call::GetSession,
        Call::ListSessions,
        Call::ExtendSession,
        Call::StopSession,
        Call::OpenStream,
        Call::SignSshKey,
        Call::GetJob,
        Call::SubmitJob,
        Call::RequeueJob,
        Call::CancelJob,
        Call::SignalJob,
        Call::UpdateJob,
        Call::ListJobs,
        Call::ListHistory,
        Call::ExplainJob,
        Call::ListNodes,
        Call::ListPartitions,
        Call::ListQueue,
    ];
    assert_eq!(possible, wanted);
    for call in Call::ALL {
        assert_eq!(
            call.needs().inside != Inside::No,
            wanted.contains(&call),
            "{call:?}"
        );
        assert!(!caller.reaches_others(call), "{call:?}");
        if !wanted.contains(&call) {
            let reject = caller.must(call).expect_err("refused");
            assert_eq!(reject.kind, RejectKind::Denied, "{call:?}");
            assert!(reject.message.contains("inside a session"), "{call:?}: {reject}");
        }
        // Its own session by each name, and no other: not the owner's, not one that is shared with them,
        // and one that does not exist is told in the same words.
        let state = world.broker.state();
        for name in ["dev", "dev.alice", "#1"] {
            let found = state.session_for(&caller, &reference(name), call);
            assert_eq!(found.is_ok(), wanted.contains(&call), "{call:?} {name}");
        }
        let refusals: Vec<Reject> = ["other", "#2", "bobs.bob", "#3", "none", "#99", "x.nobody"]
            .into_iter()
            .map(|name| {
                let refused = state.session_for(&caller, &reference(name), call);
                refused.expect_err("not its own")
            })
            .collect();
        assert!(
            refusals.windows(2).all(|pair| pair[0] == pair[1]),
            "{call:?}: {refusals:?}"
        );
    }
    let seen = |id| world.broker.state().job_for(&caller, id);
    assert!(seen(id).is_ok());
    for other in [JobId(2), JobId(3), JobId(99)] {
        assert_eq!(seen(other).expect_err("not its own").kind, RejectKind::Denied);
    }
}

/// Only the node that runs the very allocation, with its own certificate, speaks for it.
#[test]
fn only_its_node_speaks_for_an_allocation() {
    let (world, id) = world();
    let state = world.broker.state();
    let own = key(&world, id);
    let caller = state.caller_inside(&node("n1"), N1, own).expect("it runs there");
    assert_eq!((caller.user.as_str(), caller.role), ("alice", Role::User));
    assert_eq!(caller.origin, Origin::Job(node("n1"), own));
    let before = JobKey {
        generation: crate::model::ids::Generation(own.generation.0 - 1),
        ..own
    };
    let unknown = JobKey {
        job: JobId(99),
        ..own
    };
    for (name, certificate, key) in [
        ("n2", N2, own),
        ("n1", N2, own),
        ("n1", "", own),
        ("n3", N1, own),
        ("n1", N1, before),
        ("n1", N1, unknown),
    ] {
        let refused = state.caller_inside(&node(name), certificate, key);
        assert_eq!(
            refused.expect_err("refused").kind,
            RejectKind::Denied,
            "{name} {certificate} {key}"
        );
    }
}

/// A job extends and stops itself; nothing else that changes anything is taken from it.
#[test]
fn a_job_extends_and_stops_itself() {
    let (mut world, id) = world();
    let caller = inside(&world, id);
    let before = world.job(id).placed().expect("placed").deadline;
    world.must(Input::ExtendSession(
        caller.clone(),
        reference("dev"),
        Duration::from_hours(1),
    ));
    let after = world.job(id).placed().expect("placed").deadline;
    assert_eq!(after, before.after(Duration::from_hours(1)));

    let token = super::tokens::token(&world, 1, "alice");
    let refused = [
        Input::ExtendSession(caller.clone(), reference("other"), Duration::from_hours(1)),
        Input::StopSession(caller.clone(), reference("other"), None),
        Input::StopSession(caller.clone(), reference("bobs.bob"), None),
        Input::RemoveSession(caller.clone(), reference("dev")),
        Input::OpenSession(caller.clone(), open("more", gpus(1))),
        Input::CreateToken(caller.clone(), token),
        Input::RevokeToken(caller.clone(), "t1".into()),
        Input::AddSshKey(caller.clone(), "ssh-ed25519 AAAA".into()),
        Input::RemoveSshKey(caller.clone(), "ssh-ed25519 AAAA".into()),
        Input::ShareSession(
            caller.clone(),
            reference("dev"),
            "bob".parse().expect("a name"),
            Share::Full,
        ),
    ];
    for input in refused {
        let reject = world.handle(input.clone()).expect_err("refused");
        assert_eq!(reject.kind, RejectKind::Denied, "{input:?}: {reject}");
    }

    let noted = world.store.len();
    world.must(Input::StopSession(caller.clone(), reference("dev"), None));
    assert_eq!(world.state(id), JobState::Completing);
    assert_eq!(world.reason(id), "stopped by alice from inside");
    // As from outside: what one does to one's own shows in the job.
    let audited = world.store[noted..]
        .iter()
        .any(|change| matches!(change, Change::Audit(record) if record.action == Action::SessionStop));
    assert!(!audited);
    // While it ends it is still there; then it is not.
    let state = world.broker.state();
    assert!(state.caller_inside(&node("n1"), N1, key(&world, id)).is_ok());
    let own = key(&world, id);
    let gone = world.seen(id, "n1", ObservedPhase::Released);
    world.report("n1", vec![gone]);
    let state = world.broker.state();
    assert!(state.caller_inside(&node("n1"), N1, own).is_err());
}

/// What was under way when a job ended does not reach the session's next one.
#[test]
fn a_call_does_not_outlive_its_job() {
    let (mut world, id) = world();
    let caller = inside(&world, id);
    world.must(Input::StopSession(self::caller("alice"), reference("dev"), None));
    let gone = world.seen(id, "n1", ObservedPhase::Released);
    world.report("n1", vec![gone]);
    let (_, next) = world.open("alice", open("dev", gpus(8)));
    assert_ne!(next, id);
    for input in [
        Input::StopSession(caller.clone(), reference("dev"), None),
        Input::ExtendSession(caller, reference("dev"), Duration::from_hours(1)),
    ] {
        assert_eq!(world.handle(input).expect_err("refused").kind, RejectKind::Denied);
    }
    assert!(
        world
            .job(next)
            .placed()
            .is_none_or(|placed| placed.ending.is_none())
    );
}

/// From inside a batch job: it and what it submits are reached, and nothing else; and what it submits is no wider.
#[test]
fn a_job_submits_what_is_no_wider_than_itself() {
    use crate::model::batch::{Output as Files, Place};
    use crate::model::session::Mount;
    use crate::model::terms::TermsRequest;
    let mut world = World::new(&["n1"]);
    let request = |image: &str, mounts: Vec<Mount>, terms: TermsRequest| SubmitJob {
        name: "child".to_owned(),
        spec: SessionSpec {
            image: image.into(),
            terms,
            container: crate::model::session::ContainerOptions {
                mounts,
                ..Default::default()
            },
            ..gpus(1)
        },
        command: vec!["true".into()],
        script: None,
        output: Files::default(),
        submitted_from: Place::default(),
        comment: String::new(),
        requeue: true,
        mail: None,
        start: StartWish::default(),
        array: None,
        request_key: String::new(),
    };
    let submit = |world: &mut World, caller: Caller, request: SubmitJob| -> Result<JobId, Reject> {
        match world.handle(Input::SubmitJob(caller, Box::new(request)))?.reply {
            Reply::Job(id) => Ok(id),
            other => panic!("no job: {other:?}"),
        }
    };
    let plain = || request("", Vec::new(), TermsRequest::default());
    let own_image = request("local/own", Vec::new(), TermsRequest::default());
    let parent = submit(&mut world, caller("alice"), own_image).expect("from outside");
    let other = submit(&mut world, caller("alice"), plain()).expect("from outside");
    let seen = world.seen(parent, "n1", ObservedPhase::Ready);
    let beside = world.seen(other, "n1", ObservedPhase::Ready);
    world.report("n1", vec![seen, beside]);
    let asks = inside(&world, parent);
    let child = submit(&mut world, asks.clone(), plain()).expect("no wider");
    let batch = world.job(child).batch.clone().expect("a batch job");
    assert_eq!(
        (batch.image.as_str(), batch.submitted_by),
        ("local/own", Some(parent))
    );

    let mount = Mount {
        source: "/data".into(),
        target: "/data".into(),
        read_only: true,
    };
    let elsewhere = |terms| request("", Vec::new(), terms);
    for (wider, what) in [
        (request("", vec![mount], TermsRequest::default()), "/data"),
        (
            elsewhere(TermsRequest {
                account: Some("physics".parse().expect("a name")),
                ..TermsRequest::default()
            }),
            "account",
        ),
        (
            elsewhere(TermsRequest {
                partition: Some("other".parse().expect("a name")),
                ..TermsRequest::default()
            }),
            "partition",
        ),
    ] {
        let refused = submit(&mut world, asks.clone(), wider).expect_err(what);
        assert_eq!(refused.kind, RejectKind::Denied, "{refused}");
        assert!(refused.message.contains(what), "{refused}");
    }

    // It reaches itself and its child, and not another job of the same user.
    let all = [parent, child, other];
    let state = world.broker.state();
    assert_eq!(
        all.map(|id| state.within_reach(&asks, world.job(id))),
        [true, true, false]
    );
    for input in [
        Input::CancelJob(asks.clone(), other.into()),
        Input::RequeueJob(asks.clone(), other.into()),
        Input::UpdateJob(asks.clone(), other.into(), JobUpdate::default()),
        Input::CancelJob(asks.clone(), JobId(99).into()),
    ] {
        assert_eq!(
            world.handle(input).expect_err("out of reach").kind,
            RejectKind::Denied
        );
    }
    world.must(Input::CancelJob(asks.clone(), child.into()));
    world.must(Input::RequeueJob(asks.clone(), parent.into()));
    assert_eq!(world.state(parent), JobState::Completing);
    // Once its allocation is gone, what it had under way reaches nothing, not even itself.
    let gone = world.seen(parent, "n1", ObservedPhase::Released);
    let beside = world.seen(other, "n1", ObservedPhase::Ready);
    world.report("n1", vec![gone, beside]);
    assert!(
        world
            .handle(Input::CancelJob(asks.clone(), parent.into()))
            .is_err()
    );
    assert!(submit(&mut world, asks, plain()).is_err());
}

/// A signal is a count that grows with each, of what runs alone.
#[test]
fn signals_are_counted() {
    use crate::model::job::Sent;
    let mut world = World::new(&["n1"]);
    let id = world.submit("alice", gpus(1));
    let sent = |signal| Sent {
        signal,
        shells: false,
        others: true,
    };
    let send = |world: &mut World, user: &str, signal| {
        world.handle(Input::SignalJob(caller(user), id.into(), sent(signal)))
    };
    assert!(send(&mut world, "alice", 10).is_err(), "it does not run yet");
    let seen = world.seen(id, "n1", ObservedPhase::Ready);
    world.report("n1", vec![seen]);
    assert!(send(&mut world, "bob", 10).is_err());
    assert!(send(&mut world, "alice", 0).is_err());
    send(&mut world, "alice", 10).expect("its owner");
    send(&mut world, "ops", 12).expect("an operator");
    let signalled = world.job(id).placed().expect("it runs").signalled.expect("two");
    assert_eq!((signalled.count, signalled.sent.signal), (2, 12));
    let told = world.broker.desired(&node("n1")).expect("heard of");
    assert_eq!(told.jobs[0].signalled, Some(signalled));
    assert_eq!(world.state(id), JobState::Running);
}
