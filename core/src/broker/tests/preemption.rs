//! Jobs that give way, jobs that are queued again, and what is kept for interactive ones.

use std::collections::BTreeSet;

use super::*;
use crate::broker::schedule::find_place;
use crate::model::activity::HostUse;
use crate::model::batch::{Output, Place};
use crate::model::ids::{JobKey, QosName};
use crate::model::job::Phase;
use crate::model::qos::{Preemption, Qos};

const NODE_NAMES: [&str; 3] = ["n1", "n2", "n3"];

fn qos(name: &str) -> QosName {
    name.parse().expect("a name")
}

/// So many GPUs for so many minutes, with a QOS.
fn spec(count: u32, minutes: u64, with: &str) -> SessionSpec {
    let mut spec = gpus(count);
    spec.request.nvlink = false;
    spec.request.cpus_per_node = 1;
    spec.time_limit = Duration::from_mins(minutes);
    spec.terms.qos = Some(qos(with));
    spec
}

/// A small generator: the tests of the core have no other source of chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

impl World {
    /// With a QOS "low" that gives way, as is said.
    fn lending(settings: Settings, nodes: &[&str], preemptible: Preemption, grace: Option<u64>) -> Self {
        let mut world = Self::with(settings, nodes);
        world.put_qos(Qos {
            preemptible: Some(preemptible),
            grace: grace.map(Duration::from_secs),
            ..Qos::new(qos("low"))
        });
        world
    }

    fn put_qos(&mut self, qos: Qos) {
        let qos = Arc::new(qos);
        self.broker.state.qos.insert(qos.name.clone(), Arc::clone(&qos));
        self.store.push(Change::PutQos(qos));
    }

    pub(super) fn submit(&mut self, user: &str, spec: SessionSpec) -> JobId {
        let request = SubmitJob {
            name: "train".to_owned(),
            spec,
            command: vec!["python".into(), "train.py".into()],
            script: None,
            output: Output::default(),
            submitted_from: Place::default(),
            comment: String::new(),
            request_key: String::new(),
            array: None,
            requeue: true,
            mail: None,
            start: StartWish::default(),
        };
        match self.must(Input::SubmitJob(caller(user), Box::new(request))).reply {
            Reply::Job(id) => id,
            other => panic!("no job: {other:?}"),
        }
    }

    /// Nodes do what they are told: what is being ended is released, everything else runs.
    fn obey(&mut self, nodes: &[&str]) {
        for name in nodes {
            let placed = self.broker.state().placed_on.get(&node(name)).cloned();
            let jobs = placed.unwrap_or_default();
            let jobs = jobs.iter().map(|id| {
                let placed = self.job(*id).placed().expect("it holds something");
                let phase = match placed.ending {
                    Some(_) => ObservedPhase::Released,
                    None => ObservedPhase::Ready,
                };
                self.seen(*id, name, phase)
            });
            let jobs = jobs.collect();
            self.report(name, jobs);
        }
    }

    fn ending(&self) -> BTreeSet<JobId> {
        let running = self.broker.state().deadlines.iter().map(|(_, id)| *id);
        running
            .filter(|id| self.state(*id) == JobState::Completing)
            .collect()
    }

    /// Whether a job would fit if these were gone.
    fn fits_without(&self, job: JobId, gone: &BTreeSet<JobId>) -> bool {
        let mut copy = self.broker.clone();
        for id in gone {
            let job = (**copy.state.jobs.get(id).expect("a job")).clone();
            copy.state.insert_job(Arc::new(Job {
                phase: Phase::Ended {
                    ending: crate::model::job::Ending {
                        state: JobState::Completed,
                        reason: String::new(),
                        exit_code: None,
                    },
                    at: self.now,
                    last: None,
                },
                ..job
            }));
            // What their nodes last said of them is past as well.
            for name in NODE_NAMES {
                copy.state.update_link(&node(name), |link| {
                    if let Some(observed) = &link.observed {
                        let jobs = observed.jobs.iter().filter(|seen| seen.key.job != *id);
                        link.observed = Some(Arc::new(Observed {
                            jobs: jobs.cloned().collect(),
                            ..(**observed).clone()
                        }));
                    }
                });
            }
        }
        let job = &self.broker.state().jobs[&job];
        find_place(&copy.state, copy.state.needs(job, &job.request), &[]).is_ok()
    }

