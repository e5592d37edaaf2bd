//! Sessions that are shared with named users.

use carrel_tests::user::{ALICE, BOB, ROOT};
use carrel_tests::wait;

use crate::shared::{self, SMALL};

/// In full: the other enters as the session's user, and is out at once when it is taken back.
#[test]
fn a_session_shared_in_full_is_entered_and_left_at_once() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "together", &SMALL);
    // Who has never come is not known yet.
    cluster.carrel(BOB, ["ps"]).ok();
    assert_ne!(
        cluster.carrel(BOB, ["ssh", "together.alice", "true"]).run().code,
        0
    );
    cluster.carrel(ALICE, ["share", "together", "bob"]).ok();
    let enter = || {
        cluster
            .carrel(BOB, ["ssh", "together.alice", "id -un; id -u"])
            .run()
    };
    wait::until("the node knows of the share", || enter().code == 0);
    assert_eq!(enter().ok(), format!("alice\n{}", ALICE.uid));
    let listed = cluster.carrel(BOB, ["ps", "--sessions"]).ok();
    assert!(listed.contains("together.alice"), "{listed}");
    let shown = cluster.json(ALICE, ["share", "together", "--list"]);
    assert_eq!(
        (&shown[0]["user"], &shown[0]["mode"]),
        (&"bob".into(), &"full".into())
    );
    let alias = |user| cluster.json(user, ["show", "together.alice"])["ssh_alias"].clone();
    assert_eq!(
        (alias(BOB), alias(ALICE)),
        ("carrel-together.alice".into(), "carrel-together".into())
    );
    // It is still hers alone to stop.
    cluster
        .carrel(BOB, ["stop", "together.alice"])
        .run()
        .fails(5, &["alice"]);

    let marker = session.ssh(["mktemp", "-u"]).ok();
    let inside = cluster
        .carrel(
            BOB,
            [
                "ssh",
                "together.alice",
                &format!("touch {marker}; exec sleep 600"),
            ],
        )
        .spawn();
    wait::until("bob is inside", || {
        session.ssh(["test", "-e", &marker]).run().code == 0
    });
    cluster.carrel(ALICE, ["unshare", "together", "bob"]).ok();
    assert_ne!(inside.wait().code, 0, "cut off");
    assert_ne!(enter().code, 0);
    assert_eq!(session.ssh(["echo", "still here"]).ok(), "still here");
    let audit = cluster.carrel(ROOT, ["admin", "audit", "--user", "alice"]).ok();
    for line in ["  share  ", "  unshare  ", "together.alice: with bob"] {
        assert!(audit.contains(line), "{line}: {audit}");
    }
}

/// Read-only: it is seen, and nothing in it is run, written or forwarded.
#[test]
fn a_session_shared_read_only_is_only_looked_at() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "window", &SMALL);
    cluster.carrel(BOB, ["ps"]).ok();
    cluster.carrel(ALICE, ["share", "window", "bob:ro"]).ok();
    assert_eq!(cluster.json(BOB, ["show", "window.alice"])["user"], "alice");
    let enter = |arguments: &[&str]| {
        let all = [&["ssh", "window.alice"], arguments].concat();
        cluster.carrel(BOB, all).run()
    };
    wait::until("the node knows of the share", || {
        enter(&["true"]).stderr.contains("read-only")
    });
    let refused = enter(&["touch /tmp/bob-was-here"]);
    assert_ne!(refused.code, 0, "{refused}");
    assert!(session.ssh(["test", "-e", "/tmp/bob-was-here"]).run().code != 0);
    for forward in [
        &["-N", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1"][..],
        &["-W", "127.0.0.1:1"],
    ] {
        assert_ne!(enter(forward).code, 0, "{forward:?}");
    }
}
