//! Job arrays: tasks that wait as one, and run by themselves.

use super::*;
use crate::model::account::Limits;
use crate::model::array::JobRef;
use crate::model::batch::{Output as Files, Place};
use crate::model::job::{Hold, Phase};
use crate::model::qos::{Preemption, Qos};
use crate::model::start::{Conditions, Dependency, DependencyKind};

const MINUTE: Duration = Duration::from_mins(1);

fn request(array: Option<&str>, count: u32) -> SubmitJob {
    SubmitJob {
        name: "sweep".to_owned(),
        spec: SessionSpec {
            time_limit: Duration::from_mins(30),
            ..gpus(count)
        },
        command: vec!["true".into()],
        script: None,
        output: Files::default(),
        submitted_from: Place::default(),
        comment: String::new(),
        requeue: true,
        mail: None,
        start: StartWish::default(),
        array: array.map(|text| text.parse().expect(text)),
        request_key: String::new(),
    }
}

fn after(kind: DependencyKind, job: JobId, task: Option<u32>) -> StartWish {
    StartWish {
        conditions: Conditions {
            dependencies: vec![Dependency { kind, job, task }],
            ..Conditions::default()
        },
        ..StartWish::default()
    }
}

fn named(text: &str) -> JobRef {
    text.parse().expect(text)
}

fn held(hold: bool) -> JobUpdate {
    JobUpdate {
        hold: Some(hold),
        ..JobUpdate::default()
    }
}

impl World {
    fn submitted(&mut self, request: SubmitJob) -> JobId {
        let output = self.must(Input::SubmitJob(caller("alice"), Box::new(request)));
        match output.reply {
            Reply::Job(id) => id,
            other => panic!("no job: {other:?}"),
        }
    }

    fn array(&mut self, text: &str, gpus: u32) -> JobId {
        self.submitted(request(Some(text), gpus))
    }

    /// Every job of an array, by what it is called, with its state.
    fn tasks(&self, array: JobId) -> Vec<(String, JobState)> {
        let jobs = self.broker.state().jobs.values();
        let of = jobs.filter(|job| job.array.as_ref().is_some_and(|part| part.array == array));
        of.map(|job| (job.label(), job.state())).collect()
    }

    fn labels(&self, array: JobId, state: JobState) -> Vec<String> {
        let tasks = self.tasks(array).into_iter();
        tasks
            .filter(|(_, is)| *is == state)
            .map(|(label, _)| label)
            .collect()
    }

    fn called(&self, label: &str) -> JobId {
        let mut jobs = self.broker.state().jobs.values();
        jobs.find(|job| job.label() == label)
            .map(|job| job.id)
            .expect(label)
    }

    /// A task that runs on a node ends by itself.
    fn over(&mut self, label: &str, exit_code: i32) {
        let id = self.called(label);
        let mut gone = self.seen(id, "n1", ObservedPhase::Released);
        gone.cause = Some(EndCause::Exited);
        gone.exit_code = Some(exit_code);
        let others = self.running("n1").into_iter().filter(|other| *other != id);
        let mut jobs: Vec<ObservedJob> = others
            .map(|other| self.seen(other, "n1", ObservedPhase::Ready))
            .collect();
        jobs.push(gone);
        self.report("n1", jobs);
    }

    fn running(&self, name: &str) -> Vec<JobId> {
        let placed = self.broker.state().placed_on.get(&node(name));
        placed.into_iter().flatten().copied().collect()
    }

    /// What is being ended is released.
    fn released(&mut self) {
        let jobs = self.running("n1").into_iter();
        let jobs = jobs.map(|id| match self.state(id) {
            JobState::Completing => self.seen(id, "n1", ObservedPhase::Released),
            _ => self.seen(id, "n1", ObservedPhase::Ready),
        });
        let jobs: Vec<ObservedJob> = jobs.collect();
        self.report("n1", jobs);
    }
}

