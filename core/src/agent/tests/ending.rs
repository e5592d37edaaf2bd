//! Ends: by tombstone, deadline, lease, and by itself.

use super::*;

fn stops(actions: &[Action], key: JobKey) -> bool {
    actions
        .iter()
        .any(|action| matches!(action, Action::Stop { key: of, .. } if *of == key))
}

#[test]
fn a_tombstone_stops_then_kills_then_releases() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    let actions = rig.want(Vec::new(), vec![tombstone(1)]);
    assert!(
        actions.contains(&Action::Stop {
            key: key(1),
            grace_ms: 5_000
        }),
        "{actions:?}"
    );
    assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Stopping));
    let actions = rig.want(Vec::new(), vec![tombstone(1)]);
    assert!(
        !stops(&actions, key(1)),
        "repeating it does not repeat the end: {actions:?}"
    );
    let left = rig.agent.next_tick(rig.now).expect("the kill").as_millis() as u64;
    assert_eq!(left, 5_000 + KILL_MARGIN_MS);
    let actions = rig.pass(left);
    assert!(actions.contains(&Action::Remove(key(1))), "{actions:?}");
    rig.event(key(1), released());
    let seen = rig.seen(key(1)).expect("reported while the broker mentions it");
    assert_eq!(
        (seen.phase, seen.cause),
        (ObservedPhase::Released, Some(EndCause::Tombstone))
    );
    rig.want(Vec::new(), vec![tombstone(1)]);
    assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Released));
    rig.want(Vec::new(), Vec::new());
    assert_eq!(rig.phase(key(1)), None);
}

#[test]
fn a_tombstone_ends_a_start_that_is_under_way() {
    let mut rig = Rig::new();
    rig.want(vec![job(1, &[0])], Vec::new());
    let actions = rig.want(Vec::new(), vec![tombstone(1)]);
    assert!(actions.contains(&Action::Remove(key(1))), "{actions:?}");
    let actions = rig.event(key(1), ready());
    assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Stopping), "{actions:?}");
}

#[test]
fn a_job_that_waits_is_released_by_its_tombstone() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    rig.want(vec![job(2, &[0])], Vec::new());
    let actions = rig.want(Vec::new(), vec![tombstone(2)]);
    assert!(
        !actions.contains(&Action::Remove(key(2))),
        "there is nothing to remove: {actions:?}"
    );
    assert_eq!(rig.phase(key(2)), Some(ObservedPhase::Released));
}

#[test]
fn absence_never_ends_a_job() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    for _ in 0..10 {
        let actions = rig.want(Vec::new(), Vec::new());
        assert!(!stops(&actions, key(1)), "{actions:?}");
        rig.pass(LEASE_MS / 2);
    }
    assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Ready));
}

#[test]
fn the_deadline_ends_a_job_without_the_broker() {
    let mut rig = Rig::new();
    let short = DesiredJob {
        deadline: Timestamp(rig.now.wall.0 + 60_000),
        ..job(1, &[0])
    };
    rig.run(&short);
    assert!(!stops(&rig.pass(59_999), key(1)));
    assert!(stops(&rig.pass(1), key(1)));
    assert_eq!(
        rig.seen(key(1)).expect("reported").cause,
        Some(EndCause::Deadline)
    );
}

#[test]
fn a_moved_deadline_is_written_down_and_reported() {
    let mut rig = Rig::new();
    let short = DesiredJob {
        deadline: Timestamp(rig.now.wall.0 + 60_000),
        ..job(1, &[0])
    };
    rig.run(&short);
    let longer = Timestamp(rig.now.wall.0 + 120_000);
    let actions = rig.want(
        vec![DesiredJob {
            deadline: longer,
            ..short
        }],
        Vec::new(),
    );
    assert!(
        matches!(actions[0], Action::Persist { synced: true }),
        "{actions:?}"
    );
    assert!(actions.contains(&Action::Configure(key(1))), "{actions:?}");
    assert_eq!(rig.seen(key(1)).expect("reported").deadline, longer);
    assert!(!stops(&rig.pass(60_000), key(1)));
}

/// The lease counts from when the answered report was sent, not from when the answer came.
#[test]
fn the_lease_ends_a_job_and_counts_from_the_report() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    let answer = rig.desired(vec![job(1, &[0])], Vec::new());
    rig.pass(10_000);
    let actions = rig.input(Input::Desired(Box::new(answer)));
    assert!(
        actions.contains(&Action::Configure(key(1))),
        "carrel-init holds it too: {actions:?}"
    );
    assert_eq!(rig.agent.lease_remaining_ms(rig.now), Some(LEASE_MS - 10_000));
    assert!(!stops(&rig.pass(LEASE_MS - 10_001), key(1)));
    assert!(stops(&rig.pass(1), key(1)));
    assert_eq!(rig.seen(key(1)).expect("reported").cause, Some(EndCause::Lease));
}

