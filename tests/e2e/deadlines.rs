//! Time limits end jobs, and can be moved.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::ALICE;
use serde_json::Value;

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

/// What a session's programs read of its end.
fn told_inside(cluster: &Cluster, name: &str) -> Value {
    let command = ["ssh", name, "cat $CARREL_DEADLINE_FILE"];
    let text = cluster.carrel(ALICE, command).ok();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A line in the terminal, a signal to what runs in it, and a file for programs; all follow the deadline.
#[test]
fn the_end_is_told_of_before_it_comes() {
    let cluster = Cluster::start(&Options {
        broker_config: "warn_before = [\"10m\", \"14s\"]\n".to_owned(),
        ..Options::default()
    });
    let options = ["alloc", "--name", "warned", "-t", "0:30", "--signal", "USR1@11"];
    let mut shell = cluster.terminal(ALICE, [&options[..], &SMALL].concat());
    shell.ask(
        "echo file=$CARREL_DEADLINE_FILE",
        "file=/.carrel/api/deadline.json",
    );
    // Of a job so short ten minutes before tell nothing.
    let first = told_inside(&cluster, "warned");
    assert_eq!(first["warn_before_seconds"], serde_json::json!([14]), "{first}");
    shell.line("sh -c 'trap \"echo got=$((1 + 1)); exit\" USR1; while :; do sleep 0.1; done'");
    shell.expect("carrel: this session ends in 1");
    shell.expect("got=2");
    // The shell itself has not had it.
    shell.ask("echo still=$((1 + 2))", "still=3");
    let listed = cluster.carrel(ALICE, ["ps"]).ok();
    assert!(listed.contains("ends soon: `carrel extend warned`"), "{listed}");

    cluster.carrel(ALICE, ["extend", "warned", "1:00:00"]).ok();
    cluster.ready("its programs know", |this| {
        let now = told_inside(this, "warned");
        now["deadline_ms"].as_i64() > first["deadline_ms"].as_i64()
            && now["warn_before_seconds"] == serde_json::json!([600, 14])
    });
    let refused = cluster
        .carrel(ALICE, [&["alloc", "--signal", "NONE@1"][..], &SMALL].concat())
        .run();
    refused.fails(2, &["USR1@120"]);
}
