//! Whole nodes: nobody else is on them, they are promised and charged as what they are, and nobody pays for it who does
//! not ask for them.

use super::*;
use crate::model::account::{Account, Limits, Member};
use crate::model::gpu_unit::WHOLE_MILLI;
use crate::model::ids::AccountName;
use crate::model::qos::{Preemption, Qos};

const NAMES: [&str; 2] = ["n1", "n2"];

fn for_minutes(minutes: u64, count: u32) -> SessionSpec {
    let mut spec = gpus(count);
    spec.request.nvlink = false;
    spec.request.cpus_per_node = 1;
    spec.request.memory_bytes_per_node = 1 << 30;
    spec.time_limit = Duration::from_mins(minutes);
    spec
}

/// So many whole nodes.
fn whole(minutes: u64, nodes: u32) -> SessionSpec {
    let mut spec = for_minutes(minutes, 0);
    spec.request.nodes = nodes;
    spec.request.exclusive = true;
    spec.request.cpus_per_node = 0;
    spec.request.memory_bytes_per_node = 0;
    spec
}

impl World {
    /// What a job holds on each of its nodes: GPUs, CPUs, memory.
    fn amounts(&self, id: JobId) -> Vec<(usize, u32, u64)> {
        let placed = self.job(id).placed().expect("it holds something");
        let parts = placed.allocation.nodes.iter();
        parts
            .map(|part| (part.gpus.len(), part.cpus, part.memory_bytes))
            .collect()
    }

    fn sound(&self) {
        assert_eq!(check(self.broker.state()), []);
    }
}

#[test]
fn a_whole_node_is_all_of_one_that_nobody_is_on() {
    let mut world = World::new(&NAMES);
    let (_, small) = world.open("alice", open("small", for_minutes(60, 1)));
    let (_, alone) = world.open("bob", open("alone", whole(60, 1)));
    assert_eq!(world.amounts(alone), [(8, 104, 1 << 40)]);
    assert_ne!(
        world.job(small).placed().expect("placed").allocation.nodes[0].node,
        world.job(alone).placed().expect("placed").allocation.nodes[0].node
    );
    let (_, second) = world.open("bob", open("second", whole(60, 1)));
    assert_eq!(world.state(second), JobState::Pending);
    let why = world.reason(second);
    assert!(why.contains("not idle on 2 nodes"), "{why}");
    // The smallest thing goes beside the small job, and where the whole node is nothing goes.
    for name in ["a", "b", "c"] {
        let (_, other) = world.open("alice", open(name, for_minutes(5, 2)));
        let part = &world.job(other).placed().expect("there is room").allocation.nodes[0];
        let beside = world.job(small).placed().expect("placed").allocation.nodes[0].clone();
        assert_eq!(part.node, beside.node);
    }
    world.sound();
}

#[test]
fn memory_is_what_is_asked_for_or_all() {
    let mut world = World::new(&NAMES);
    let mut some = whole(60, 1);
    some.request.memory_bytes_per_node = 32 << 30;
    let (_, some) = world.open("alice", open("some", some));
    assert_eq!(world.amounts(some), [(8, 104, 32 << 30)]);
    let mut all = for_minutes(60, 2);
    all.request.all_memory = true;
    let (_, all) = world.open("bob", open("all", all));
    assert_eq!(world.amounts(all), [(2, 1, 1 << 40)]);
    let mut more = for_minutes(60, 2);
    more.request.all_memory = true;
    let (_, more) = world.open("bob", open("more", more));
    let why = world.reason(more);
    assert!(why.contains("not all of the memory free on"), "{why}");
    world.sound();
}

#[test]
fn counts_are_the_least_that_a_whole_node_has() {
    let mut world = World::new(&NAMES);
    let mut more = whole(60, 1);
    more.request.cpus_per_node = 105;
    let refused = world.handle(Input::OpenSession(caller("bob"), open("more", more)));
    let refused = refused.expect_err("no node has as many").message;
    assert!(refused.contains("fewer than 105 CPUs"), "{refused}");
    let mut shared = whole(60, 1);
    shared.request.gpus_per_node = 1;
    shared.request.unit = UnitRequest::Share {
        milli: 500,
        sharing: None,
    };
    let refused = world.handle(Input::OpenSession(caller("bob"), open("shared", shared)));
    let refused = refused.expect_err("it makes no sense").message;
    assert!(refused.contains("--exclusive"), "{refused}");
    let mut least = whole(60, 2);
    least.request.gpus_per_node = 2;
    least.request.gpu_memory_bytes = 20 << 30;
    least.request.unit = UnitRequest::Least;
    let (_, least) = world.open("bob", open("least", least));
    assert_eq!(world.amounts(least), [(8, 104, 1 << 40); 2]);
}

/// The first time at which a node is idle is when the last on it ends, however much comes free before.
#[test]
fn a_whole_node_is_promised_for_when_it_is_idle() {
    let mut world = World::new(&["n1"]);
    for (name, minutes) in [("a", 10), ("b", 20), ("c", 30), ("d", 40), ("e", 50)] {
        world.open("alice", open(name, for_minutes(minutes, 1)));
    }
    let (_, waits) = world.open("bob", open("whole", whole(60, 1)));
    let promised = world.broker.state().promises[&waits].start;
    let grace = world.broker.state().settings.grace;
    assert_eq!(promised, world.now.after(Duration::from_mins(50)).after(grace));
    // Who is back in time goes before it, and who is not does not.
    let (_, short) = world.open("alice", open("short", for_minutes(40, 1)));
    let (_, long) = world.open("alice", open("long", for_minutes(60, 1)));
    assert_eq!(world.state(short), JobState::Configuring);
    assert_eq!(world.state(long), JobState::Pending);
    assert!(
        world.reason(long).starts_with("Priority"),
        "{}",
        world.reason(long)
    );
    for _ in 0..8 {
        world.wait(Duration::from_mins(10));
        world.must(Input::Tick);
        world.settle(&["n1"]);
        world.sound();
    }
    assert_eq!(world.amounts(waits), [(8, 104, 1 << 40)]);
    assert!(world.job(waits).placed().expect("placed").started <= promised);
}

