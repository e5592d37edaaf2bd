//! Protects: what a request gets that names no CPUs and no memory fits the nodes that it means, and no others.

use super::*;

fn sizes(world: &mut World, name: &str, change: impl FnOnce(&mut ResourceRequest)) -> (u32, u64) {
    let mut spec = gpus(1);
    change(&mut spec.request);
    let (_, job) = world.open("alice", open(name, spec));
    let request = &world.broker.state().jobs[&job].request;
    (request.cpus_per_node, request.memory_bytes_per_node)
}

#[test]
fn a_small_node_is_no_measure_for_others() {
    let names = |name: &str| [node(name)].into_iter().collect();
    let mut world = World::with(settings(), &["ib1", "ib2", "ib3", "tiny1"]);
    let default = sizes(&mut world, "any", |_| ());
    assert_eq!(default, (12, 128 << 30));
    let small = sizes(&mut world, "tiny", |request| {
        request.constraints.nodelist = names("tiny1");
    });
    assert_eq!(small, (1, 256 << 20), "an eighth of what it has");
    let mut world = World::with(settings(), &["ib1", "tiny1"]);
    assert_eq!(sizes(&mut world, "any", |_| ()), small);
    let without = sizes(&mut world, "but", |request| {
        request.constraints.exclude = names("tiny1");
    });
    assert_eq!(without, default);
}