    fn loss(&self, jobs: &BTreeSet<JobId>) -> u128 {
        let placed = jobs.iter().filter_map(|id| self.job(*id).placed());
        placed
            .map(|placed| u128::from(placed.billing_milli) * self.now.since(placed.started).as_millis())
            .sum()
    }
}

#[test]
fn who_gives_way_is_protected_first_then_ended_and_waits_again() {
    let mut world = World::lending(settings(), &["n1"], Preemption::Requeue, None);
    let low = world.submit("alice", spec(8, 600, "low"));
    assert_eq!(world.state(low), JobState::Configuring);
    world.obey(&["n1"]);
    let (submitted, started) = (world.job(low).submitted, world.now);
    world.wait(Duration::from_mins(9));
    let (_, wants) = world.open("bob", open("dev", spec(2, 60, "normal")));
    assert_eq!(
        world.state(low),
        JobState::Running,
        "it has run for less than ten minutes"
    );
    let free = started.after(Duration::from_mins(10));
    world.obey(&["n1"]);
    assert_eq!(world.broker.state().next_pass, Some(free));
    world.wait(Duration::from_mins(1));
    world.obey(&["n1"]);
    world.must(Input::Tick);
    assert_eq!(world.state(low), JobState::Completing);
    assert_eq!(world.reason(low), format!("gave way to job {wants} of bob"));
    assert_eq!(
        world.reason(wants),
        format!("Resources: takes over from job {low} in 10 s")
    );
    let key = world.job(low).key().expect("it holds something still");
    let stone = |world: &World| {
        let desired = world.broker.desired(&node("n1")).expect("known");
        let mut stones = desired.tombstones.iter();
        stones.find(|stone| stone.key == key).map(|stone| stone.grace_ms)
    };
    assert_eq!(stone(&world), Some(10_000));
    // Nobody gets in between, in front or behind, not even over a restart.
    let first = world.submit("alice", spec(1, 60, "normal"));
    world.must(Input::UpdateJob(
        caller("root"),
        first.into(),
        JobUpdate {
            top: Some(true),
            ..JobUpdate::default()
        },
    ));
    world.restart(11);
    world.report("n1", vec![world.seen(low, "n1", ObservedPhase::Ready)]);
    assert_eq!(world.state(low), JobState::Completing);
    assert_eq!(
        world.ending(),
        BTreeSet::from([low]),
        "nobody is ended twice for one"
    );
    world.wait(Duration::from_secs(4));
    world.obey(&["n1"]);
    assert_eq!(world.state(wants), JobState::Configuring);
    // It waits again, as old as it was.
    let job = world.job(low);
    assert_eq!(job.state(), JobState::Pending, "two are left of eight");
    assert_eq!((job.submitted, job.past_runs.len()), (submitted, 1));
    let run = &job.past_runs[0];
    assert_eq!((run.started, run.state), (started, JobState::Preempted));
    assert_eq!(run.ended, world.now);
    assert!(run.billing_milli > 0 && run.generation == key.generation);
    // A late word of what it held is of something that is over.
    let mut late = world.seen(wants, "n1", ObservedPhase::Ready);
    late.key = key;
    late.session = None;
    let seen = vec![world.seen(wants, "n1", ObservedPhase::Ready), late];
    world.report("n1", seen);
    assert_eq!(world.state(low), JobState::Pending);
    assert!(found_jobs(world.broker.state()).is_empty(), "it is known");
    assert_eq!(stone(&world), Some(10_000));
    // And it starts again when there is room.
    world.must(Input::StopSession(
        caller("bob"),
        "dev".parse().expect("a name"),
        None,
    ));
    for _ in 0..250 {
        world.wait(Duration::from_secs(15));
        world.obey(&["n1"]);
        world.must(Input::Tick);
    }
    assert_eq!(
        (world.state(first), world.state(low)),
        (JobState::Timeout, JobState::Running)
    );
    assert_ne!(world.job(low).key(), Some(key));
}

