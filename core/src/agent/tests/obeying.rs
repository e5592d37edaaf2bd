//! Who is obeyed: our cluster's newest broker, and nobody else.

use super::*;

#[test]
fn an_overtaken_broker_is_ignored_and_renews_nothing() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    let lease = rig.agent.lease_remaining_ms(rig.now);
    rig.pass(1_000);
    for stale in [
        Incarnation { number: 2, nonce: 9 },
        Incarnation { number: 3, nonce: 9 },
    ] {
        let mut desired = rig.desired(vec![job(2, &[1])], vec![tombstone(1)]);
        desired.incarnation = stale;
        let actions = rig.input(Input::Desired(Box::new(desired)));
        assert_eq!(actions, [], "{stale:?}");
    }
    assert_eq!(
        rig.agent.lease_remaining_ms(rig.now),
        lease.map(|left| left - 1_000)
    );
    let observed = rig.agent.observed(rig.now);
    assert_eq!(
        observed.accepted,
        Some((ClusterId("ours".into()), rig.incarnation)),
        "it is told whom we obey"
    );
}

#[test]
fn a_later_broker_is_obeyed_from_its_first_generation() {
    let mut rig = Rig::new();
    rig.generation = 1_000;
    rig.run(&job(1, &[0]));
    rig.incarnation = Incarnation { number: 4, nonce: 7 };
    rig.generation = 0;
    let actions = rig.want(Vec::new(), vec![tombstone(1)]);
    assert!(
        actions.iter().any(|action| matches!(action, Action::Stop { .. })),
        "{actions:?}"
    );
    let ledger = rig.ledger.clone().expect("a ledger");
    assert_eq!(ledger.accepted, Some(rig.incarnation));
}

/// A broker with an empty or foreign store ends nobody's work, nor does it start any.
#[test]
fn a_foreign_broker_starts_and_ends_nothing() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    for _ in 0..4 {
        rig.pass(LEASE_MS / 2);
        let mut desired = rig.desired(vec![job(2, &[1])], vec![tombstone(1)]);
        desired.cluster = ClusterId("theirs".into());
        desired.incarnation = Incarnation { number: 99, nonce: 9 };
        let actions = rig.input(Input::Desired(Box::new(desired)));
        assert!(
            !actions
                .iter()
                .any(|action| matches!(action, Action::Start(_) | Action::Stop { .. })),
            "{actions:?}"
        );
    }
    assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Ready));
    let observed = rig.agent.observed(rig.now);
    assert_eq!(
        observed.accepted,
        Some((ClusterId("ours".into()), rig.incarnation))
    );
}

#[test]
fn messages_that_come_late_or_twice_do_no_harm() {
    let mut rig = Rig::new();
    let first = rig.desired(vec![job(1, &[0])], Vec::new());
    let second = rig.desired(Vec::new(), vec![tombstone(1)]);
    let third = rig.desired(Vec::new(), Vec::new());
    rig.input(Input::Desired(Box::new(first.clone())));
    rig.event(key(1), ready());
    rig.input(Input::Desired(Box::new(second.clone())));
    rig.event(key(1), exited(0));
    rig.event(key(1), released());
    rig.input(Input::Desired(Box::new(third)));
    for late in [first, second] {
        let actions = rig.input(Input::Desired(Box::new(late)));
        assert!(!starts(&actions, key(1)), "{actions:?}");
        assert_eq!(rig.phase(key(1)), None);
    }
}

/// A restored backup of the broker may want what has long ended here.
#[test]
fn what_has_ended_never_starts_again_under_a_later_broker_either() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    rig.event(key(1), exited(0));
    rig.event(key(1), released());
    rig.want(Vec::new(), Vec::new());
    rig.incarnation = Incarnation { number: 4, nonce: 7 };
    let actions = rig.want(vec![job(1, &[0])], Vec::new());
    assert!(!starts(&actions, key(1)), "{actions:?}");
    rig.restart(1_000, "boot-1");
    rig.input(Input::World(Vec::new()));
    let actions = rig.want(vec![job(1, &[0])], Vec::new());
    assert!(!starts(&actions, key(1)), "nor after a restart: {actions:?}");
}

/// An answer to another process's report says nothing about ours.
#[test]
fn answers_to_a_former_agents_reports_are_ignored() {
    let mut rig = Rig::new();
    let old = rig.desired(vec![job(1, &[0])], Vec::new());
    rig.restart(1_000, "boot-1");
    rig.input(Input::World(Vec::new()));
    rig.agent.observed(rig.now);
    assert_eq!(rig.input(Input::Desired(Box::new(old))), []);
    assert_eq!(rig.agent.lease_remaining_ms(rig.now), None);
}

#[test]
fn nothing_is_acted_on_before_the_containers_are_known() {
    let now = Now {
        wall: Timestamp(1_000_000_000),
        boot_ms: 5_000,
    };
    let mut rig = Rig::unadopted(None, "boot-1", now);
    assert_eq!(rig.want(vec![job(1, &[0])], Vec::new()), []);
}

/// A lease that was made shorter is shorter on the node, too: the broker counts the shorter one.
#[test]
fn a_shorter_lease_takes_effect() {
    let mut rig = Rig::new();
    rig.run(&job(1, &[0]));
    let mut desired = rig.desired(vec![job(1, &[0])], Vec::new());
    desired.lease_ms = 1_000;
    rig.input(Input::Desired(Box::new(desired)));
    assert_eq!(rig.agent.lease_remaining_ms(rig.now), Some(1_000));
}