#[test]
fn tasks_become_jobs_as_they_start() {
    let mut world = World::new(&["n1"]);
    let id = world.array("0-11", 2);
    assert_eq!(
        world.labels(id, JobState::Configuring),
        ["1_0", "1_1", "1_2", "1_3"]
    );
    assert_eq!(world.labels(id, JobState::Pending), ["1_[4-11]"]);
    assert_eq!(world.called("1_[4-11]"), id, "what waits has the array's number");
    assert_eq!(world.tasks(id).len(), 5);
    world.over("1_1", 0);
    assert_eq!(
        world.labels(id, JobState::Configuring).len(),
        1,
        "one place, one task"
    );
    assert_eq!(world.labels(id, JobState::Pending), ["1_[5-11]"]);
    // The last one that is left has the array's number.
    for (task, next) in [(0, 5), (2, 6), (3, 7), (4, 8), (5, 9), (6, 10), (7, 11)] {
        world.over(&format!("1_{task}"), 0);
        assert!(world.called(&format!("1_{next}")) > id || next == 11);
    }
    assert_eq!(world.called("1_11"), id);
    assert_eq!(world.labels(id, JobState::Pending), Vec::<String>::new());
    let env = |label: &str, name: &str| {
        let desired = world.broker.desired(&node("n1")).expect("heard of");
        let job = desired.jobs.iter().find(|job| job.key.job == world.called(label));
        let env = &job.expect(label).env;
        env.iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
            .expect(name)
    };
    for (name, value) in [
        ("SLURM_ARRAY_JOB_ID", "1"),
        ("SLURM_ARRAY_TASK_ID", "10"),
        ("SLURM_ARRAY_TASK_COUNT", "12"),
        ("SLURM_ARRAY_TASK_MIN", "0"),
        ("SLURM_ARRAY_TASK_MAX", "11"),
        ("SLURM_ARRAY_TASK_STEP", "1"),
    ] {
        assert_eq!(env("1_10", name), value, "{name}");
    }
    assert_eq!(env("1_11", "SLURM_JOB_ID"), "1");
    assert_ne!(env("1_10", "SLURM_JOB_ID"), "1");
    let desired = world.broker.desired(&node("n1")).expect("heard of");
    let runs = desired.jobs.iter().filter_map(|job| job.batch.as_ref());
    let files: Vec<&str> = runs.map(|run| run.stdout.as_str()).collect();
    assert!(files.contains(&"carrel-1_11.out"), "{files:?}");
}

#[test]
fn no_more_run_than_the_throttle_says() {
    let mut world = World::new(&["n1"]);
    let id = world.array("1-5%2", 1);
    assert_eq!(world.labels(id, JobState::Configuring), ["1_1", "1_2"]);
    assert!(
        world.reason(id).starts_with("JobArrayTaskLimit: 2 "),
        "{}",
        world.reason(id)
    );
    // It is in nobody's way.
    let other = world.submitted(request(None, 1));
    assert_eq!(world.state(other), JobState::Configuring);
    // Being ended it still runs.
    world.must(Input::CancelJob(caller("alice"), named("1_1")));
    assert_eq!(world.labels(id, JobState::Pending), ["1_[3-5]"]);
    world.released();
    assert_eq!(world.labels(id, JobState::Pending), ["1_[4-5]"]);
    world.restart(5);
    world.released();
    assert_eq!(
        world.labels(id, JobState::Pending),
        ["1_[4-5]"],
        "nor after a restart"
    );
}

#[test]
fn a_task_that_is_queued_again_is_the_same_one_and_counts() {
    let mut world = World::new(&["n1"]);
    let id = world.array("0-3%1", 1);
    let first = world.called("1_0");
    world.must(Input::RequeueJob(caller("alice"), named("1_0")));
    world.released();
    // Both wait; one may start.
    assert_eq!(world.labels(id, JobState::Configuring).len(), 1);
    assert_eq!(world.called("1_0"), first);
    assert_eq!(world.job(first).past_runs.len(), 1);
    let refused = world.handle(Input::RequeueJob(caller("alice"), named("1_[2-3]")));
    assert!(refused.expect_err("they wait").message.contains("does not run"));
    let both = world.handle(Input::RequeueJob(caller("bob"), named("1")));
    assert_eq!(both.expect_err("not his").kind, RejectKind::Denied);
}