#[test]
fn a_qos_cancels_with_a_grace_of_its_own() {
    let mut world = World::lending(settings(), &["n1"], Preemption::Cancel, Some(90));
    let low = world.submit("alice", spec(4, 600, "low"));
    let other = world.submit("alice", spec(4, 600, "low"));
    world.obey(&["n1"]);
    world.wait(Duration::from_mins(20));
    let plan = plan(
        world.broker.state(),
        &caller("bob"),
        spec(4, 60, "normal"),
        world.now,
    )
    .expect("possible");
    let start = plan.choices[0].start.as_ref().expect("known").at;
    assert_eq!(
        start,
        world.now.after(Duration::from_secs(90)),
        "as is said before it is asked for"
    );
    let (_, wants) = world.open("bob", open("dev", spec(4, 60, "normal")));
    let ending = world.ending();
    assert_eq!(ending.len(), 1, "one is enough");
    let victim = *ending.first().expect("one");
    assert_eq!(
        world.reason(wants),
        format!("Resources: takes over from job {victim} in 90 s")
    );
    world.wait(Duration::from_secs(80));
    let seen = [low, other].map(|id| world.seen(id, "n1", ObservedPhase::Ready));
    world.report("n1", seen.to_vec());
    assert_eq!(
        world.reason(wants),
        format!("Resources: takes over from job {victim} in 10 s")
    );
    world.obey(&["n1"]);
    assert_eq!(world.state(victim), JobState::Preempted);
    assert_eq!(world.state(wants), JobState::Configuring);
    let left = if victim == low { other } else { low };
    assert_eq!(world.state(left), JobState::Running);
}

#[test]
fn nobody_is_preempted_for_ever_nor_by_his_like_nor_for_who_would_not_wait() {
    let mut settings = settings();
    settings.queue.preemption.max_preemptions = 2;
    let mut world = World::lending(settings, &["n1"], Preemption::Requeue, None);
    let low = world.submit("alice", spec(8, 600, "low"));
    for round in 0..3 {
        world.obey(&["n1"]);
        world.wait(Duration::from_mins(30));
        assert_eq!(world.job(low).preemptions(), round);
        // Interactive, and gives way itself.
        let (_, like) = world.open("bob", open("like", spec(1, 60, "low")));
        assert_eq!(world.state(like), JobState::Pending);
        world.must(Input::StopSession(
            caller("bob"),
            "like".parse().expect("a name"),
            None,
        ));
        // It would be cancelled before it could start.
        let mut hasty = open("hasty", spec(1, 60, "normal"));
        hasty.start.within = Some(Duration::from_secs(5));
        world.open("bob", hasty);
        assert_eq!(world.state(low), JobState::Running);
        world.must(Input::StopSession(
            caller("bob"),
            "hasty".parse().expect("a name"),
            None,
        ));
        let (_, wants) = world.open("bob", open(&format!("dev{round}"), spec(1, 60, "normal")));
        world.obey(&["n1"]);
        if round == 2 {
            assert_eq!(world.state(low), JobState::Running, "twice in a row is enough");
            assert_eq!(world.state(wants), JobState::Pending);
            break;
        }
        assert_eq!(
            (world.state(low), world.state(wants)),
            (JobState::Pending, JobState::Configuring)
        );
        let name = format!("dev{round}").parse().expect("a name");
        world.must(Input::StopSession(caller("bob"), name, None));
        world.obey(&["n1"]);
        assert_eq!(world.state(low), JobState::Configuring);
    }
}

