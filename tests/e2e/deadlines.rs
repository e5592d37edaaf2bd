//! Time limits end jobs, and can be moved.

use carrel_tests::user::ALICE;

use crate::shared::{self, SMALL};

/// A job ends at its deadline, says so, and its session can be started again.
#[test]
fn a_deadline_ends_the_job() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "short", &[&["-t", "0:03"][..], &SMALL].concat());
    cluster.ready("it is stopped", |_| session.record()["state"] == "STOPPED");
    let record = session.record();
    assert_eq!(record["job"]["state"], "TIMEOUT", "{record}");
}

/// `extend` moves the deadline, and a job lives past the old one.
#[test]
fn extending() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "longer", &[&["-t", "0:20"][..], &SMALL].concat());
    let before = session.record();
    cluster.carrel(ALICE, ["extend", "longer", "1:00:00"]).ok();
    let after = session.record();
    assert_eq!(after["job"]["id"], before["job"]["id"]);
    let text = |value: &serde_json::Value| value["job"]["deadline"].as_str().expect("a deadline").to_owned();
    assert!(text(&after) > text(&before), "{after}");
    assert_eq!(after["state"], "RUNNING");
    let refused = cluster.carrel(ALICE, ["extend", "longer", "10000-0"]).run();
    assert_ne!(refused.code, 0, "{refused}");
}
