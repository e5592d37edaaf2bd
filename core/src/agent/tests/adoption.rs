//! Restarts: of the agent, and of the node.

use super::*;

#[test]
fn a_restarted_agent_takes_its_running_jobs_over() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    rig.restart(1_000, "boot-1");
    let actions = rig.input(Input::World(vec![found(&job(1, &[0]), FoundState::Running)]));
    assert!(actions.contains(&Action::Adopt(key(1))), "{actions:?}");
    let seen = rig.seen(key(1)).expect("reported");
    assert_eq!(
        (seen.phase, seen.gpus),
        (ObservedPhase::Preparing, vec![uuid(0).into()])
    );
    rig.event(key(1), ready());
    assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Ready));
    let actions = rig.want(vec![job(1, &[0]), job(2, &[0])], Vec::new());
    assert!(
        !starts(&actions, key(1)) && !starts(&actions, key(2)),
        "{actions:?}"
    );
}

#[test]
fn a_container_is_taken_over_without_the_ledger() {
    let now = Now {
        wall: Timestamp(1_000_000_000),
        boot_ms: 5_000,
    };
    let mut rig = Rig::unadopted(None, "boot-1", now);
    let actions = rig.input(Input::World(vec![found(&job(1, &[0]), FoundState::Running)]));
    assert!(actions.contains(&Action::Adopt(key(1))), "{actions:?}");
    let actions = rig.want(vec![job(2, &[0])], Vec::new());
    assert!(!starts(&actions, key(2)), "{actions:?}");
    let deadline = job(1, &[]).deadline.0 - rig.now.wall.0;
    rig.now.wall.0 += deadline;
    let actions = rig.input(Input::Tick);
    assert!(
        actions.iter().any(|action| matches!(action, Action::Stop { .. })),
        "its deadline is known: {actions:?}"
    );
}

/// First of all ends what is past its time.
#[test]
fn what_is_past_its_lease_ends_at_the_start() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    rig.restart(LEASE_MS, "boot-1");
    let actions = rig.input(Input::World(vec![found(&job(1, &[0]), FoundState::Running)]));
    assert!(
        actions.iter().any(|action| matches!(action, Action::Stop { .. })),
        "{actions:?}"
    );
    assert_eq!(rig.seen(key(1)).expect("reported").cause, Some(EndCause::Lease));
}

#[test]
fn what_ended_while_no_agent_was_there_is_reported() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    rig.restart(1_000, "boot-1");
    let state = FoundState::Ended {
        code: Some(3),
        out_of_memory: false,
        command: false,
    };
    let actions = rig.input(Input::World(vec![found(&job(1, &[0]), state)]));
    assert!(actions.contains(&Action::Remove(key(1))), "{actions:?}");
    let seen = rig.seen(key(1)).expect("reported");
    assert_eq!((seen.cause, seen.exit_code), (Some(EndCause::Exited), Some(3)));
}

#[test]
fn an_interrupted_start_is_made_again_when_it_is_still_wanted() {
    for state in [None, Some(FoundState::Unstarted)] {
        let mut rig = Rig::new();
        rig.want(vec![job(1, &[0])], Vec::new());
        rig.restart(1_000, "boot-1");
        rig.input(Input::World(
            state
                .map(|state| found(&job(1, &[0]), state))
                .into_iter()
                .collect(),
        ));
        let actions = rig.want(vec![job(1, &[0])], Vec::new());
        assert!(starts(&actions, key(1)), "{actions:?}");

        rig.restart(1_000, "boot-1");
        rig.input(Input::World(
            state
                .map(|state| found(&job(1, &[0]), state))
                .into_iter()
                .collect(),
        ));
        let actions = rig.want(Vec::new(), Vec::new());
        assert!(
            actions.contains(&Action::Remove(key(1))),
            "nothing of it runs, and nobody wants it: {actions:?}"
        );
    }
}

#[test]
fn an_interrupted_end_goes_on() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    rig.want(Vec::new(), vec![tombstone(1)]);
    let mut gone = Rig {
        agent: rig.agent.clone(),
        ledger: rig.ledger.clone(),
        ..Rig::new()
    };
    rig.restart(1_000, "boot-1");
    let actions = rig.input(Input::World(vec![found(&job(1, &[0]), FoundState::Running)]));
    assert!(
        actions.iter().any(|action| matches!(action, Action::Stop { .. })),
        "{actions:?}"
    );
    assert_eq!(
        rig.seen(key(1)).expect("reported").cause,
        Some(EndCause::Tombstone)
    );

    gone.restart(1_000, "boot-1");
    let actions = gone.input(Input::World(Vec::new()));
    assert!(
        actions.contains(&Action::Remove(key(1))),
        "its release is still to be verified: {actions:?}"
    );
}