/// Of a few jobs no other choice loses less; and of any number none is ended that could be spared, none that is
/// protected, and whoever they are ended for starts as soon as they are gone.
#[test]
fn those_are_ended_who_lose_the_least_and_none_too_many() {
    let (mut few, mut many, mut several) = (0, 0, 0);
    for seed in 0..160 {
        let mut chance = Chance(seed);
        let crowded = seed % 2 == 1;
        let mut settings = settings();
        settings.queue.preemption.min_runtime = Duration::from_mins(30);
        let mut world = World::lending(settings, &NODE_NAMES, Preemption::Requeue, None);
        let wanted = if crowded { 40 } else { 11 };
        for _ in 0..wanted {
            let with = if chance.below(6) == 0 { "normal" } else { "low" };
            let count = match (crowded, chance.below(3)) {
                (true, _) => 1,
                (false, 0) => 4,
                (false, _) => 1 + chance.below(3) as u32,
            };
            let mut spec = spec(count, 6_000, with);
            spec.request.nodes = if chance.below(5) == 0 { 2 } else { 1 };
            world.submit("alice", spec);
            world.wait(Duration::from_mins(chance.below(12)));
        }
        world.obey(&NODE_NAMES);
        let state = world.broker.state();
        let running = state.deadlines.iter().map(|(_, id)| *id);
        let may_end = |id: &JobId| {
            let job = world.job(*id);
            let placed = job.placed().expect("it runs");
            let long = placed.started.after(Duration::from_mins(30)) <= world.now;
            job.terms.qos == qos("low") && long
        };
        let candidates: Vec<JobId> = running.filter(may_end).collect();
        let mut spec = spec(2 + chance.below(7) as u32, 60, "normal");
        spec.request.nodes = if chance.below(3) == 0 { 2 } else { 1 };
        spec.request.nvlink = true;
        let nodes = spec.request.nodes;
        let (_, wants) = world.open("bob", open("dev", spec));
        let ending = world.ending();
        let all: BTreeSet<JobId> = candidates.iter().copied().collect();
        if world.state(wants) != JobState::Pending {
            assert!(ending.is_empty());
            continue;
        }
        if ending.is_empty() {
            assert!(
                !world.fits_without(wants, &all),
                "seed {seed}: {wants} is left waiting"
            );
            continue;
        }
        assert!(ending.is_subset(&all), "seed {seed}: {ending:?} of {all:?}");
        assert!(world.fits_without(wants, &ending), "seed {seed}");
        for one in &ending {
            let mut others = ending.clone();
            others.remove(one);
            assert!(
                !world.fits_without(wants, &others),
                "seed {seed}: {one} is ended for nothing"
            );
        }
        if candidates.len() <= 10 {
            let subsets = (0..1_u32 << candidates.len()).map(|bits| -> BTreeSet<JobId> {
                let chosen = candidates.iter().enumerate();
                chosen
                    .filter(|(at, _)| (bits >> at) & 1 == 1)
                    .map(|(_, id)| *id)
                    .collect()
            });
            let cheaper = subsets.filter(|set| world.loss(set) < world.loss(&ending));
            let mut better = cheaper.filter(|set| world.fits_without(wants, set));
            assert_eq!(better.next(), None, "seed {seed}: {ending:?} of {candidates:?}");
            few += 1;
        } else if nodes == 1 {
            // Exact, too: only who is on the one node counts.
            for name in NODE_NAMES {
                let on = |id: &JobId| {
                    let placed = world.job(*id).placed().expect("it runs");
                    placed.allocation.nodes.iter().any(|part| part.node == node(name))
                };
                let here: Vec<JobId> = candidates.iter().copied().filter(on).collect();
                let subsets = (0..1_u32 << here.len()).map(|bits| -> BTreeSet<JobId> {
                    let chosen = here.iter().enumerate();
                    chosen
                        .filter(|(at, _)| (bits >> at) & 1 == 1)
                        .map(|(_, id)| *id)
                        .collect()
                });
                let cheaper = subsets.filter(|set| world.loss(set) < world.loss(&ending));
                let mut better = cheaper.filter(|set| world.fits_without(wants, set));
                assert_eq!(better.next(), None, "seed {seed}");
            }
            many += 1;
        }
        several += usize::from(ending.len() > 1);
        world.obey(&NODE_NAMES);
        assert_eq!(
            world.state(wants),
            JobState::Configuring,
            "seed {seed}: {}",
            world.reason(wants)
        );
    }
    assert!(few > 10 && many > 10 && several > 10, "{few} {many} {several}");
}

