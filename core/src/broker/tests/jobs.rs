//! When a job may start, beside when there is room; and who is asked before a deadline moves.

use super::*;
use crate::model::batch::{Output, Place};
use crate::model::job::Hold;
use crate::model::start::{Conditions, Dependency, DependencyKind};

fn for_minutes(minutes: u64, count: u32) -> SessionSpec {
    SessionSpec {
        time_limit: Duration::from_mins(minutes),
        ..gpus(count)
    }
}

fn wished(name: &str, spec: SessionSpec, start: StartWish) -> OpenSession {
    OpenSession {
        start,
        ..open(name, spec)
    }
}

fn after(kind: DependencyKind, job: JobId) -> StartWish {
    StartWish {
        conditions: Conditions {
            dependencies: vec![Dependency {
                kind,
                job,
                task: None,
            }],
            ..Conditions::default()
        },
        ..StartWish::default()
    }
}

fn named(name: &str) -> SessionRef {
    name.parse().expect("a name")
}

impl World {
    pub(super) fn end(&mut self, id: JobId, name: &str, exit_code: Option<i32>) {
        let mut gone = self.seen(id, name, ObservedPhase::Released);
        gone.cause = Some(EndCause::Exited);
        gone.exit_code = exit_code;
        self.report(name, vec![gone]);
    }

    fn update(&mut self, user: &str, job: JobId, update: JobUpdate) -> Result<(), Reject> {
        self.handle(Input::UpdateJob(caller(user), job.into(), update))
            .map(|_| ())
    }
}

#[test]
fn a_held_job_waits_until_it_is_let_go() {
    let mut world = World::new(&["n1"]);
    let hold = StartWish {
        hold: true,
        ..StartWish::default()
    };
    let (_, id) = world.open("alice", wished("a", gpus(1), hold));
    assert_eq!(world.reason(id), "JobHeldUser: its owner holds it");
    let go = |hold| JobUpdate {
        hold: Some(hold),
        ..JobUpdate::default()
    };
    assert!(world.update("bob", id, go(false)).is_err(), "it is not his");
    world.update("alice", id, go(false)).expect("let go");
    assert_eq!(world.state(id), JobState::Configuring);
    let running = world.update("alice", id, go(true)).expect_err("it runs");
    assert!(running.message.contains("does not wait"), "{running:?}");

    let (_, full) = world.open("alice", open("full", gpus(8)));
    world
        .update("ops", full, go(true))
        .expect("operators hold what is another's");
    assert_eq!(world.job(full).hold, Some(Hold::Operator));
    let refused = world
        .update("alice", full, go(false))
        .expect_err("not hers to let go");
    assert_eq!(refused.kind, RejectKind::Denied);
    world.update("ops", full, go(false)).expect("let go");
    assert!(
        world.reason(full).starts_with("Resources"),
        "{}",
        world.reason(full)
    );
}

#[test]
fn a_job_begins_when_it_is_asked_to_and_not_before() {
    let mut world = World::new(&["n1"]);
    let later = world.now.after(Duration::from_mins(10));
    let begin = StartWish {
        begin: Some(later),
        ..StartWish::default()
    };
    let (_, id) = world.open("alice", wished("a", gpus(1), begin));
    assert!(world.reason(id).starts_with("BeginTime"), "{}", world.reason(id));
    assert_eq!(world.broker.next_deadline().map(|at| at <= later), Some(true));
    world.wait(Duration::from_mins(9));
    world.must(Input::Tick);
    assert_eq!(world.state(id), JobState::Pending);
    // Nor does a restart forget it.
    world.restart(3);
    world.report("n1", vec![]);
    assert_eq!(world.state(id), JobState::Pending);
    world.wait(Duration::from_mins(1));
    world.report("n1", vec![]);
    world.must(Input::Tick);
    assert_eq!(world.state(id), JobState::Configuring);
}

