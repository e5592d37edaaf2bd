//! Reservations as operators make them, and as jobs meet them.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::process::Running;
use carrel_tests::user::{ALICE, BOB, ROOT, User};
use serde_json::Value;

const SMALL: [&str; 4] = ["-c", "1", "--mem", "64M"];

fn cluster() -> Cluster {
    Cluster::start(&Options {
        broker_config: "grace = \"1s\"\n[queue.reservations]\ngpus = 2\n".to_owned(),
        ..Options::default()
    })
}

fn reservation(cluster: &Cluster, args: &[&str]) -> String {
    let done = cluster
        .carrel(ROOT, [&["admin", "reservation"], args].concat())
        .run();
    assert_eq!(done.code, 0, "{done}");
    done.stderr
}

fn refused(cluster: &Cluster, user: User, args: &[&str]) -> String {
    let done = cluster
        .carrel(user, [&["admin", "reservation"], args].concat())
        .run();
    assert_ne!(done.code, 0, "{done}");
    done.stderr
}

/// `carrel alloc --no-shell` with these options and small sizes, in the background.
fn alloc(cluster: &Cluster, user: User, name: &str, options: &[&str]) -> Running {
    let fixed = ["alloc", "--no-shell", "--name", name];
    cluster
        .carrel(user, [&fixed[..], &SMALL, options].concat())
        .spawn()
}

/// A job as the queue shows it; none: it neither waits nor runs.
fn queued(cluster: &Cluster, name: &str) -> Option<Value> {
    let all = cluster.json(BOB, ["queue", "--all", "--start"]);
    let all = all.as_array().cloned().unwrap_or_default();
    all.into_iter().find(|job| job["name"] == name)
}

fn waits(cluster: &Cluster, name: &str, reason: &str) -> bool {
    queued(cluster, name).is_some_and(|job| {
        let said = job["reason"].as_str().unwrap_or_default();
        job["state"] == "PENDING" && said.starts_with(reason)
    })
}

