//! Starts: nothing on what another holds.

use super::*;

#[test]
fn a_wanted_job_is_written_down_and_then_started() {
    let mut rig = Rig::new();
    let actions = rig.want(vec![job(1, &[0, 1])], Vec::new());
    assert!(
        matches!(actions[0], Action::Persist { synced: true }),
        "{actions:?}"
    );
    assert!(starts(&actions, key(1)));
    assert_eq!(actions.last(), Some(&Action::Report));
    let ledger = rig.ledger.clone().expect("a ledger");
    assert_eq!(
        ledger.entries.iter().map(|entry| entry.key).collect::<Vec<_>>(),
        [key(1)]
    );
    rig.event(key(1), ContainerEvent::Progress("pulling image, 34 %".into()));
    let seen = rig.seen(key(1)).expect("reported");
    assert_eq!(
        (seen.phase, seen.detail.as_str()),
        (ObservedPhase::Preparing, "pulling image, 34 %")
    );
    rig.event(key(1), ready());
    let seen = rig.seen(key(1)).expect("reported");
    assert_eq!(
        (seen.phase, seen.host_key.as_str()),
        (ObservedPhase::Ready, "ssh-ed25519 AAAA")
    );
}

#[test]
fn a_job_waits_for_what_another_has_not_released_and_says_so() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[2, 3]));
    let actions = rig.want(vec![job(2, &[3])], vec![tombstone(1)]);
    assert!(!starts(&actions, key(2)), "{actions:?}");
    let seen = rig.seen(key(2)).expect("reported");
    assert_eq!(
        (seen.phase, seen.detail.as_str()),
        (ObservedPhase::Preparing, "waits for job 1 to release GPU 3")
    );
    assert!(seen.gpus.is_empty(), "it holds nothing yet");
    let actions = rig.event(key(1), exited(0));
    assert!(
        actions.contains(&Action::Remove(key(1))) && !starts(&actions, key(2)),
        "{actions:?}"
    );
    let actions = rig.event(key(1), released());
    assert!(starts(&actions, key(2)), "at once: {actions:?}");
}

#[test]
fn cpus_memory_and_a_sessions_files_are_waited_for_too() {
    let mut rig = Rig::new();
    rig.run(&DesiredJob {
        cpus: 6,
        memory_bytes: 60 << 30,
        ..job(1, &[])
    });
    let cpus = DesiredJob {
        cpus: 3,
        ..job(2, &[])
    };
    let memory = DesiredJob {
        memory_bytes: 5 << 30,
        ..job(3, &[])
    };
    let files = DesiredJob {
        session: Some(SessionId(1)),
        ..job(4, &[])
    };
    let actions = rig.want(vec![cpus, memory, files], Vec::new());
    for (id, why) in [
        (2, "waits for job 1 to release CPUs"),
        (3, "waits for job 1 to release memory"),
        (4, "waits for job 1 to release the session's files"),
    ] {
        assert!(!starts(&actions, key(id)), "{actions:?}");
        assert_eq!(rig.seen(key(id)).expect("reported").detail, why);
    }
}

#[test]
fn what_a_node_cannot_hold_fails_with_the_reason() {
    let mut rig = Rig::new();
    let mut host = inventory();
    host.gpus[0].drained = Some("XID 79".into());
    host.gpus[1].mig = Some(crate::model::gpu::Mig::default());
    rig.input(Input::Inventory(Box::new(host)));
    let cases = [
        (job(1, &[0]), "GPU 0 is drained: XID 79"),
        (job(2, &[1]), "GPU 1 is in MIG mode and is not given as a whole"),
        (job(3, &[9]), "this node has no GPU GPU-9"),
        (job(4, &[2, 2]), "GPU GPU-2 is asked for twice"),
        (
            DesiredJob {
                cpus: 9,
                ..job(5, &[])
            },
            "it needs 9 CPUs and this node offers 8",
        ),
    ];
    let actions = rig.want(cases.iter().map(|(job, _)| job.clone()).collect(), Vec::new());
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::Start(_) | Action::Remove(_))),
        "{actions:?}"
    );
    for (job, why) in cases {
        let seen = rig.seen(job.key).expect("reported");
        assert_eq!(
            (seen.phase, seen.cause, seen.detail.as_str()),
            (ObservedPhase::Released, Some(EndCause::StartFailed), why)
        );
    }
}