#[test]
fn a_job_waits_for_what_has_to_become_of_others() {
    let mut world = World::new(&["n1"]);
    let (_, first) = world.open("alice", open("first", gpus(1)));
    let kinds = DependencyKind::ALL;
    let waiting: Vec<JobId> = kinds
        .iter()
        .map(|kind| {
            world
                .open("alice", wished(kind.name(), gpus(1), after(*kind, first)))
                .1
        })
        .collect();
    let states = |world: &World| -> Vec<JobState> { waiting.iter().map(|id| world.state(*id)).collect() };
    use JobState::{Configuring, Pending};
    assert_eq!(
        states(&world),
        [Configuring, Pending, Pending, Pending, Pending],
        "it has started"
    );
    assert_eq!(
        world.reason(waiting[2]),
        format!("Dependency: it waits for job {first} (afterok)")
    );
    world.must(Input::StopSession(caller("alice"), named("first"), None));
    world.end(first, "n1", Some(0));
    assert!(world.state(first).is_final());
    let (ok, not_ok) = (world.state(waiting[2]), world.state(waiting[3]));
    assert_eq!(world.state(waiting[1]), Configuring);
    assert!(ok != not_ok, "one of the two is met: {ok:?} {not_ok:?}");
    let never = if ok == Pending { waiting[2] } else { waiting[3] };
    assert!(
        world.reason(never).starts_with("DependencyNeverSatisfied"),
        "{}",
        world.reason(never)
    );
    let unknown = world.handle(Input::OpenSession(
        caller("alice"),
        wished("x", gpus(1), after(DependencyKind::AfterOk, JobId(999))),
    ));
    assert_eq!(
        unknown.expect_err("there is none").message,
        "there is no job 999 to depend on"
    );
    let ring = JobUpdate {
        conditions: Some(after(DependencyKind::AfterAny, never).conditions),
        ..JobUpdate::default()
    };
    let refused = world.update("alice", never, ring).expect_err("a ring");
    assert!(refused.message.contains("wait for itself"), "{refused:?}");
}

#[test]
fn a_job_that_cannot_start_at_once_is_given_up_if_that_is_wished() {
    let mut world = World::new(&["n1"]);
    world.open("bob", open("all", gpus(8)));
    let within = StartWish {
        within: Some(Duration::from_secs(5)),
        ..StartWish::default()
    };
    let (_, id) = world.open("alice", wished("a", gpus(1), within));
    world.wait(Duration::from_secs(5));
    world.must(Input::Tick);
    assert_eq!(world.state(id), JobState::Cancelled);
    assert!(world.reason(id).contains("--immediate"), "{}", world.reason(id));
}

#[test]
fn an_operator_puts_a_job_before_all_others() {
    let mut world = World::new(&["n1"]);
    world.open("bob", open("all", for_minutes(60, 8)));
    let (_, first) = world.open("bob", open("first", for_minutes(60, 8)));
    let (_, second) = world.open("alice", open("second", for_minutes(60, 8)));
    let nice = JobUpdate {
        nice: Some(-5),
        ..JobUpdate::default()
    };
    assert!(
        world.update("alice", second, nice).is_err(),
        "that takes an operator"
    );
    let top = JobUpdate {
        top: Some(true),
        ..JobUpdate::default()
    };
    for (id, other) in [(second, first), (first, second)] {
        world.update("ops", id, top.clone()).expect("put first");
        assert_eq!(world.broker.state().in_order(), [id, other]);
    }
}

/// A deadline moves unless somebody was promised a start that it would make later.
#[test]
fn a_session_is_extended_when_nobody_is_harmed() {
    let mut world = World::new(&["n1", "n2"]);
    world.open("alice", open("dev", for_minutes(60, 8)));
    world.open("alice", open("other", for_minutes(90, 8)));
    let hour = Duration::from_hours(1);
    world.must(Input::ExtendSession(
        caller("alice"),
        named("dev"),
        Duration::from_mins(5),
    ));
    let (_, waits) = world.open("bob", open("waits", for_minutes(10, 8)));
    let refused = world.handle(Input::ExtendSession(caller("alice"), named("dev"), hour));
    let refused = refused.expect_err("bob was promised those GPUs");
    assert_eq!(
        refused.message,
        format!("others wait for it: job {waits} of bob would start in 91 min and not in 66")
    );
    assert_eq!(
        refused.hint,
        "nothing can be added without it; what you have runs until its deadline"
    );
    // The other one is not what bob waits for.
    world.must(Input::ExtendSession(caller("alice"), named("other"), hour));
    // An operator decides for all.
    world.must(Input::ExtendSession(
        caller("ops"),
        "dev.alice".parse().expect("a name"),
        hour,
    ));
    let promise = &world.broker.state().promises[&waits];
    assert_eq!(promise.start.since(world.now), Duration::from_secs(125 * 60 + 10));
}