/// A command chose carrel-init's own word for the end of a lease, or ended well: whoever clears it away, and whatever
/// containerd still knows of it.
#[test]
fn a_commands_end_is_its_own_though_the_agent_dies_over_it() {
    for code in [0, 3, 75] {
        let ended = FoundState::Ended {
            code: Some(code),
            out_of_memory: false,
            command: true,
        };
        for state in [Some(ended), Some(FoundState::Lost), None] {
            let mut rig = Rig::new();
            rig.run(&job(1, &[0]));
            rig.event(
                key(1),
                ContainerEvent::Exited {
                    code: Some(code),
                    out_of_memory: false,
                    command: true,
                    detail: String::new(),
                },
            );
            rig.restart(1_000, "boot-1");
            let found = state.map(|state| found(&job(1, &[0]), state));
            rig.input(Input::World(found.into_iter().collect()));
            rig.event(
                key(1),
                ContainerEvent::Released {
                    code: Some(code),
                    out_of_memory: false,
                    command: true,
                },
            );
            let seen = rig.seen(key(1)).expect("reported");
            assert_eq!(
                (seen.cause, seen.exit_code, &*seen.detail),
                (Some(EndCause::Exited), Some(code), ""),
                "{code}, found {state:?}"
            );
        }
    }
}

/// What was being cleared away is cleared away, and is not asked to end in its own time once more; containerd may take
/// it for running, or know nothing of it.
#[test]
fn a_removal_goes_on_at_once() {
    for state in [Some(FoundState::Running), Some(FoundState::Lost), None] {
        let mut rig = Rig::new();
        rig.run(&job(1, &[0]));
        rig.want(Vec::new(), vec![tombstone(1)]);
        rig.pass(5_000 + KILL_MARGIN_MS);
        rig.restart(1_000, "boot-1");
        let found = state.map(|state| found(&job(1, &[0]), state));
        let actions = rig.input(Input::World(found.into_iter().collect()));
        assert!(actions.contains(&Action::Remove(key(1))), "{actions:?}");
        let stops = |action: &Action| matches!(action, Action::Stop { .. });
        assert!(!actions.iter().any(stops), "{actions:?}");
        assert_eq!(rig.agent.drained, BTreeMap::new(), "it has just begun");
        rig.event(key(1), released());
        let seen = rig.seen(key(1)).expect("reported");
        assert_eq!(
            (seen.phase, seen.cause),
            (ObservedPhase::Released, Some(EndCause::Tombstone))
        );
    }
}

#[test]
fn a_restarted_node_has_released_its_jobs_and_says_why() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    rig.restart(60_000, "boot-2");
    let actions = rig.input(Input::World(vec![found(&job(1, &[0]), FoundState::Lost)]));
    assert!(actions.contains(&Action::Remove(key(1))), "{actions:?}");
    rig.event(
        key(1),
        ContainerEvent::Released {
            code: None,
            out_of_memory: false,
            command: false,
        },
    );
    let seen = rig.seen(key(1)).expect("reported");
    assert_eq!(
        (seen.phase, seen.cause),
        (ObservedPhase::Released, Some(EndCause::NodeRestarted))
    );
    assert_eq!(
        rig.agent.lease_remaining_ms(rig.now),
        None,
        "that lease was of another boot's clock"
    );
}

/// containerd was restarted under the agent: what it missed it finds by looking.
#[test]
fn a_second_look_finds_what_was_not_seen() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    rig.want(vec![job(1, &[0]), job(2, &[1])], Vec::new());
    let actions = rig.input(Input::World(vec![found(&job(1, &[0]), FoundState::Running)]));
    assert!(!actions.contains(&Action::Adopt(key(1))), "{actions:?}");
    assert_eq!(
        rig.phase(key(2)),
        Some(ObservedPhase::Preparing),
        "its start is under way"
    );
    let actions = rig.input(Input::World(Vec::new()));
    assert!(actions.contains(&Action::Remove(key(1))), "{actions:?}");
    assert_eq!(
        rig.seen(key(1)).expect("reported").detail,
        "its container is gone"
    );
}

/// Jobs of another cluster hold what they hold, end at their deadline, and are nobody's else.
#[test]
fn another_clusters_containers_are_left_alone() {
    let now = Now {
        wall: Timestamp(1_000_000_000),
        boot_ms: 5_000,
    };
    let mut rig = Rig::unadopted(None, "boot-1", now);
    let mut theirs = found(&job(1, &[0]), FoundState::Running);
    theirs.holding.cluster = ClusterId("theirs".into());
    rig.input(Input::World(vec![theirs]));
    rig.event(key(1), ready());
    let actions = rig.want(vec![job(2, &[0])], vec![tombstone(1)]);
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::Stop { .. } | Action::Remove(_))),
        "{actions:?}"
    );
    assert!(!starts(&actions, key(2)), "{actions:?}");
}
