//! A session's life, from the wish to the last acknowledgement.

use super::*;
use crate::model::job::Phase;

#[test]
fn a_session_is_placed_made_ready_and_released() {
    let mut world = World::new(&["n1"]);
    let (_, id) = world.open("alice", open("dev", gpus(4)));
    assert_eq!(world.state(id), JobState::Configuring);
    let desired = world.broker.desired(&node("n1")).expect("a desired state");
    assert_eq!(desired.jobs.len(), 1);
    assert_eq!(desired.jobs[0].gpus.len(), 4);
    assert!(!desired.jobs[0].go);

    let ready = world.seen(id, "n1", ObservedPhase::Ready);
    world.report("n1", vec![ready]);
    assert_eq!(world.state(id), JobState::Running);
    assert!(world.broker.desired(&node("n1")).expect("desired").jobs[0].go);

    world.must(Input::StopSession(
        caller("alice"),
        "dev".parse().expect("a name"),
        None,
    ));
    assert_eq!(world.state(id), JobState::Completing);
    let desired = world.broker.desired(&node("n1")).expect("desired");
    assert!(desired.jobs.is_empty());
    assert_eq!(desired.tombstones.len(), 1);

    let stopping = world.seen(id, "n1", ObservedPhase::Stopping);
    world.report("n1", vec![stopping]);
    assert_eq!(world.state(id), JobState::Completing, "it still holds its GPUs");
    let released = world.seen(id, "n1", ObservedPhase::Released);
    world.report("n1", vec![released]);
    assert_eq!(world.state(id), JobState::Completed);
    assert!(
        world
            .broker
            .desired(&node("n1"))
            .expect("desired")
            .tombstones
            .is_empty()
    );
}

#[test]
fn the_next_job_starts_with_the_release_that_makes_room() {
    let mut world = World::new(&["n1"]);
    let (_, first) = world.open("alice", open("big", gpus(8)));
    let (_, second) = world.open("bob", open("next", gpus(8)));
    let (_, third) = world.open("bob", open("last", gpus(1)));
    assert_eq!(world.state(second), JobState::Pending);
    assert!(
        world.reason(second).starts_with("Resources: "),
        "{}",
        world.reason(second)
    );
    assert_eq!(world.reason(third), "Resources: no free GPU on 1 node");
    assert_eq!(queue_position(world.broker.state(), third), Some(2));

    world.must(Input::StopSession(
        caller("alice"),
        "big".parse().expect("a name"),
        None,
    ));
    assert_eq!(
        world.state(second),
        JobState::Pending,
        "nothing is free before it is acknowledged"
    );
    let released = world.seen(first, "n1", ObservedPhase::Released);
    world.report("n1", vec![released]);
    assert_eq!(world.state(second), JobState::Configuring);
}

#[test]
fn a_gang_is_ready_when_all_of_it_is() {
    let mut world = World::new(&["n1", "n2"]);
    let mut spec = gpus(8);
    spec.request.nodes = 2;
    let (_, id) = world.open("alice", open("gang", spec));
    let ready = world.seen(id, "n1", ObservedPhase::Ready);
    world.report("n1", vec![ready]);
    assert_eq!(world.state(id), JobState::Configuring);
    assert!(!world.broker.desired(&node("n1")).expect("desired").jobs[0].go);
    let ready = world.seen(id, "n2", ObservedPhase::Ready);
    world.report("n2", vec![ready]);
    assert_eq!(world.state(id), JobState::Running);

    // One rank dies: all of it ends, and only then is it over.
    let mut gone = world.seen(id, "n2", ObservedPhase::Released);
    gone.cause = Some(EndCause::OutOfMemory);
    world.report("n2", vec![gone]);
    assert_eq!(world.state(id), JobState::Completing);
    assert_eq!(
        world
            .broker
            .desired(&node("n1"))
            .expect("desired")
            .tombstones
            .len(),
        1
    );
    let released = world.seen(id, "n1", ObservedPhase::Released);
    world.report("n1", vec![released]);
    assert_eq!(world.state(id), JobState::OutOfMemory);
}

#[test]
fn the_deadline_ends_a_session_and_can_be_extended() {
    let mut world = World::new(&["n1"]);
    let mut spec = gpus(1);
    spec.time_limit = Duration::from_hours(1);
    let (_, id) = world.open("alice", open("dev", spec));
    let dev: SessionRef = "dev".parse().expect("a name");
    let ready = world.seen(id, "n1", ObservedPhase::Ready);
    world.report("n1", vec![ready.clone()]);
    world.must(Input::ExtendSession(
        caller("alice"),
        dev.clone(),
        Duration::from_mins(30),
    ));
    for _ in 0..89 {
        world.wait(Duration::from_mins(1));
        world.report("n1", vec![ready.clone()]);
        world.must(Input::Tick);
    }
    assert_eq!(world.state(id), JobState::Running);
    world.wait(Duration::from_mins(1));
    world.must(Input::Tick);
    assert_eq!(world.state(id), JobState::Completing);
    let released = world.seen(id, "n1", ObservedPhase::Released);
    world.report("n1", vec![released]);
    assert_eq!(world.state(id), JobState::Timeout);
    let late = world.handle(Input::ExtendSession(caller("alice"), dev, Duration::from_mins(1)));
    assert_eq!(late.expect_err("over").kind, RejectKind::WrongState);
}

