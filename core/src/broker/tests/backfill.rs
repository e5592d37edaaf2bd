//! Promised starts are kept, and what does not move them starts.

use super::*;
use crate::model::account::{Account, Limits, Member};
use crate::model::ids::AccountName;
use crate::model::terms::Terms;

fn for_minutes(minutes: u64, nodes: u32, count: u32) -> SessionSpec {
    let mut spec = SessionSpec {
        time_limit: Duration::from_mins(minutes),
        ..gpus(count)
    };
    spec.request.nodes = nodes;
    spec.request.nvlink = false;
    spec.request.cpus_per_node = count * 10;
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
    /// Nodes do what they are told: what is being ended is released, everything else runs.
    pub(super) fn settle(&mut self, nodes: &[&str]) {
        for name in nodes {
            let state = self.broker.state();
            let placed = state.placed_on.get(&node(name)).cloned().unwrap_or_default();
            let jobs = placed.iter().map(|id| {
                let over = self
                    .job(*id)
                    .placed()
                    .is_some_and(|placed| placed.ending.is_some());
                let phase = if over {
                    ObservedPhase::Released
                } else {
                    ObservedPhase::Ready
                };
                self.seen(*id, name, phase)
            });
            let jobs = jobs.collect();
            self.report(name, jobs);
        }
    }

    fn promised(&self, id: JobId) -> Option<Timestamp> {
        self.broker.state().promises.get(&id).map(|promise| promise.start)
    }

    fn minutes_to(&self, at: Timestamp) -> u64 {
        at.since(self.now).as_secs() / 60
    }
}

#[test]
fn small_jobs_fill_in_as_long_as_the_gang_is_not_later_for_it() {
    let mut world = World::new(&["n1", "n2"]);
    world.open("bob", open("a", for_minutes(60, 1, 8)));
    world.open("bob", open("b", for_minutes(20, 1, 6)));
    let (_, gang) = world.open("bob", open("gang", for_minutes(30, 2, 8)));
    let start = world.promised(gang).expect("a promise");
    assert_eq!(world.minutes_to(start), 60);
    // Two GPUs are free on the second node: for an hour, and no longer.
    let (_, short) = world.open("alice", open("short", for_minutes(50, 1, 2)));
    assert_eq!(
        world.state(short),
        JobState::Configuring,
        "{}",
        world.reason(short)
    );
    world.must(Input::StopSession(
        caller("alice"),
        "short".parse().expect("a name"),
        None,
    ));
    // What is being ended holds what it held until its node has said so.
    let (_, early) = world.open("bob", open("early", for_minutes(70, 1, 1)));
    assert_eq!(world.state(early), JobState::Pending, "{}", world.reason(early));
    world.settle(&["n1", "n2"]);
    assert_eq!(world.state(early), JobState::Pending, "{}", world.reason(early));
    world.must(Input::StopSession(
        caller("bob"),
        "early".parse().expect("a name"),
        None,
    ));
    let (_, long) = world.open("bob", open("long", for_minutes(70, 1, 2)));
    assert_eq!(world.state(long), JobState::Pending);
    assert_eq!(
        world.reason(long),
        format!("Priority: what it could have is promised to job {gang}")
    );
    assert_eq!(world.promised(gang), Some(start));
    // The one in front of it ends early, and so the promise gets better.
    world.must(Input::StopSession(
        caller("bob"),
        "a".parse().expect("a name"),
        None,
    ));
    world.settle(&["n1", "n2"]);
    assert_eq!(world.promised(gang).map(|at| world.minutes_to(at)), Some(20));
}

/// What was promised to whom last.
#[derive(Default)]
struct Promised(BTreeMap<JobId, Timestamp>);