/// More at once, fewer, as many as there is room for: of what waits, and of the array as a whole.
#[test]
fn a_throttle_can_be_changed() {
    let mut world = World::new(&["n1"]);
    let id = world.array("0-7%2", 1);
    let running = |world: &World| world.labels(id, JobState::Configuring).len();
    let throttle = |world: &mut World, user: &str, name: &str, most: u32| {
        let update = JobUpdate {
            throttle: Some(most),
            ..JobUpdate::default()
        };
        world.handle(Input::UpdateJob(caller(user), named(name), update))
    };
    assert_eq!(running(&world), 2);
    assert!(throttle(&mut world, "bob", "1", 5).is_err(), "another's");
    throttle(&mut world, "alice", "1", 5).expect("its owner's");
    assert_eq!(running(&world), 5);
    // Those that run go on; the next one starts when they are few enough.
    throttle(&mut world, "alice", "1_3", 1).expect("it is of the whole array");
    assert_eq!(running(&world), 5);
    for _ in 0..4 {
        let task = world.labels(id, JobState::Configuring)[0].clone();
        let job = world.called(&task);
        world.end(job, "n1", Some(0));
    }
    assert_eq!(running(&world), 1);
    throttle(&mut world, "alice", "1", 0).expect("as many as there is room for");
    assert_eq!(running(&world), 4);
    let plain = world.submitted(request(None, 1));
    let refused = throttle(&mut world, "alice", &plain.to_string(), 3).expect_err("it is none");
    assert_eq!(
        refused.message,
        format!("job {plain} is no array: it has no throttle")
    );
}

#[test]
fn tasks_are_cancelled_by_their_indices() {
    let mut world = World::new(&["n1"]);
    let id = world.array("0-19", 4);
    assert_eq!(world.labels(id, JobState::Configuring), ["1_0", "1_1"]);
    world.must(Input::CancelJob(caller("alice"), named("1_[1,3-7,9]")));
    assert_eq!(world.labels(id, JobState::Completing), ["1_1"]);
    assert_eq!(
        world.labels(id, JobState::Cancelled),
        ["1_[3-7,9]"],
        "one record of all"
    );
    assert_eq!(world.labels(id, JobState::Pending), ["1_[2,8,10-19]"]);
    // What is over stays over, and the same again is no error.
    world.must(Input::CancelJob(caller("alice"), named("1_[3-4]")));
    for (name, why) in [
        ("1_20", "no task 20: its tasks are 0-19"),
        ("1_[18-25]", "no task 20-25"),
        ("9_1", "there is no array 9"),
        ("9", "there is no job 9"),
    ] {
        let refused = world.handle(Input::CancelJob(caller("alice"), named(name)));
        assert!(refused.expect_err(name).message.contains(why), "{name}");
    }
    let denied = world.handle(Input::CancelJob(caller("bob"), named("1_2")));
    assert_eq!(denied.expect_err("not his").kind, RejectKind::Denied);
    // By a task's own number it is that one; by the array's all.
    let own = world.called("1_0");
    world.must(Input::CancelJob(caller("alice"), own.into()));
    assert_eq!(world.labels(id, JobState::Completing), ["1_0", "1_1"]);
    world.must(Input::CancelJob(caller("alice"), named("1")));
    assert_eq!(world.labels(id, JobState::Pending), Vec::<String>::new());
    assert_eq!(
        world.labels(id, JobState::Cancelled),
        ["1_[2,8,10-19]", "1_[3-7,9]"]
    );
    world.released();
    assert_eq!(
        world.broker.state().arrays[&id].known.outcome(),
        Some(JobState::Failed)
    );
    let single = world.submitted(request(None, 1));
    let refused = world.handle(Input::CancelJob(caller("alice"), named(&format!("{single}_0"))));
    assert!(refused.expect_err("none").message.contains("is no array"));
}