#[test]
fn a_session_that_could_not_be_started_says_why() {
    let mut world = World::new(&["n1"]);
    let (session, id) = world.open("alice", open("dev", gpus(1)));
    let mut failed = world.seen(id, "n1", ObservedPhase::Released);
    failed.cause = Some(EndCause::StartFailed);
    failed.detail = "image nowhere/nothing:1 was not found".into();
    world.report("n1", vec![failed]);
    assert_eq!(world.state(id), JobState::Failed);
    assert!(
        world.reason(id).contains("nowhere/nothing:1"),
        "{}",
        world.reason(id)
    );
    let session = &world.broker.state().sessions[&session];
    assert_eq!(
        session_state(world.broker.state(), session),
        crate::model::session::SessionState::Stopped
    );
}

#[test]
fn an_unnamed_session_is_forgotten_with_its_changes() {
    let mut world = World::new(&["n1"]);
    let request = OpenSession {
        name: None,
        ephemeral: true,
        ..open("x", gpus(1))
    };
    let (session, id) = world.open("alice", request);
    assert_eq!(world.job(id).name, format!("alloc-{id}"));
    world.must(Input::StopSession(
        caller("alice"),
        SessionRef::Id(session),
        Some(id),
    ));
    let released = world.seen(id, "n1", ObservedPhase::Released);
    let before = world.broker.state().links[&node("n1")].generation;
    world.report_at("n1", vec![released], before);
    assert!(world.broker.state().sessions.is_empty());
    let desired = world.broker.desired(&node("n1")).expect("desired");
    assert_eq!(desired.removed_sessions, vec![session]);
    world.report("n1", vec![]);
    assert!(
        world
            .broker
            .desired(&node("n1"))
            .expect("desired")
            .removed_sessions
            .is_empty()
    );
}

/// What `carrel alloc -- CMD` and `carrel run` held ends as their command did, and by nobody else's word.
#[test]
fn a_job_ends_as_the_command_that_it_was_there_for() {
    for (code, state, reason) in [
        (0, JobState::Completed, "its command ended"),
        (3, JobState::Failed, "its command ended with exit code 3"),
    ] {
        let mut world = World::new(&["n1"]);
        let (session, id) = world.open("alice", open("dev", gpus(1)));
        let end = |user, job| Input::EndSession(caller(user), SessionRef::Id(session), job, code);
        world.must(end("alice", id));
        assert_eq!(world.reason(id), "stopped by alice", "it has not begun");

        let mut world = World::new(&["n1"]);
        let (_, id) = world.open("alice", open("dev", gpus(1)));
        let ready = world.seen(id, "n1", ObservedPhase::Ready);
        world.report("n1", vec![ready]);
        world.must(end("alice", JobId(id.0 + 1)));
        assert_eq!(world.state(id), JobState::Running, "it is another's");
        let stranger = world.handle(end("bob", id)).expect_err("it is not bob's");
        assert_eq!(stranger.kind, RejectKind::Denied);
        world.must(end("alice", id));
        // It is said again where the answer was lost.
        world.must(end("alice", id));
        let released = world.seen(id, "n1", ObservedPhase::Released);
        world.report("n1", vec![released]);
        assert_eq!((world.state(id), &*world.reason(id)), (state, reason));
        let Phase::Ended { ending, .. } = &world.job(id).phase else {
            panic!("it is over")
        };
        assert_eq!(ending.exit_code, Some(code.into()));
    }
}

#[test]
fn a_session_reopened_while_it_ends_waits_for_its_former_run() {
    let mut world = World::new(&["n1"]);
    let (session, first) = world.open("alice", open("dev", gpus(1)));
    world.must(Input::StopSession(caller("alice"), SessionRef::Id(session), None));
    let (again, second) = world.open("alice", open("dev", gpus(2)));
    assert_eq!((again, world.state(second)), (session, JobState::Pending));
    assert!(
        world.reason(second).starts_with("Dependency: "),
        "{}",
        world.reason(second)
    );
    let released = world.seen(first, "n1", ObservedPhase::Released);
    world.report("n1", vec![released]);
    assert_eq!(world.state(second), JobState::Configuring);
}
