//! Hosts that change under their jobs: GPUs that fall away, come back as others, or change their mode.

use super::*;

/// Reports a host that is another than it was, and what it still runs.
fn becomes(world: &mut World, jobs: Vec<ObservedJob>, change: impl FnOnce(&mut Inventory)) {
    world.report("n1", jobs.clone());
    let link = &world.broker.state().links[&node("n1")];
    let mut observed = (**link.observed.as_ref().expect("it has reported")).clone();
    world.seq += 1;
    observed.seq = world.seq;
    change(&mut observed.inventory);
    world.must(Input::Observed(Arc::new(observed)));
    assert_eq!(check(world.broker.state()), []);
}

/// Takes a GPU out of a host.
fn fall_away(inventory: &mut Inventory, gpu: usize) {
    inventory.gpus.remove(gpu);
    inventory.links = LinkMatrix::from_fn(inventory.gpus.len(), |_, _| Link::NvLink(18));
}

/// GPUs and few CPUs: what is free is a matter of the GPUs.
fn gpus(count: u32) -> SessionSpec {
    let mut spec = super::gpus(count);
    spec.request.cpus_per_node = 1;
    spec.request.memory_bytes_per_node = 1 << 30;
    spec
}

/// What a job holds on its only node.
fn held(world: &World, id: JobId) -> Vec<String> {
    let placed = world.job(id).placed().expect("it has been placed");
    placed.allocation.nodes[0]
        .gpus
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn a_job_keeps_a_gpu_that_has_fallen_away_and_nobody_else_gets_another_for_it() {
    let mut world = World::new(&["n1"]);
    let (_, id) = world.open("alice", open("dev", gpus(4)));
    let before = held(&world, id);
    let gone = before[1].clone();
    let ready = world.seen(id, "n1", ObservedPhase::Ready);
    becomes(&mut world, vec![ready.clone()], |inventory| {
        let at = inventory.gpus.iter().position(|gpu| gpu.uuid.as_str() == gone);
        fall_away(inventory, at.expect("it was there"));
    });
    assert_eq!((world.state(id), held(&world, id)), (JobState::Running, before));
    let why = state_reason(world.broker.state(), world.job(id));
    assert_eq!(why, format!("node n1 does not list its {gone} any more"));
    // Four of the seven are free, and no eight ever.
    let (_, other) = world.open("bob", open("b", gpus(4)));
    assert!(
        held(&world, other)
            .iter()
            .all(|gpu| !held(&world, id).contains(gpu))
    );
    let result = world.handle(Input::OpenSession(caller("bob"), open("c", gpus(8))));
    assert!(result.expect_err("refused").message.contains("fewer than 8 GPUs"));
    // It is back: it is still its job's.
    let other = world.seen(other, "n1", ObservedPhase::Ready);
    world.report("n1", vec![ready, other]);
    let (_, waits) = world.open("bob", open("d", gpus(1)));
    assert_eq!(world.state(waits), JobState::Pending, "all eight are held");
    assert_eq!(check(world.broker.state()), []);
}

#[test]
fn a_gpu_that_comes_back_as_another_is_a_free_one() {
    let mut world = World::new(&["n1"]);
    let (_, id) = world.open("alice", open("dev", gpus(8)));
    let ready = world.seen(id, "n1", ObservedPhase::Ready);
    becomes(&mut world, vec![ready], |inventory| {
        inventory.gpus[3].uuid = "GPU-replaced".parse().expect("a UUID");
    });
    let (_, other) = world.open("bob", open("b", gpus(1)));
    assert_eq!(held(&world, other), ["GPU-replaced"]);
    assert_eq!(world.state(id), JobState::Running);
    assert_eq!(check(world.broker.state()), []);
}

#[test]
fn mig_mode_that_is_switched_behind_our_back_takes_nothing_from_a_job() {
    let mut world = World::new(&["n1"]);
    let (_, id) = world.open("alice", open("dev", gpus(4)));
    let own = held(&world, id);
    let ready = world.seen(id, "n1", ObservedPhase::Ready);
    becomes(&mut world, vec![ready.clone()], |inventory| {
        for gpu in &mut inventory.gpus {
            gpu.mig = Some(Mig {
                profiles: vec![slice("3g.40gb", 3, 4, &[0, 4]), slice("7g.80gb", 7, 8, &[0])],
                instances: Vec::new(),
                recut: true,
            });
        }
    });
    assert_eq!(
        (world.state(id), held(&world, id)),
        (JobState::Running, own.clone())
    );
    // Slices of the four that are free, none of those that are held as a whole.
    let mut spec = gpus(8);
    spec.request.nvlink = false;
    spec.request.unit = UnitRequest::Mig("3g.40gb".into());
    let (_, slices) = world.open("bob", open("b", spec.clone()));
    let given = held(&world, slices);
    assert_eq!(given.len(), 8);
    assert!(
        given
            .iter()
            .all(|unit| own.iter().all(|gpu| !unit.starts_with(&format!("{gpu}:")))),
        "{given:?}"
    );
    spec.request.gpus_per_node = 1;
    let (_, waits) = world.open("bob", open("c", spec));
    assert_eq!(world.state(waits), JobState::Pending);
    // And back again: the slices are held, and their GPUs are not given as a whole.
    let slices = world.seen(slices, "n1", ObservedPhase::Ready);
    becomes(&mut world, vec![ready, slices], |inventory| {
        for gpu in &mut inventory.gpus {
            gpu.mig = None;
        }
    });
    let (_, whole) = world.open("bob", open("d", gpus(1)));
    assert_eq!(world.state(whole), JobState::Pending, "nothing is free");
    assert_eq!(check(world.broker.state()), []);
}