/// The time limit of what runs: less whenever its user says so, more if nobody is harmed, and an operator decides.
#[test]
fn the_time_limit_of_what_runs_is_changed() {
    let mut world = World::new(&["n1"]);
    let (_, dev) = world.open("alice", open("dev", for_minutes(60, 8)));
    let begun = world.now;
    let (_, waits) = world.open("bob", open("waits", for_minutes(10, 8)));
    let to = |minutes| JobUpdate {
        time_limit: Some(Duration::from_mins(minutes)),
        ..JobUpdate::default()
    };
    let deadline = |world: &World| world.job(dev).placed().expect("it runs").deadline;
    world.update("alice", dev, to(50)).expect("less");
    assert_eq!(deadline(&world), begun.after(Duration::from_mins(50)));
    assert_eq!(world.job(dev).time_limit, Duration::from_mins(50));
    let start = |world: &World| world.broker.state().promises[&waits].start;
    let promised = start(&world);
    assert_eq!(
        promised,
        begun.after(Duration::from_secs(50 * 60 + 10)),
        "it moves up"
    );
    let refused = world
        .update("alice", dev, to(55))
        .expect_err("bob was promised those GPUs");
    assert!(refused.message.starts_with("others wait for it"), "{refused:?}");
    assert_eq!(start(&world), promised);
    world.update("bob", dev, to(10)).expect_err("it is not his");
    world.update("ops", dev, to(70)).expect("an operator decides");
    assert_eq!(deadline(&world), begun.after(Duration::from_mins(70)));
    world.update("ops", dev, to(0)).expect_err("no time");
    let held = JobUpdate {
        hold: Some(true),
        ..to(20)
    };
    let refused = world.update("alice", dev, held).expect_err("it does not wait");
    assert_eq!(refused.kind, RejectKind::WrongState);
    // Less than it has run already: it is over, and the node never said that it began.
    world.wait(Duration::from_mins(30));
    world.update("alice", dev, to(20)).expect("less");
    world.must(Input::Tick);
    assert_eq!(world.state(dev), JobState::Timeout);
}

/// For what an operator runs himself he asks like everybody.
#[test]
fn an_operator_s_own_job_harms_nobody_either() {
    let mut world = World::new(&["n1"]);
    let (_, own) = world.open("ops", open("own", for_minutes(60, 8)));
    world.open("bob", open("waits", for_minutes(10, 8)));
    let longer = JobUpdate {
        time_limit: Some(Duration::from_mins(90)),
        ..JobUpdate::default()
    };
    let refused = world.update("ops", own, longer).expect_err("bob waits for it");
    assert!(refused.message.starts_with("others wait for it"), "{refused:?}");
}

/// One of a name runs at a time, in the order of their numbers, whatever becomes of each.
#[test]
fn singletons_follow_each_other() {
    let mut world = World::new(&["n1"]);
    let one = |wait: bool| StartWish {
        conditions: Conditions {
            singleton: wait,
            ..Conditions::default()
        },
        ..StartWish::default()
    };
    let mut submit = |singleton: bool, user: &str| {
        let request = SubmitJob {
            name: "train".to_owned(),
            spec: gpus(1),
            command: vec!["true".into()],
            script: None,
            output: Output::default(),
            submitted_from: Place::default(),
            comment: String::new(),
            request_key: String::new(),
            array: None,
            requeue: true,
            mail: None,
            start: one(singleton),
        };
        match world
            .must(Input::SubmitJob(caller(user), Box::new(request)))
            .reply
        {
            Reply::Job(id) => id,
            other => panic!("no job: {other:?}"),
        }
    };
    let plain = submit(false, "alice");
    let jobs: Vec<JobId> = (0..4).map(|_| submit(true, "alice")).collect();
    let of_bob = submit(true, "bob");
    let waits = |world: &World| -> Vec<bool> {
        jobs.iter()
            .map(|id| world.state(*id) == JobState::Pending)
            .collect()
    };
    assert_eq!(world.state(of_bob), JobState::Configuring);
    assert_eq!(waits(&world), [true; 4], "behind one that is none itself");
    world.end(plain, "n1", Some(0));
    assert_eq!(waits(&world), [false, true, true, true]);
    // One that goes without having run lets nobody pass; one that waits for nobody any more starts.
    world.must(Input::CancelJob(caller("alice"), jobs[1].into()));
    assert_eq!(world.state(jobs[2]), JobState::Pending);
    let free = JobUpdate {
        conditions: Some(Conditions::default()),
        ..JobUpdate::default()
    };
    world.update("alice", jobs[3], free).expect("its owner may");
    assert_eq!(world.state(jobs[3]), JobState::Configuring);
    world.end(jobs[0], "n1", Some(1));
    assert_eq!(
        world.state(jobs[2]),
        JobState::Configuring,
        "{}",
        world.reason(jobs[2])
    );
    assert!(world.broker.state().singletons.is_empty());
}

#[test]
fn jobs_that_wait_for_the_same_hold_it_once() {
    let mut world = World::new(&["n1"]);
    world.open("alice", open("all", gpus(8)));
    let (_, first) = world.open("alice", open("first", gpus(4)));
    let (_, second) = world.open("bob", open("second", gpus(4)));
    let (_, other) = world.open("bob", open("other", gpus(5)));
    let request = |world: &World, job| std::ptr::from_ref(&*world.job(job).request);
    assert_eq!(request(&world, first), request(&world, second));
    assert_ne!(request(&world, first), request(&world, other));
    // And after a restart.
    world.restart(8);
    assert_eq!(request(&world, first), request(&world, second));
}