#[test]
fn a_batch_job_whose_node_is_lost_waits_again() {
    let mut world = World::new(&["n1", "n2"]);
    let id = world.submit("alice", spec(4, 600, "normal"));
    let at = world.job(id).placed().expect("placed").allocation.nodes[0]
        .node
        .to_string();
    world.obey(&["n1", "n2"]);
    let other = if at == "n1" { "n2" } else { "n1" };
    let key: JobKey = world.job(id).key().expect("placed");
    for _ in 0..24 {
        world.wait(Duration::from_secs(30));
        world.must(Input::Tick);
        world.obey(&[other]);
    }
    let job = world.job(id);
    assert_eq!(
        job.past_runs.last().map(|run| run.state),
        Some(JobState::NodeFail)
    );
    assert_eq!(
        job.placed()
            .map(|placed| placed.allocation.nodes[0].node.as_str()),
        Some(other)
    );
    assert_ne!(job.key(), Some(key));
    // A session is over with its node.
    let (_, session) = world.open("bob", open("dev", spec(1, 600, "normal")));
    for _ in 0..24 {
        world.wait(Duration::from_secs(30));
        world.must(Input::Tick);
    }
    assert_eq!(world.state(session), JobState::NodeFail);
}

#[test]
fn a_batch_job_is_queued_again_by_its_owner_and_operators_and_stopped_for_good() {
    let mut world = World::new(&["n1"]);
    let id = world.submit("alice", spec(4, 600, "normal"));
    let requeue =
        |world: &mut World, user: &str, id: JobId| world.handle(Input::RequeueJob(caller(user), id.into()));
    world.obey(&["n1"]);
    let refused = requeue(&mut world, "bob", id).expect_err("another's");
    assert_eq!(refused.kind, RejectKind::Denied);
    requeue(&mut world, "ops", id).expect("accepted");
    assert_eq!(world.state(id), JobState::Completing);
    assert_eq!(world.reason(id), "queued again by ops");
    requeue(&mut world, "alice", id).expect("it is already");
    world.obey(&["n1"]);
    assert_eq!(
        (world.state(id), world.job(id).past_runs.len()),
        (JobState::Configuring, 1)
    );
    // It comes to its end by itself before it hears that it is to go: it has run.
    requeue(&mut world, "alice", id).expect("accepted");
    let mut seen = world.seen(id, "n1", ObservedPhase::Released);
    (seen.cause, seen.exit_code) = (Some(EndCause::Exited), Some(0));
    world.report("n1", vec![seen]);
    assert_eq!(world.state(id), JobState::Completed);
    // What is over and has run does so once more, by its owner and operators alone.
    assert!(requeue(&mut world, "bob", id).is_err());
    requeue(&mut world, "alice", id).expect("it runs once more");
    assert_eq!(
        (world.state(id), world.job(id).past_runs.len()),
        (JobState::Configuring, 2)
    );
    world.must(Input::CancelJob(caller("alice"), id.into()));
    world.obey(&["n1"]);
    let (_, session) = world.open("alice", open("dev", spec(1, 60, "normal")));
    let refused = requeue(&mut world, "alice", session).expect_err("a session");
    assert_eq!(
        refused.message,
        format!("job {session} is a session's, and no batch job")
    );
    assert!(requeue(&mut world, "alice", JobId(999)).is_err());
    let waits = world.submit("alice", spec(8, 60, "normal"));
    assert!(
        world
            .handle(Input::CancelJob(caller("bob"), waits.into()))
            .is_err()
    );
    world.must(Input::CancelJob(caller("alice"), waits.into()));
    assert_eq!(
        (world.state(waits), world.reason(waits).as_str()),
        (JobState::Cancelled, "cancelled by alice")
    );
    let nothing = SubmitJob {
        name: "x".to_owned(),
        spec: spec(1, 1, "normal"),
        command: vec![],
        script: None,
        output: Output::default(),
        submitted_from: Place::default(),
        comment: String::new(),
        request_key: String::new(),
        array: None,
        requeue: false,
        mail: None,
        start: StartWish::default(),
    };
    let refused = world.handle(Input::SubmitJob(caller("alice"), Box::new(nothing)));
    assert_eq!(refused.expect_err("empty").message, "there is no command to run");
}