#[test]
fn a_maintenance_lets_nothing_start_that_would_still_run() {
    let cluster = cluster();
    let told = reservation(
        &cluster,
        &[
            "add",
            "upgrade",
            "--maintenance",
            "-w",
            "n0",
            "--start",
            "now+1h",
            "--duration",
            "2h",
        ],
    );
    assert!(
        told.contains("upgrade holds n0 from ") && told.contains("for maintenance"),
        "{told}"
    );
    let nodes = cluster.json(ALICE, ["nodes"]);
    assert_eq!(nodes[0]["reservations"][0]["name"], "upgrade", "{nodes}");
    assert_eq!(nodes[0]["state"], "IDLE", "it has not begun");
    alloc(&cluster, ALICE, "short", &["--gpus", "1", "-t", "30:00"])
        .wait()
        .ok();
    let long = alloc(&cluster, ALICE, "long", &["--gpus", "1", "-t", "90:00"]);
    cluster.ready("the long one waits for the maintenance", |this| {
        waits(
            this,
            "long",
            "ReqNodeNotAvail: reserved for maintenance (upgrade) from ",
        )
    });
    let start = queued(&cluster, "long").map(|job| job["start"].clone());
    let all = cluster.json(BOB, ["admin", "reservation", "list"]);
    assert_eq!(start.as_ref(), Some(&all[0]["end"]), "promised at its end");
    let extended = cluster.carrel(ALICE, ["extend", "short", "1h"]).run();
    assert!(
        extended.stderr.contains("reserved for maintenance (upgrade)") && extended.code != 0,
        "{extended}"
    );
    reservation(&cluster, &["rm", "upgrade"]);
    long.wait().ok();
    let listed = cluster.json(BOB, ["admin", "reservation", "list"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(0), "{listed}");
}

#[test]
fn a_reservation_s_job_waits_for_it_and_ends_with_it() {
    let cluster = cluster();
    let add = [
        "add", "course", "--gpus", "4", "--users", "alice", "--start", "now+5", "--end", "now+60",
    ];
    reservation(&cluster, &add);
    let own = alloc(
        &cluster,
        ALICE,
        "own",
        &["--gpus", "4", "-t", "1h", "--reservation", "course"],
    );
    let foreign = cluster
        .carrel(
            BOB,
            ["alloc", "--gpus", "1", "--reservation", "course", "--", "true"],
        )
        .run();
    assert!(
        foreign.stderr.contains("reservation course is not for bob"),
        "{foreign}"
    );
    own.wait().ok();
    let one = cluster.json(ALICE, ["admin", "reservation", "show", "course"]);
    let job = queued(&cluster, "own").expect("it runs");
    assert_eq!(
        (&one["active"], &one["running"][0]),
        (&Value::Bool(true), &job["id"])
    );
    assert_eq!(job["reservation"], "course");
    // Others have the other half.
    alloc(&cluster, BOB, "half", &["--gpus", "4", "-t", "1h"])
        .wait()
        .ok();
    let more = alloc(&cluster, BOB, "more", &["--gpus", "4", "-t", "1h"]);
    cluster.ready("the reserved half is kept", |this| queued(this, "more").is_some());
    assert!(queued(&cluster, "more").is_some_and(|job| job["state"] == "PENDING"));
    // The reservation ends, and its job with it; then the GPUs are everybody's.
    more.wait().ok();
    let over = cluster.json(ALICE, ["show", "own"]);
    assert_eq!(over["job"]["state"], "TIMEOUT", "{over}");
    assert_eq!(
        over["job"]["reason"], "its reservation course has ended",
        "{over}"
    );
}

#[test]
fn what_cannot_be_reserved_is_refused() {
    let cluster = cluster();
    alloc(&cluster, BOB, "long", &["--gpus", "1", "-t", "3h"])
        .wait()
        .ok();
    for (user, args, why) in [
        (
            ROOT,
            &[
                "add",
                "x",
                "-w",
                "n0",
                "--maintenance",
                "-S",
                "2020-01-01",
                "--duration",
                "1h",
            ][..],
            "which is past",
        ),
        (
            ROOT,
            &[
                "add",
                "x",
                "-w",
                "n0",
                "--maintenance",
                "-S",
                "now+1h",
                "--duration",
                "1h",
            ],
            "jobs will still run when it begins: job ",
        ),
        (
            ROOT,
            &["add", "x", "-w", "n9", "--maintenance", "--duration", "1h"],
            "there is no node n9",
        ),
        (
            ROOT,
            &["add", "x", "-G", "1", "-A", "nobody", "--duration", "1h"],
            "there is no account nobody",
        ),
        (ROOT, &["add", "x", "-G", "1", "-u", "bob"], "until when"),
        (
            ROOT,
            &["set", "x", "--duration", "1h"],
            "there is no reservation x",
        ),
        (ROOT, &["rm", "x"], "there is no reservation x"),
        (
            ALICE,
            &["add", "x", "-w", "n0", "--duration", "1h"],
            "that takes the role operator",
        ),
        (
            ALICE,
            &["add", "x", "-G", "3", "--duration", "1h"],
            "would reserve 3 GPUs, and may reserve 2",
        ),
    ] {
        let said = refused(&cluster, user, args);
        assert!(said.contains(why), "{said}");
    }
    let mine = [
        "admin",
        "reservation",
        "add",
        "mine",
        "-G",
        "2",
        "--duration",
        "1h",
    ];
    cluster.carrel(ALICE, mine).ok();
    let said = refused(&cluster, BOB, &["rm", "mine"]);
    assert!(said.contains("it takes the role operator"), "{said}");
    let ignoring = [
        "add",
        "late",
        "-w",
        "n0",
        "--maintenance",
        "--ignore-jobs",
        "--duration",
        "1h",
    ];
    let said = refused(&cluster, ROOT, &ignoring);
    assert!(said.contains("reservation mine holds n0 "), "{said}");
    let told = reservation(&cluster, &[&ignoring[..], &["--overlap"]].concat());
    assert!(told.contains("job ") && told.contains("runs on"), "{told}");
    let nodes = cluster.json(ALICE, ["nodes"]);
    assert_eq!(nodes[0]["state"], "MAINT", "{nodes}");
}