#[test]
fn tasks_are_held_by_their_indices() {
    let mut world = World::new(&["n1"]);
    let full = world.submitted(request(None, 8));
    let id = world.array("0-9", 1);
    world.must(Input::UpdateJob(caller("alice"), named("2_[0,2-3]"), held(true)));
    assert_eq!(world.labels(id, JobState::Pending), ["2_[1,4-9]", "2_[0,2-3]"]);
    let apart = world.called("2_[0,2-3]");
    assert_eq!(world.job(apart).hold, Some(Hold::User));
    world.must(Input::UpdateJob(caller("alice"), named("2_3"), held(false)));
    world.must(Input::CancelJob(caller("alice"), full.into()));
    world.released();
    assert_eq!(
        world.labels(id, JobState::Configuring).len(),
        8,
        "all but those that are held: {:?}",
        world.tasks(id)
    );
    assert_eq!(world.labels(id, JobState::Pending), ["2_[0,2]"]);
    // The whole array, what waits of it.
    world.must(Input::UpdateJob(caller("alice"), named("2"), held(false)));
    assert_eq!(world.job(apart).hold, None);
    let runs = world.handle(Input::UpdateJob(caller("alice"), named("2_1"), held(true)));
    assert!(runs.expect_err("it runs").message.contains("does not wait"));
}

#[test]
fn others_wait_for_all_tasks_or_for_one() {
    use DependencyKind::{After, AfterAny, AfterNotOk, AfterOk};
    let mut world = World::new(&["n1"]);
    let id = world.array("0-2%1", 1);
    let waits = |world: &mut World, kind, task| {
        let start = after(kind, id, task);
        world.submitted(SubmitJob {
            start,
            ..request(None, 1)
        })
    };
    let all = waits(&mut world, AfterOk, None);
    let any = waits(&mut world, AfterAny, None);
    let failed = waits(&mut world, AfterNotOk, None);
    let begun = waits(&mut world, After, None);
    let one = waits(&mut world, AfterOk, Some(1));
    // By its own number it is the same task.
    let own = world.called("1_0");
    let by_number = world.submitted(SubmitJob {
        start: after(AfterOk, own, None),
        ..request(None, 1)
    });
    assert_eq!(world.job(by_number).conditions.dependencies[0].on(), "1_0");
    let unknown = world.handle(Input::SubmitJob(
        caller("alice"),
        Box::new(SubmitJob {
            start: after(AfterOk, id, Some(7)),
            ..request(None, 1)
        }),
    ));
    assert!(unknown.expect_err("no such task").message.contains("no job 1_7"));
    let pending = |world: &World| {
        [all, any, failed, begun, one, by_number].map(|job| world.state(job) == JobState::Pending)
    };
    assert_eq!(pending(&world), [true; 6]);
    world.over("1_0", 0);
    assert_eq!(pending(&world), [true, true, true, true, true, false]);
    assert!(
        world.reason(one).contains("waits for job 1_1"),
        "{}",
        world.reason(one)
    );
    world.over("1_1", 0);
    assert_eq!(
        pending(&world),
        [true, true, true, false, false, false],
        "the last has begun"
    );
    world.restart(9);
    world.released();
    world.over("1_2", 3);
    assert_eq!(pending(&world), [true, false, false, false, false, false]);
    assert!(
        world.reason(all).starts_with("DependencyNeverSatisfied"),
        "{}",
        world.reason(all)
    );
    assert_eq!(world.broker.state().arrays[&id].known.exit_code, 3);
}

#[test]
fn a_task_waits_for_the_same_task_of_another_array() {
    let mut world = World::new(&["n1"]);
    let first = world.array("0-3%2", 1);
    let second = world.submitted(SubmitJob {
        start: after(DependencyKind::AfterCorr, first, None),
        ..request(Some("0-3"), 1)
    });
    assert_eq!(
        world.labels(second, JobState::Pending),
        [format!("{second}_[0-3]")]
    );
    world.over("1_1", 0);
    assert_eq!(
        world.labels(second, JobState::Configuring),
        [format!("{second}_1")]
    );
    world.over("1_0", 1);
    world.over("1_2", 0);
    assert_eq!(
        world.labels(second, JobState::Pending),
        [format!("{second}_[0,3]")]
    );
    // The first one has been seen to run, the other has just started.
    assert_eq!(world.labels(second, JobState::Running), [format!("{second}_1")]);
    assert_eq!(
        world.labels(second, JobState::Configuring),
        [format!("{second}_2")]
    );
    world.over("1_3", 0);
    assert_eq!(world.labels(second, JobState::Pending), [format!("{second}_0")]);
    let left = world.called(&format!("{second}_0"));
    assert!(
        world.reason(left).starts_with("DependencyNeverSatisfied"),
        "{}",
        world.reason(left)
    );
    let other = SubmitJob {
        start: after(DependencyKind::AfterCorr, first, None),
        ..request(Some("0-4"), 1)
    };
    let refused = world.handle(Input::SubmitJob(caller("alice"), Box::new(other)));
    assert!(
        refused
            .expect_err("one too many")
            .message
            .contains("has no task 4")
    );
}