/// Each run has its own figures, and the last one's are the job's.
#[test]
fn what_is_used_of_hosts_is_counted_anew_in_each_run() {
    let mut world = World::new(&["n1"]);
    let id = world.submit("alice", spec(4, 600, "normal"));
    let used = |user_us| HostUse {
        user_us,
        system_us: 5,
        memory_bytes: 7,
        peak_bytes: user_us,
    };
    let report = |world: &mut World, host: HostUse, phase| {
        let key = world.job(id).key().expect("placed");
        let said = Activity {
            host,
            ..Activity::default()
        };
        world.activity = [(key, said)].into();
        let seen = world.seen(id, "n1", phase);
        world.report("n1", vec![seen]);
    };
    let known = |world: &World| world.broker.state().host_use(world.job(id));
    report(&mut world, used(9_000_000), ObservedPhase::Ready);
    assert_eq!(known(&world), [used(9_000_000)]);
    world.must(Input::RequeueJob(caller("alice"), id.into()));
    report(&mut world, used(9_500_000), ObservedPhase::Released);
    assert_eq!(world.state(id), JobState::Configuring);
    assert!(known(&world)[0].is_nothing(), "of another run");
    report(&mut world, used(2_000_000), ObservedPhase::Ready);
    let mut over = world.seen(id, "n1", ObservedPhase::Released);
    (over.cause, over.exit_code) = (Some(EndCause::Exited), Some(0));
    world.report("n1", vec![over]);
    assert_eq!(world.state(id), JobState::Completed);
    world.restart(8);
    let last = HostUse {
        memory_bytes: 0,
        ..used(2_000_000)
    };
    assert_eq!(known(&world), [last]);
    // What waits has none of it.
    let waits = world.submit("alice", spec(8, 60, "normal"));
    let next = world.submit("alice", spec(8, 60, "normal"));
    assert!(world.broker.state().host_use(world.job(next)).is_empty());
    assert_ne!(waits, next);
}

/// A session that gives way, and is stopped by its user as it does, does not come back.
#[test]
fn what_its_user_stops_does_not_wait_again() {
    let mut world = World::lending(settings(), &["n1"], Preemption::Requeue, None);
    let (_, low) = world.open("alice", open("low", spec(8, 600, "low")));
    world.obey(&["n1"]);
    world.wait(Duration::from_mins(20));
    let (_, wants) = world.open("bob", open("dev", spec(1, 60, "normal")));
    assert_eq!(world.state(low), JobState::Completing);
    // Who opens it again meanwhile finds it: it comes back by itself.
    assert_eq!(world.open("alice", open("low", spec(8, 600, "low"))).1, low);
    world.must(Input::StopSession(
        caller("alice"),
        "low".parse().expect("a name"),
        None,
    ));
    world.obey(&["n1"]);
    assert_eq!(world.state(low), JobState::Completed);
    assert_eq!(world.state(wants), JobState::Configuring);
}