#[test]
fn a_whole_node_counts_for_its_gpus() {
    let mut world = World::new(&NAMES);
    let account: AccountName = "lab".parse().expect("a name");
    let set = |world: &mut World, gpus: u64| {
        let account = Account {
            limits: Limits {
                gpu_milli: Some(gpus * u64::from(WHOLE_MILLI)),
                ..Limits::default()
            },
            members: ["alice", "bob"]
                .map(|name| (name.parse().expect("a name"), Member::default()))
                .into(),
            ..Account::new(account.clone())
        };
        world
            .broker
            .state
            .accounts
            .insert(account.name.clone(), Arc::new(account));
    };
    set(&mut world, 10);
    let on = |spec: SessionSpec, name: &str, world: &mut World| {
        let mut spec = spec;
        spec.terms.account = Some(account.clone());
        world.open("alice", open(name, spec)).1
    };
    let first = on(whole(60, 1), "first", &mut world);
    let placed = world.job(first).placed().expect("placed");
    assert_eq!(placed.allocation.gpu_milli(), 8_000);
    let second = on(whole(60, 1), "second", &mut world);
    assert_eq!(world.state(second), JobState::Pending);
    let why = world.reason(second);
    assert!(
        why.contains("8 of the 10 GPUs") && why.contains("wants 8"),
        "{why}"
    );
    let two = on(for_minutes(5, 2), "two", &mut world);
    assert_eq!(world.state(two), JobState::Configuring);
}

#[test]
fn all_of_a_node_give_way_to_a_whole_node() {
    let mut world = World::new(&["n1"]);
    let low = Qos {
        preemptible: Some(Preemption::Cancel),
        ..Qos::new("low".parse().expect("a name"))
    };
    world.broker.state.qos.insert(low.name.clone(), Arc::new(low));
    let lent = |minutes| {
        let mut spec = for_minutes(minutes, 1);
        spec.terms.qos = Some("low".parse().expect("a name"));
        spec
    };
    let jobs: Vec<JobId> = (0..3).map(|_| world.submit("alice", lent(600))).collect();
    world.settle(&["n1"]);
    world.wait(Duration::from_mins(20));
    world.settle(&["n1"]);
    let (_, alone) = world.open("bob", open("alone", whole(60, 1)));
    for job in &jobs {
        assert_eq!(world.state(*job), JobState::Completing, "{}", world.reason(alone));
    }
    world.settle(&["n1"]);
    world.must(Input::Tick);
    assert_eq!(world.amounts(alone), [(8, 104, 1 << 40)]);
    world.sound();
}

/// What each component has is told with its number, and only where components were asked for as such.
#[test]
fn components_are_told_apart_in_the_environment() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    let mut spec = for_minutes(60, 0);
    spec.request.more = vec![ResourceRequest {
        nodes: 2,
        gpus_per_node: 4,
        cpus_per_node: 8,
        memory_bytes_per_node: 2 << 30,
        ..ResourceRequest::default()
    }];
    let variables = |world: &mut World, name: &str, spec: &SessionSpec| -> BTreeMap<String, String> {
        let (_, id) = world.open("alice", open(name, spec.clone()));
        let job = world.job(id).clone();
        let placed = job.placed().expect("placed");
        environment::of(world.broker.state(), &job, placed, 0)
            .into_iter()
            .collect()
    };
    let plain = variables(&mut world, "plain", &spec);
    assert!(plain.keys().all(|name| !name.contains("HET")));
    for (variable, value) in [
        ("SLURM_HET_SIZE", "2"),
        ("SLURM_TASKS_PER_NODE_HET_GROUP_1", "4(x2)"),
    ] {
        spec.env.insert(variable.to_owned(), value.to_owned());
    }
    let het = variables(&mut world, "het", &spec);
    let all = het["CARREL_NODES"].clone();
    let first = all.split(',').next().expect("a node");
    for (name, value) in [
        ("SLURM_JOB_NODELIST_HET_GROUP_0", first),
        ("SLURM_JOB_NUM_NODES_HET_GROUP_0", "1"),
        ("SLURM_JOB_NUM_NODES_HET_GROUP_1", "2"),
        ("SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1", "8(x2)"),
        ("SLURM_MEM_PER_NODE_HET_GROUP_1", "2048"),
        ("SLURM_GPUS_PER_NODE_HET_GROUP_1", "4"),
        ("SLURM_TASKS_PER_NODE_HET_GROUP_0", "1"),
        ("SLURM_TASKS_PER_NODE_HET_GROUP_1", "4(x2)"),
        ("SLURM_JOB_NUM_NODES", "3"),
    ] {
        assert_eq!(het.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(het["SLURM_JOB_ID_HET_GROUP_1"], het["SLURM_JOB_ID"]);
}