#[test]
fn a_hundred_thousand_tasks_are_one_record_and_a_pass_looks_at_one() {
    let mut world = World::new(&["n1"]);
    let full = world.submitted(request(None, 8));
    let before = world.store.len();
    let id = world.array("0-99999%3", 1);
    let new = &world.store[before..];
    let jobs = new
        .iter()
        .filter(|change| matches!(change, Change::PutJob(_)))
        .count();
    assert_eq!((jobs, world.tasks(id).len()), (1, 1), "one record");
    let part = world.job(id).array.clone().expect("an array");
    assert!(part.tasks.ranges() <= 2 && part.tasks.len() == 100_000);
    let kept = format!("{:?}", world.job(id)).len() + format!("{:?}", world.broker.state().arrays[&id]).len();
    assert!(kept < 4_096, "{kept} characters tell all of it");
    let tally = world
        .broker
        .state()
        .tallies
        .of(&crate::queue::Holder::User("alice".parse().expect("a name")));
    assert_eq!(tally.submitted, 100_001, "each counts as a job");
    let before = world.store.len();
    world.must(Input::CancelJob(caller("alice"), full.into()));
    world.released();
    assert_eq!(world.labels(id, JobState::Configuring), ["2_0", "2_1", "2_2"]);
    let put = world.store[before..].iter().filter(|change| match change {
        Change::PutJob(job) => job.array.is_some(),
        _ => false,
    });
    assert!(put.count() <= 6, "two for each that has started");
    // Cancelled in the middle it is a few ranges more.
    world.must(Input::CancelJob(caller("alice"), named("2_[500-70000]")));
    let left = world.job(id).array.clone().expect("an array");
    assert_eq!(left.tasks.to_string(), "3-499,70001-99999");
}

#[test]
fn an_array_is_as_large_as_may_be_here() {
    let mut settings = settings();
    settings.queue.max_array_size = 1_000;
    let mut world = World::with(settings, &["n1"]);
    let mut refused = |text: &str| {
        let request = Box::new(request(Some(text), 1));
        world
            .handle(Input::SubmitJob(caller("alice"), request))
            .expect_err(text)
    };
    assert!(refused("0-1000").message.contains("index 1000 is beyond 999"));
    assert!(refused("0,5000").message.contains("index 5000"));
    world.array("999", 1);
}

#[test]
fn each_task_counts_against_limits() {
    let mut world = World::new(&["n1"]);
    let qos = Qos {
        per_user: Limits {
            submitted: Some(10),
            running: Some(3),
            ..Limits::default()
        },
        ..Qos::new("normal".parse().expect("a name"))
    };
    world.broker.state.qos.insert(qos.name.clone(), Arc::new(qos));
    let id = world.array("0-7", 1);
    assert_eq!(world.labels(id, JobState::Configuring).len(), 3);
    assert!(
        world.reason(id).starts_with("QOSMaxJobsPerUserLimit"),
        "{}",
        world.reason(id)
    );
    let more = world.handle(Input::SubmitJob(
        caller("alice"),
        Box::new(request(Some("0-2"), 1)),
    ));
    let more = more.expect_err("one too many");
    assert!(
        more.message.contains("has 8 jobs") && more.message.contains("these 3 tasks"),
        "{more:?}"
    );
    world.array("0-1", 1);
}

