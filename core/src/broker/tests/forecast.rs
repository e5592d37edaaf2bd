//! What is said of starts to come is what then happens.

use super::*;

fn for_minutes(minutes: u64, count: u32) -> SessionSpec {
    SessionSpec {
        time_limit: Duration::from_mins(minutes),
        ..gpus(count)
    }
}

fn planned(world: &World, spec: SessionSpec) -> Plan {
    plan(world.broker.state(), &caller("alice"), spec, world.now).expect("a plan")
}

/// Minutes until each choice would start, and whether it asks for NVLink and for how many GPUs.
fn choices(world: &World, plan: &Plan) -> Vec<(Option<u64>, bool, u32)> {
    let minutes = |start: &Start| (start.at.0 - world.now.0) / 60_000;
    let each = plan.choices.iter().map(|choice| {
        let request = &choice.request;
        (
            choice.start.as_ref().map(minutes),
            request.nvlink,
            request.gpus_per_node,
        )
    });
    each.collect()
}

#[test]
fn a_start_is_when_enough_has_ended() {
    let mut world = World::new(&["n1"]);
    world.open("bob", open("a", for_minutes(30, 4)));
    world.open("bob", open("b", for_minutes(10, 4)));
    // In front of it somebody waits for all, until both are over.
    let (_, whole) = world.open("bob", open("c", for_minutes(60, 8)));
    let asked = for_minutes(5, 4);
    assert_eq!(
        choices(&world, &planned(&world, asked.clone()))[0],
        (Some(10), true, 4),
        "it is over before those GPUs are promised for"
    );
    let (_, id) = world.open("alice", open("dev", asked));
    let at =
        |id| start_of(world.broker.state(), id, world.now).map(|start| (start.at.0 - world.now.0) / 60_000);
    assert_eq!((at(whole), at(id)), (Some(30), Some(10)));
    // Asking changes nothing.
    assert_eq!(world.state(id), JobState::Pending);
    assert_eq!(check(world.broker.state()), []);
}

#[test]
fn what_is_free_is_planned_as_it_is_placed() {
    let mut world = World::new(&["n1"]);
    world.open("bob", open("a", gpus(3)));
    let plan = planned(&world, gpus(2));
    assert!(plan.why_not.is_none());
    assert_eq!(plan.choices.len(), 1, "{:?}", plan.choices);
    let (_, id) = world.open("alice", open("dev", gpus(2)));
    let placed = world.job(id).placed().expect("it has been placed").clone();
    let start = plan.choices[0].start.as_ref().expect("a start");
    assert_eq!((&start.allocation, start.at), (&placed.allocation, world.now));
}

#[test]
fn there_is_a_choice_between_now_and_better() {
    // NVLink joins its GPUs in pairs; each job holds one, and those that are stopped leave two that are no pair.
    let mut world = World::new(&["pair1"]);
    let mut single = gpus(1);
    single.request.nvlink = false;
    let mut jobs = Vec::new();
    for number in 0..8 {
        jobs.push(world.open("bob", open(&format!("s{number}"), single.clone())));
    }
    let pair_of = |world: &World, id| {
        let placed = world.job(id).placed().expect("it runs").clone();
        let gpu = placed.allocation.nodes[0].gpus[0].gpu.to_string();
        gpu.rsplit('-')
            .next()
            .and_then(|index| index.parse::<u32>().ok())
            .expect("an index")
            / 2
    };
    let first = jobs[0];
    let second = *jobs[1..]
        .iter()
        .find(|(_, id)| pair_of(&world, *id) != pair_of(&world, first.1))
        .expect("another");
    for (session, id) in [first, second] {
        world.must(Input::StopSession(
            caller("bob"),
            SessionRef::Id(session),
            Some(id),
        ));
    }
    let running: Vec<ObservedJob> = jobs
        .iter()
        .map(|(_, id)| {
            let ended = [first.1, second.1].contains(id);
            world.seen(
                *id,
                "pair1",
                if ended {
                    ObservedPhase::Released
                } else {
                    ObservedPhase::Ready
                },
            )
        })
        .collect();
    world.report("pair1", running);
    let mut two = gpus(2);
    let limit = world.broker.state().settings.default_time.as_secs() / 60;
    // With NVLink it waits; without, it would start now.
    assert_eq!(
        choices(&world, &planned(&world, two.clone())),
        [(Some(limit), true, 2), (Some(0), false, 2), (Some(0), true, 1),]
    );
    // Without, it starts now; with, it would be better and later.
    two.request.nvlink = false;
    assert_eq!(
        choices(&world, &planned(&world, two)),
        [(Some(0), false, 2), (Some(limit), true, 2)]
    );
}

#[test]
fn a_plan_is_refused_as_the_request_would_be() {
    let world = World::new(&["n1"]);
    let refused = plan(world.broker.state(), &caller("alice"), gpus(9), world.now).expect_err("refused");
    assert!(refused.message.contains("can never hold"), "{refused}");
}

#[test]
fn of_what_waits_for_a_node_no_time_is_said() {
    let mut world = World::new(&["n1"]);
    world.must(Input::Disconnected(node("n1")));
    world.wait(Duration::from_mins(1));
    let plan = planned(&world, gpus(1));
    assert_eq!(choices(&world, &plan), [(None, true, 1)]);
    assert!(plan.why_not.is_some_and(|why| why.ever));
}

#[test]
fn what_is_being_ended_is_not_waited_for_until_its_deadline() {
    let mut world = World::new(&["n1"]);
    let (session, id) = world.open("bob", open("a", gpus(8)));
    world.must(Input::StopSession(
        caller("bob"),
        SessionRef::Id(session),
        Some(id),
    ));
    assert_eq!(world.state(id), JobState::Completing);
    let plan = planned(&world, gpus(8));
    let start = plan.choices[0].start.as_ref().expect("a start");
    assert_eq!(start.at, world.now.after(world.broker.state().settings.grace));
}