#[test]
fn interactive_jobs_find_room_beside_batch_that_stays() {
    let mut settings = settings();
    settings.queue.headroom.floor = 2;
    let mut world = World::lending(settings, &["n1"], Preemption::Requeue, None);
    let held: Vec<JobId> = (0..4)
        .map(|_| world.submit("alice", spec(2, 600, "normal")))
        .collect();
    let states: Vec<JobState> = held.iter().map(|id| world.state(*id)).collect();
    assert_eq!(states[..3], [JobState::Configuring; 3]);
    assert_eq!(
        world.reason(held[3]),
        "Headroom: 2 of 8 NVIDIA H100 80GB HBM3 are kept for interactive jobs"
    );
    // It is lent to those that give way, and had back.
    let low = world.submit("alice", spec(2, 600, "low"));
    assert_eq!(world.state(low), JobState::Configuring);
    world.obey(&["n1"]);
    world.wait(Duration::from_mins(15));
    let (_, dev) = world.open("bob", open("dev", spec(2, 60, "normal")));
    assert_eq!(world.ending(), BTreeSet::from([low]));
    world.obey(&["n1"]);
    assert_eq!(world.state(dev), JobState::Configuring);
    assert_eq!(world.state(held[3]), JobState::Pending);
    // Who wants more than is ever left does not wait for ever.
    for id in &held {
        if world.job(*id).placed().is_some() {
            world.must(Input::RequeueJob(caller("alice"), (*id).into()));
        }
    }
    let hold = JobUpdate {
        hold: Some(true),
        ..JobUpdate::default()
    };
    world.must(Input::StopSession(
        caller("bob"),
        "dev".parse().expect("a name"),
        None,
    ));
    let all = world.submit("alice", spec(8, 600, "normal"));
    world.must(Input::UpdateJob(caller("alice"), low.into(), hold.clone()));
    world.must(Input::UpdateJob(caller("alice"), held[3].into(), hold.clone()));
    world.obey(&["n1"]);
    let waiting: Vec<JobId> = held
        .iter()
        .copied()
        .filter(|id| world.state(*id) == JobState::Pending)
        .collect();
    for id in waiting {
        world.must(Input::UpdateJob(caller("alice"), id.into(), hold.clone()));
    }
    for id in &held {
        if world.job(*id).placed().is_some() {
            world.must(Input::RequeueJob(caller("alice"), (*id).into()));
            world.obey(&["n1"]);
            world.must(Input::UpdateJob(caller("alice"), (*id).into(), hold.clone()));
        }
    }
    world.obey(&["n1"]);
    assert!(world.job(all).placed().is_some(), "{}", world.reason(all));
}

/// What interactive jobs have held lately is what is kept, and is so after a restart.
#[test]
fn headroom_follows_demand() {
    let mut world = World::new(&["n1", "n2"]);
    let kept = |world: &World| world.broker.state().headroom(world.now)[0].kept;
    assert_eq!(kept(&world), 0);
    for round in 0..40 {
        let name = format!("dev{round}");
        world.open("bob", open(&name, spec(1, 60, "normal")));
        world.obey(&["n1", "n2"]);
        world.wait(Duration::from_mins(50));
        world.must(Input::StopSession(
            caller("bob"),
            name.parse().expect("a name"),
            None,
        ));
        world.obey(&["n1", "n2"]);
    }
    // One at any time: of four at once one in sixty finds too few, of three one in sixteen.
    assert_eq!(kept(&world), 4);
    world.restart(13);
    world.obey(&["n1", "n2"]);
    assert_eq!(kept(&world), 4);
    world.wait(Duration::from_hours(24 * 14));
    world.must(Input::Tick);
    world.obey(&["n1", "n2"]);
    assert_eq!(kept(&world), 0, "nobody comes any more");
}