/// A process of no job on a GPU: tried again, and the GPU is not offered meanwhile.
#[test]
fn a_busy_gpu_blocks_the_start_and_is_drained_in_time() {
    let mut rig = Rig::new();
    rig.want(vec![job(1, &[0])], Vec::new());
    rig.event(
        key(1),
        ContainerEvent::Blocked("GPU 0 is used by process 4711".into()),
    );
    let seen = rig.seen(key(1)).expect("reported");
    assert_eq!(
        (seen.phase, seen.gpus),
        (ObservedPhase::Preparing, vec![uuid(0).into()])
    );
    assert_eq!(
        rig.agent.next_tick(rig.now),
        Some(Duration::from_millis(RETRY_MS))
    );
    let mut blocked_ms = 0;
    while blocked_ms < DRAIN_AFTER_MS {
        let actions = rig.pass(RETRY_MS);
        assert!(starts(&actions, key(1)), "{actions:?}");
        rig.event(
            key(1),
            ContainerEvent::Blocked("GPU 0 is used by process 4711".into()),
        );
        blocked_ms += RETRY_MS;
    }
    let drained = rig.agent.inventory().gpus[0].drained.clone();
    assert_eq!(drained.as_deref(), Some("GPU 0 is used by process 4711"));
    rig.pass(RETRY_MS);
    rig.event(key(1), ready());
    assert_eq!(rig.agent.inventory().gpus[0].drained, None);
}

#[test]
fn a_failed_start_is_cleared_away_and_stays_reported() {
    let mut rig = Rig::new();
    rig.want(vec![job(1, &[0])], Vec::new());
    let actions = rig.event(key(1), ContainerEvent::StartFailed("no such image".into()));
    assert!(actions.contains(&Action::Remove(key(1))), "{actions:?}");
    assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Stopping));
    rig.event(
        key(1),
        ContainerEvent::Released {
            code: None,
            out_of_memory: false,
            command: false,
        },
    );
    let actions = rig.want(vec![job(1, &[0])], Vec::new());
    assert!(!starts(&actions, key(1)), "a job runs once: {actions:?}");
    let seen = rig.seen(key(1)).expect("reported");
    assert_eq!(
        (seen.phase, seen.cause, seen.detail.as_str()),
        (
            ObservedPhase::Released,
            Some(EndCause::StartFailed),
            "no such image"
        )
    );
    rig.want(Vec::new(), Vec::new());
    assert_eq!(
        rig.phase(key(1)),
        None,
        "forgotten once the broker does not mention it"
    );
}

/// After a backup of the broker was restored, two jobs may have one id: the other one's work goes on.
#[test]
fn another_allocation_of_a_job_ends_nothing() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    let anew = DesiredJob {
        key: JobKey {
            generation: Generation(9),
            ..key(1)
        },
        ..job(1, &[1])
    };
    let actions = rig.want(vec![anew.clone()], Vec::new());
    assert!(
        !starts(&actions, anew.key),
        "the session's files are in use: {actions:?}"
    );
    let stone = Tombstone {
        key: anew.key,
        grace_ms: 5_000,
    };
    rig.want(Vec::new(), vec![stone]);
    assert_eq!(rig.phase(anew.key), Some(ObservedPhase::Released));
    assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Ready));
    rig.restart(1_000, "boot-1");
    let running = found(&job(1, &[0]), FoundState::Running);
    rig.input(Input::World(vec![running]));
    rig.event(key(1), ready());
    assert_eq!(
        rig.phase(key(1)),
        Some(ObservedPhase::Ready),
        "nor after a restart"
    );
}

/// A job runs once, even where the node has forgotten that it did.
#[test]
fn what_was_ready_and_is_lost_is_not_started_anew() {
    let mut rig = Rig::new();
    let lost = DesiredJob {
        ready: true,
        ..job(1, &[0])
    };
    let actions = rig.want(vec![lost], Vec::new());
    assert!(!starts(&actions, key(1)), "{actions:?}");
    assert_eq!(rig.phase(key(1)), None);
}