/// Without contact nothing starts either: the broker may have given the job to another node.
#[test]
fn a_job_does_not_start_after_the_lease() {
    let mut rig = Rig::new();
    let late = rig.desired(vec![job(1, &[0])], Vec::new());
    rig.now.boot_ms += LEASE_MS;
    let actions = rig.input(Input::Desired(Box::new(late)));
    assert!(!starts(&actions, key(1)), "{actions:?}");
    assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Preparing));
    let actions = rig.want(vec![job(1, &[0])], Vec::new());
    assert!(starts(&actions, key(1)), "{actions:?}");
}

#[test]
fn own_ends_have_their_cause() {
    for (code, out_of_memory, command, cause) in [
        (0, false, false, EndCause::Exited),
        (0, true, false, EndCause::Exited),
        (3, false, false, EndCause::Exited),
        (137, true, false, EndCause::OutOfMemory),
        (75, false, false, EndCause::Lease),
        // A command may end with any number, and for want of memory without being killed itself.
        (75, false, true, EndCause::Exited),
        (0, true, true, EndCause::Exited),
        (1, true, true, EndCause::OutOfMemory),
        (137, false, true, EndCause::Exited),
    ] {
        let mut rig = Rig::new();
        rig.run(&job(1, &[0]));
        let event = ContainerEvent::Exited {
            code: Some(code),
            out_of_memory,
            command,
            detail: String::new(),
        };
        let actions = rig.event(key(1), event);
        assert!(actions.contains(&Action::Remove(key(1))), "{actions:?}");
        rig.event(key(1), released());
        let seen = rig.seen(key(1)).expect("reported");
        assert_eq!((seen.cause, seen.exit_code), (Some(cause), Some(code)));
        rig.want(vec![job(1, &[0])], Vec::new());
        assert_eq!(
            rig.phase(key(1)),
            Some(ObservedPhase::Released),
            "reported until it is not wanted"
        );
    }
}

/// Released means gone: what does not go keeps its GPUs, and they are not offered.
#[test]
fn what_does_not_go_is_tried_again_and_its_gpus_are_drained() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[3]));
    rig.event(key(1), exited(0));
    let stuck = "process 4711 does not die";
    rig.event(key(1), ContainerEvent::NotReleased(stuck.into()));
    let seen = rig.seen(key(1)).expect("reported");
    assert_eq!(
        (seen.phase, seen.detail.as_str()),
        (ObservedPhase::Stopping, stuck)
    );
    assert_eq!(seen.gpus, [uuid(3).into()]);
    let actions = rig.pass(RETRY_MS);
    assert!(actions.contains(&Action::Remove(key(1))), "{actions:?}");
    let actions = rig.pass(DRAIN_AFTER_MS);
    assert_eq!(actions.last(), Some(&Action::Report), "{actions:?}");
    let drained = rig.agent.inventory().gpus[3].drained.clone();
    assert_eq!(
        drained,
        Some(format!("draining, job 1 does not release it: {stuck}"))
    );
    let actions = rig.event(key(1), released());
    assert_eq!(actions.last(), Some(&Action::Report), "{actions:?}");
    assert_eq!(rig.agent.inventory().gpus[3].drained, None);
}

#[test]
fn a_sessions_files_are_deleted_once_nothing_uses_them_and_only_then_acknowledged() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    let mut desired = rig.desired(Vec::new(), vec![tombstone(1)]);
    desired.removed_sessions = vec![SessionId(1)];
    let generation = desired.generation;
    let actions = rig.input(Input::Desired(Box::new(desired.clone())));
    assert!(
        !actions.contains(&Action::RemoveSession(SessionId(1))),
        "{actions:?}"
    );
    rig.event(key(1), exited(0));
    rig.event(key(1), released());
    let actions = rig.pass(RETRY_MS);
    assert!(
        actions.contains(&Action::RemoveSession(SessionId(1))),
        "{actions:?}"
    );
    assert!(rig.agent.observed(rig.now).generation < generation);
    rig.input(Input::SessionRemoved(SessionId(1), Err("busy".into())));
    assert!(rig.agent.observed(rig.now).generation < generation);
    let actions = rig.pass(RETRY_MS);
    assert!(
        actions.contains(&Action::RemoveSession(SessionId(1))),
        "{actions:?}"
    );
    rig.input(Input::SessionRemoved(SessionId(1), Ok(())));
    assert_eq!(rig.agent.observed(rig.now).generation, generation);
    let actions = rig.input(Input::Desired(Box::new(desired)));
    assert!(
        !actions.contains(&Action::RemoveSession(SessionId(1))),
        "once: {actions:?}"
    );
}
