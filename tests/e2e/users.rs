//! Two users: neither sees, enters or ends what is the other's.

use carrel_tests::user::{ALICE, BOB, ROOT};

use crate::forward::jump;
use crate::shared::{self, SMALL};

/// Not by any verb of the command line.
#[test]
fn another_s_session_is_not_there() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "private", &SMALL);
    for list in [&["ps"][..], &["ps", "--sessions"], &["ps", "--sessions", "--all"]] {
        let listed = cluster.json(BOB, list);
        assert!(!listed.to_string().contains("private"), "{listed}");
    }
    let id = session.record()["id"].to_string();
    for name in ["private".to_owned(), "private.alice".to_owned(), format!("#{id}")] {
        for verb in ["show", "stop"] {
            let output = cluster.carrel(BOB, [verb, &name]).run();
            assert_ne!(output.code, 0, "{output}");
        }
        // Forcing makes a session that does not exist no error: what counts is below.
        cluster.carrel(BOB, ["rm", "--force", &name]).run();
        assert_ne!(cluster.carrel(BOB, ["ssh", &name, "true"]).run().code, 0);
        assert_ne!(cluster.carrel(BOB, ["extend", &name, "1h"]).run().code, 0);
    }
    assert_eq!(session.ssh(["echo", "still here"]).ok(), "still here");
}

/// Not through the jump host either, whichever name is given to it.
#[test]
fn another_s_session_cannot_be_jumped_to() {
    let cluster = shared::cluster();
    let bobs = cluster.open(BOB, "jump-target", &SMALL);
    // So that Alice has a certificate.
    let own = cluster.open(ALICE, "jump-source", &SMALL);
    assert_eq!(own.ssh(["true"]).run().code, 0);
    for user in ["alice", "bob"] {
        for target in ["jump-target", "jump-target.bob.carrel"] {
            let output = jump(cluster, user, target).arg("true").run();
            assert_eq!(output.code, 255, "{output}");
        }
    }
    assert_eq!(bobs.ssh(["echo", "still here"]).ok(), "still here");
}

/// Two users' sessions may have one name.
#[test]
fn names_are_each_user_s_own() {
    let cluster = shared::cluster();
    let alices = cluster.open(ALICE, "same", &SMALL);
    let bobs = cluster.open(BOB, "same", &SMALL);
    assert_eq!(alices.ssh(["id", "-un"]).ok(), "alice");
    assert_eq!(bobs.ssh(["id", "-un"]).ok(), "bob");
    assert_ne!(alices.record()["id"], bobs.record()["id"]);
}

/// Groups have their names inside, too.
#[test]
fn a_user_is_who_they_are_inside() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "groups", &SMALL);
    assert_eq!(session.ssh(["id", "-gn"]).ok(), "alice");
    assert_eq!(session.ssh(["id", "-Gn"]).ok(), "alice readers");
}

/// A loopback port of one job is nobody else's, and neither are its processes.
#[test]
fn jobs_do_not_see_each_other() {
    let cluster = shared::cluster();
    let alices = cluster.open(ALICE, "neighbour-a", &SMALL);
    let bobs = cluster.open(BOB, "neighbour-b", &SMALL);
    alices
        .ssh(["python3 -m http.server 4300 --bind 127.0.0.1 </dev/null >/dev/null 2>&1 &"])
        .ok();
    carrel_tests::wait::until("alice's server listens", || {
        alices.ssh(["bash -c 'echo </dev/tcp/127.0.0.1/4300'"]).run().code == 0
    });
    assert_ne!(
        bobs.ssh(["bash -c 'echo </dev/tcp/127.0.0.1/4300'"]).run().code,
        0
    );
    let seen = bobs.ssh(["ps -eo args"]).ok();
    assert!(!seen.contains("http.server"), "{seen}");
    let home = cluster.sandbox().home(ALICE);
    let listed = bobs.ssh([format!("ls {}", home.display())]).run();
    assert_ne!(listed.code, 0, "{listed}");
}

/// Administrators see all sessions, and say so explicitly.
#[test]
fn administrators_see_all() {
    let cluster = shared::cluster();
    let _session = cluster.open(ALICE, "watched", &SMALL);
    let own = cluster.json(ROOT, ["ps"]);
    assert!(!own.to_string().contains("watched"), "{own}");
    let all = cluster.json(ROOT, ["ps", "--all"]);
    assert!(all.to_string().contains("watched"), "{all}");
    // Others see that a job runs, as in squeue, and no more than that.
    assert_ne!(cluster.carrel(BOB, ["node", "token"]).run().code, 0);
}
