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
        Call::UpdateJob,
        Call::ListJobs,
        Call::ListHistory,
        Call::ExplainJob,
        Call::ListQueue,
    ];
    assert_eq!(possible, wanted);
    for call in Call::ALL {
        assert_eq!(
            call.needs().inside == Inside::Own,
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