impl Promised {
    /// Compares what is promised with what was; how many of those have started. Nodes give back at once what is over:
    /// nothing can be late.
    fn follow(&mut self, world: &World, only_submitted: bool) -> usize {
        let mut started = 0;
        for (id, start) in std::mem::take(&mut self.0) {
            if world.job(id).placed().is_some() {
                started += 1;
                continue;
            }
            let now = world
                .promised(id)
                .unwrap_or_else(|| panic!("job {id} is no more among the first"));
            assert!(
                world.now <= start || now > start,
                "job {id} has not started by {start}"
            );
            assert!(
                !only_submitted || now <= start,
                "job {id} was told {start} and now {now}"
            );
        }
        let promises = world.broker.state().promises.values();
        self.0 = promises.map(|promise| (promise.job, promise.start)).collect();
        started
    }
}

/// Later jobs of one user are behind earlier ones: none that comes moves a promise later, and the last that was made
/// is kept. (When something ends early, one in front may start in a place that was promised to one behind it.)
#[test]
fn no_promise_is_ever_broken_by_a_job_behind() {
    const NODES: [&str; 4] = ["n1", "n2", "n3", "pair1"];
    for seed in 0..6 {
        let mut chance = Chance(seed);
        // Only its age orders a user's jobs.
        let mut settings = settings();
        settings.queue.weights.size = 0;
        let mut world = World::with(settings, &NODES);
        let mut promised = Promised::default();
        let (mut fills, mut kept) = (0, 0);
        for step in 0..150 {
            let comes = chance.below(5);
            match comes {
                0..=2 => {
                    let big = chance.below(3) == 0;
                    let count = if big { 8 } else { 1 + chance.below(8) as u32 };
                    let nodes = if big { 1 + chance.below(4) as u32 } else { 1 };
                    let spec = for_minutes(5 + chance.below(120), nodes, count);
                    let (_, id) = world.open("alice", open(&format!("s{step}"), spec));
                    fills += u32::from(world.job(id).placed().is_some() && !promised.0.is_empty());
                }
                3 => {
                    // What is to end in that time ends then, and what is to start after it can.
                    for _ in 0..chance.below(180) {
                        world.wait(Duration::from_secs(10));
                        world.must(Input::Tick);
                        world.settle(&NODES);
                        kept += promised.follow(&world, false);
                    }
                }
                _ => {
                    let running: Vec<JobId> =
                        world.broker.state().deadlines.iter().map(|(_, id)| *id).collect();
                    if !running.is_empty() {
                        let id = running[chance.below(running.len() as u64) as usize];
                        let name = world.job(id).name.parse().expect("a name");
                        world.must(Input::StopSession(caller("alice"), name, None));
                    }
                }
            }
            world.settle(&NODES);
            kept += promised.follow(&world, comes <= 2);
        }
        assert!(
            fills > 0 && kept > 0,
            "seed {seed}: {fills} filled in, {kept} promises kept"
        );
    }
}

fn share(world: &mut World, name: &str, shares: u32, members: &[&str], limits: Limits) {
    let mut account = Account::new(name.parse().expect("a name"));
    account.shares = shares;
    account.limits = limits;
    for member in members {
        account
            .members
            .insert(member.parse().expect("a name"), Member::default());
    }
    world.broker.put_account(account);
}

#[test]
fn who_has_used_less_of_its_share_comes_first() {
    let mut world = World::new(&["n1"]);
    share(&mut world, "big", 3, &["alice"], Limits::default());
    share(&mut world, "small", 1, &["bob"], Limits::default());
    // Both have used the same, of different shares.
    for user in ["alice", "bob"] {
        world.open(user, open("first", for_minutes(60, 1, 8)));
        world.wait(Duration::from_hours(1));
        world.must(Input::Tick);
        world.settle(&["n1"]);
    }
    world.open("bob", open("blocks", for_minutes(60, 1, 8)));
    let (_, bobs) = world.open("bob", open("next", for_minutes(60, 1, 8)));
    let (_, alices) = world.open("alice", open("next", for_minutes(60, 1, 8)));
    assert_eq!(world.broker.state().in_order(), [alices, bobs]);
    assert_eq!(queue_position(world.broker.state(), bobs), Some(2));
    let priority = |id| {
        let state = world.broker.state();
        state.priority(&state.jobs[&id], world.now)
    };
    let (first, second) = (priority(alices), priority(bobs));
    assert!(first.total() > second.total(), "{first:?} {second:?}");
    let hours = |priority: &Priority| priority.used_hours.round() as u64;
    assert_eq!((hours(&first), hours(&second)), (8, 8));
    assert_eq!(
        world.job(alices).terms,
        Terms {
            account: "big".parse().expect("a name"),
            ..Terms::default()
        }
    );
}

