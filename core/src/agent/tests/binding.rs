//! Which CPUs and memory nodes jobs get, and that they keep them.

use super::*;

const NOW: Now = Now {
    wall: Timestamp(1_000_000_000),
    boot_ms: 5_000,
};

fn with(job: DesiredJob, cpus: u32, gib: u64) -> DesiredJob {
    DesiredJob {
        cpus,
        memory_bytes: gib << 30,
        ..job
    }
}

fn binding(rig: &Rig, id: u64) -> (String, String) {
    let holding = rig.agent.holding(key(id)).expect("it holds");
    (holding.binding.cpus.to_string(), holding.binding.mems.to_string())
}

fn bound(cpus: &str, mems: &str) -> (String, String) {
    (cpus.to_owned(), mems.to_owned())
}

#[test]
fn cpus_are_near_to_the_gpus_and_nobody_else_s() {
    let mut rig = Rig::new();
    let jobs = [
        with(job(1, &[2]), 2, 4),
        with(job(2, &[3]), 1, 4),
        with(job(3, &[]), 2, 4),
        with(job(4, &[0]), 2, 4),
    ];
    let actions = rig.want(jobs.to_vec(), Vec::new());
    assert!(jobs.iter().all(|job| starts(&actions, job.key)), "{actions:?}");
    assert_eq!(binding(&rig, 1), bound("4-5", "1"));
    assert_eq!(binding(&rig, 2), bound("6", "1"));
    // GPUs 0 and 1 are free: it goes where none is.
    assert_eq!(binding(&rig, 3).0, "0,7");
    assert_eq!(binding(&rig, 4), bound("2-3", "0"));
    let seen = rig.seen(key(1)).expect("it is reported");
    assert_eq!(
        (seen.binding.cpus.to_string(), seen.binding.mems.to_string()),
        bound("4-5", "1")
    );
}

/// The ledger is written before the start; whatever the agent dies in, the choice stands.
#[test]
fn a_choice_survives_the_agent() {
    let mut rig = Rig::new();
    let (first, second) = (with(job(1, &[0]), 3, 1), with(job(2, &[]), 3, 1));
    rig.run(&first);
    rig.want(vec![first.clone(), second.clone()], Vec::new());
    let before = (binding(&rig, 1), binding(&rig, 2));
    // The first runs, of the second nothing was made.
    rig.restart(100, "boot-1");
    let mut running = found(&first, FoundState::Running);
    running.holding.binding = rig.agent.holding(key(1)).expect("it holds").binding.clone();
    rig.input(Input::World(vec![running]));
    let actions = rig.want(vec![first, second.clone()], Vec::new());
    assert!(starts(&actions, second.key), "{actions:?}");
    assert_eq!((binding(&rig, 1), binding(&rig, 2)), before);
    let blocked = rig.event(second.key, ContainerEvent::Blocked("used".into()));
    assert!(!starts(&blocked, second.key));
    assert!(starts(&rig.pass(2_000), second.key));
    assert_eq!(binding(&rig, 2), before.1);
}

/// Without its ledger the agent knows from the containers' own records who has what.
#[test]
fn a_lost_ledger_is_made_good_by_the_containers() {
    let mut rig = Rig::unadopted(None, "boot-1", NOW);
    let first = with(job(1, &[0]), 2, 1);
    let mut running = found(&first, FoundState::Running);
    running.holding.binding.cpus = "0,2".parse().expect("a list");
    rig.input(Input::World(vec![running]));
    rig.want(vec![first, with(job(2, &[1]), 2, 1)], Vec::new());
    assert_eq!(binding(&rig, 1).0, "0,2");
    assert_eq!(binding(&rig, 2).0, "1,3");
}

/// A container that an agent before cpusets started stays as it is, and holds what it holds by number.
#[test]
fn what_was_started_unbound_stays_unbound() {
    let mut rig = Rig::unadopted(None, "boot-1", NOW);
    let old = with(job(1, &[]), 6, 1);
    rig.input(Input::World(vec![found(&old, FoundState::Running)]));
    rig.want(
        vec![old.clone(), with(job(2, &[0]), 2, 1), with(job(3, &[]), 1, 1)],
        Vec::new(),
    );
    assert_eq!(binding(&rig, 1), bound("", ""));
    assert_eq!(binding(&rig, 2).0, "0-1");
    assert_eq!(rig.phase(key(3)), Some(ObservedPhase::Preparing));
    assert_eq!(binding(&rig, 3).0, "", "it waits for job 1's CPUs");
}

#[test]
fn cpus_that_have_gone_are_chosen_anew_before_a_start_and_kept_after_it() {
    let mut rig = Rig::new();
    let (runs, waits) = (with(job(1, &[0]), 2, 1), with(job(2, &[1]), 2, 1));
    rig.run(&runs);
    rig.want(vec![runs, waits.clone()], Vec::new());
    rig.event(waits.key, ContainerEvent::Blocked("used".into()));
    assert_eq!(
        (binding(&rig, 1).0, binding(&rig, 2).0),
        ("0-1".into(), "2-3".into())
    );
    let usable: CpuSet = "0,2,4-7".parse().expect("a list");
    rig.input(Input::Inventory(Box::new(Inventory {
        cpus: 6,
        ..inventory()
    })));
    rig.input(Input::Cpus(Box::new(HostCpus { usable, ..cpus() })));
    let actions = rig.pass(2_000);
    assert!(
        matches!(actions.first(), Some(Action::Persist { synced: true })),
        "{actions:?}"
    );
    assert!(starts(&actions, waits.key));
    assert_eq!(
        (binding(&rig, 1).0, binding(&rig, 2).0),
        ("0-1".into(), "2,4".into())
    );
}

#[test]
fn a_node_that_offers_more_than_it_has_binds_nobody() {
    let mut rig = Rig::new();
    rig.input(Input::Inventory(Box::new(Inventory {
        cpus: 104,
        ..inventory()
    })));
    rig.run(&with(job(1, &[0]), 2, 1));
    assert_eq!(binding(&rig, 1), bound("", ""));
}

/// 60 of 64 GiB are offered: 4 may lie anywhere.
#[test]
fn memory_is_freed_when_the_room_that_it_relied_on_goes() {
    let mut rig = Rig::new();
    let offered = 60 << 30;
    rig.input(Input::Inventory(Box::new(Inventory {
        memory_bytes: offered,
        ..inventory()
    })));
    let (first, second) = (with(job(1, &[0]), 2, 24), with(job(2, &[1]), 2, 8));
    rig.run(&first);
    assert_eq!(binding(&rig, 1), bound("0-1", "0"));
    let actions = rig.want(vec![first, second.clone()], Vec::new());
    let at = |wanted: &Action| actions.iter().position(|action| action == wanted);
    assert!(at(&Action::Configure(key(1))).is_some(), "{actions:?}");
    assert_eq!(
        (binding(&rig, 1), binding(&rig, 2)),
        (bound("0-1", ""), bound("2-3", ""))
    );
    // Written down: a container that was found bound is freed at its adoption.
    rig.restart(100, "boot-1");
    assert_eq!(binding(&rig, 1), bound("0-1", ""));
}