#[test]
fn a_task_that_gave_way_waits_as_itself() {
    let mut world = World::new(&["n1"]);
    for (name, preemptible, priority) in [("low", Some(Preemption::Requeue), 0), ("normal", None, 10)] {
        let qos = Arc::new(Qos {
            preemptible,
            preempts: preemptible.is_none(),
            priority,
            ..Qos::new(name.parse().expect("a name"))
        });
        world.broker.state.qos.insert(qos.name.clone(), qos);
    }
    let mut low = request(Some("0-1"), 8);
    low.spec.terms.qos = Some("low".parse().expect("a name"));
    let id = world.submitted(low);
    let task = world.called("1_0");
    world.wait(Duration::from_hours(1));
    world.wait(MINUTE);
    let job = world.job(task).clone();
    if let Phase::Placed(placed) = &job.phase {
        // It has not reached its limit yet.
        assert!(placed.deadline <= world.now);
    }
    world.over("1_0", 0);
    assert_eq!(world.labels(id, JobState::Configuring), ["1_1"]);
    world.wait(Duration::from_mins(15));
    let wins = world.submitted(request(None, 8));
    assert_eq!(world.labels(id, JobState::Completing), ["1_1"]);
    world.released();
    assert_eq!(world.state(wins), JobState::Configuring);
    assert_eq!(world.labels(id, JobState::Pending), ["1_1"]);
}

#[test]
fn what_has_become_of_tasks_is_known_when_they_have_left() {
    let mut world = World::new(&["n1"]);
    let id = world.array("0-2%1", 1);
    world.over("1_0", 0);
    world.over("1_1", 7);
    // The last one runs for longer than the others are kept.
    world.wait(Duration::from_hours(2));
    let running = world.called("1_2");
    let job = world.seen(running, "n1", ObservedPhase::Ready);
    if let Some(placed) = world.broker.state().jobs[&running].placed() {
        assert!(placed.deadline < world.now);
    }
    world.report("n1", vec![job]);
    let waits = world.submitted(SubmitJob {
        start: after(DependencyKind::AfterOk, id, Some(0)),
        ..request(None, 1)
    });
    world.must(Input::Tick);
    assert_eq!(world.tasks(id).len(), 1, "{:?}", world.tasks(id));
    assert_eq!(world.state(waits), JobState::Configuring);
    world.restart(3);
    let array = &world.broker.state().arrays[&id];
    assert_eq!(array.known.outcome_of(1), Some(JobState::Failed));
    assert_eq!((array.known.outcome(), array.known.exit_code), (None, 7));
    world.report("n1", vec![]);
    world.released();
    assert!(world.broker.state().arrays[&id].known.outcome().is_some());
    world.wait(Duration::from_hours(2));
    world.must(Input::Tick);
    world.wait(Duration::from_hours(2));
    world.must(Input::Tick);
    assert!(
        world.broker.state().arrays.is_empty(),
        "it leaves with the last of them"
    );
    let forgotten = world
        .store
        .iter()
        .any(|change| matches!(change, Change::ForgetArray(array) if array.id == id));
    assert!(forgotten);
    world.restart(4);
    assert!(world.broker.state().arrays.is_empty());
}

#[test]
fn the_first_task_that_waits_is_promised_a_start() {
    let mut world = World::new(&["n1"]);
    world.submitted(request(None, 8));
    let id = world.array("0-9", 8);
    let start = start_of(world.broker.state(), id, world.now).expect("it is foreseen");
    assert!(start.at <= world.now.after(Duration::from_mins(31)));
    // What would delay it does not start; and starts of those behind are foreseen as of it.
    let behind = world.array("0-1", 1);
    assert_eq!(world.labels(behind, JobState::Pending), ["3_[0-1]"]);
    let starts = starts_of(world.broker.state(), world.now, || true);
    assert!(
        starts.contains_key(&id) && starts.contains_key(&behind),
        "{starts:?}"
    );
    assert!(
        starts
            .keys()
            .all(|job| world.broker.state().jobs.contains_key(job))
    );
}

#[test]
fn a_repeated_request_has_one_effect() {
    let mut world = World::new(&["n1"]);
    let request = SubmitJob {
        request_key: "k".to_owned(),
        ..request(Some("0-3"), 2)
    };
    let id = world.submitted(request.clone());
    assert_eq!(world.submitted(request), id);
    assert_eq!(world.tasks(id).len(), 4);
}