#[test]
fn a_limit_says_whose_it_is_and_who_holds_what() {
    let mut world = World::new(&["n1"]);
    let limits = Limits {
        gpu_milli: Some(4_000),
        ..Limits::default()
    };
    share(&mut world, "lab", 1, &["alice", "bob"], limits);
    world.open("alice", open("one", for_minutes(60, 1, 3)));
    let (_, waits) = world.open("bob", open("two", for_minutes(60, 1, 2)));
    assert_eq!(
        world.reason(waits),
        "AssocGrpGRES: account lab holds 3 of the 4 GPUs that it may (alice 3); this job wants 2"
    );
    // Others pass, and what fits below the limit too.
    let (_, fits) = world.open("bob", open("three", for_minutes(60, 1, 1)));
    assert_eq!(world.state(fits), JobState::Configuring);
    let too_many = world.handle(Input::OpenSession(
        caller("bob"),
        open("four", for_minutes(60, 1, 5)),
    ));
    let refused = too_many.expect_err("it can never run");
    assert_eq!(
        refused.message,
        "account lab may hold 4 GPUs at once, and this asks for 5"
    );
    world.must(Input::StopSession(
        caller("alice"),
        "one".parse().expect("a name"),
        None,
    ));
    world.settle(&["n1"]);
    assert_eq!(world.state(waits), JobState::Configuring);
    // What is read back from the store is counted as it was.
    let counted = |world: &World| -> Vec<_> {
        let tallies = world.broker.state().tallies.iter();
        tallies
            .map(|(holder, tally)| (holder.clone(), tally.gpu_milli))
            .collect()
    };
    let before = counted(&world);
    let lab: AccountName = "lab".parse().expect("a name");
    let record = Change::PutAccount(Arc::clone(&world.broker.state().accounts[&lab]));
    world.store.push(record);
    world.restart(9);
    assert_eq!(before, counted(&world));
}

#[test]
fn seconds_count_as_well_as_hours() {
    let mut world = World::new(&["twin1", "twin2"]);
    let small = |seconds: u64, nodes: u32, count: u32| {
        let mut spec = for_minutes(0, nodes, count);
        spec.time_limit = Duration::from_secs(seconds);
        spec.request.cpus_per_node = 1;
        spec.request.memory_bytes_per_node = 64 << 20;
        spec
    };
    world.open("bob", open("first", small(40, 1, 8)));
    world.wait(Duration::from_secs(1));
    let (_, gang) = world.open("bob", open("gang", small(60, 2, 8)));
    assert!(world.promised(gang).is_some());
    let (_, fits) = world.open("bob", open("fits", small(10, 1, 2)));
    world.settle(&["twin1", "twin2"]);
    assert!(world.promised(gang).is_some());
    world.wait(Duration::from_secs(1));
    world.must(Input::StopSession(
        caller("bob"),
        "fits".parse().expect("a name"),
        None,
    ));
    world.settle(&["twin1", "twin2"]);
    assert!(world.state(fits).is_final());
    assert!(world.promised(gang).is_some());
    let (_, long) = world.open("bob", open("long", small(600, 1, 2)));
    assert_eq!(world.state(long), JobState::Pending, "{}", world.reason(long));
}

/// Who is put in front is promised the start of whoever was there, and not only looked at first.
#[test]
fn promises_follow_the_order_of_the_queue() {
    let mut world = World::new(&["n1"]);
    world.open("bob", open("runs", for_minutes(60, 1, 8)));
    let waiting: Vec<JobId> = (0..8)
        .map(|n| world.open("bob", open(&format!("w{n}"), for_minutes(60, 1, 8))).1)
        .collect();
    let starts = |world: &World, order: &[JobId]| -> Vec<u64> {
        let at = |id: &JobId| world.minutes_to(world.promised(*id).expect("a promise")) / 60;
        order.iter().map(at).collect()
    };
    let hours: Vec<u64> = (1..=8).collect();
    assert_eq!(starts(&world, &waiting), hours);
    // From the last to the first, so that each one has a new place.
    for id in &waiting {
        let top = JobUpdate {
            top: Some(true),
            ..JobUpdate::default()
        };
        world.must(Input::UpdateJob(caller("ops"), (*id).into(), top));
        let order = world.broker.state().in_order();
        assert_eq!(starts(&world, &order), hours, "after job {id} was put first");
    }
}

/// Two that fit beside each other are promised the same time; and whoever was put behind somebody who is gone comes
/// forward again.
#[test]
fn promises_come_forward_when_those_in_front_are_gone() {
    let mut world = World::new(&["pair1"]);
    let joined = |minutes| {
        let mut spec = for_minutes(minutes, 1, 2);
        spec.request.nvlink = true;
        spec
    };
    world.open("bob", open("runs", for_minutes(60, 1, 8)));
    world.settle(&["pair1"]);
    let first = world.open("bob", open("first", joined(240))).1;
    let second = world.open("bob", open("second", joined(240))).1;
    let start = |world: &World, id| world.minutes_to(world.promised(id).expect("a promise"));
    assert_eq!((start(&world, first), start(&world, second)), (60, 60));
    let whole = world.open("carol", open("whole", for_minutes(240, 1, 8))).1;
    let top = JobUpdate {
        top: Some(true),
        ..JobUpdate::default()
    };
    world.must(Input::UpdateJob(caller("ops"), whole.into(), top));
    assert_eq!(start(&world, whole), 60);
    assert_eq!((start(&world, first), start(&world, second)), (300, 300));
    let session = world.job(whole).session.expect("a session");
    world.must(Input::StopSession(caller("carol"), SessionRef::Id(session), None));
    assert_eq!((start(&world, first), start(&world, second)), (60, 60));
}

/// What comes free on other nodes, however often, does not put off a look at the one that matters.
#[test]
fn a_promise_is_not_put_off_by_what_ends_elsewhere() {
    let mut world = World::new(&["n1", "pair1"]);
    let on = |name: &str, spec: SessionSpec| {
        let mut spec = spec;
        spec.request.constraints.nodelist.insert(node(name));
        spec
    };
    // Of each pair of one node a GPU is free; on the other one something ends every few minutes.
    let single: Vec<JobId> = (0..8)
        .map(|n| {
            world
                .open("bob", open(&format!("s{n}"), on("pair1", for_minutes(60, 1, 1))))
                .1
        })
        .collect();
    for (n, minutes) in (20..28).map(|n| (n, n * 2)) {
        world.open(
            "bob",
            open(&format!("o{n}"), on("n1", for_minutes(minutes, 1, 1))),
        );
    }
    world.open("bob", open("late", on("pair1", for_minutes(90, 1, 0))));
    world.settle(&["n1", "pair1"]);
    for id in single.iter().step_by(2) {
        let session = world.job(*id).session.expect("a session");
        world.must(Input::StopSession(caller("bob"), SessionRef::Id(session), None));
        world.settle(&["pair1"]);
    }
    let mut joined = for_minutes(240, 1, 2);
    joined.request.nvlink = true;
    let waits = world.open("bob", open("waits", on("pair1", joined))).1;
    let promised = world.promised(waits).expect("a promise");
    assert_eq!(world.minutes_to(promised), 60);
}
