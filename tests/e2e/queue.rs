//! The queue as its users see it: small jobs fill in before a gang that starts when it was promised, deadlines move
//! when nobody is harmed, and what waits can be held, let go, and made to wait for others.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::process::Running;
use carrel_tests::user::{ALICE, BOB, ROOT, User};
use serde_json::Value;

const SMALL: [&str; 4] = ["-c", "1", "--mem", "64M"];

fn cluster(hosts: usize) -> Cluster {
    Cluster::start(&Options {
        hosts: vec![Some("hgx-h100"); hosts],
        broker_config: "grace = \"1s\"\n".to_owned(),
        ..Options::default()
    })
}

/// `carrel alloc --no-shell` with these options and small sizes, in the background.
fn alloc(cluster: &Cluster, user: User, name: &str, options: &[&str]) -> Running {
    let fixed = ["alloc", "--no-shell", "--name", name];
    let all = [&fixed[..], &SMALL, options].concat();
    cluster.carrel(user, all).spawn()
}

fn job(cluster: &Cluster, user: User, name: &str) -> Value {
    let jobs = cluster.json(user, ["ps"]);
    let mut own = jobs
        .as_array()
        .into_iter()
        .flatten()
        .filter(|job| job["name"] == name);
    own.next().cloned().unwrap_or_default()
}

fn waits(cluster: &Cluster, user: User, name: &str) {
    cluster.ready("it waits", |this| {
        let job = job(this, user, name);
        job["state"] == "PENDING" && job["reason"] != "None"
    });
}

fn id(cluster: &Cluster, user: User, name: &str) -> String {
    job(cluster, user, name)["id"].to_string()
}

#[test]
fn small_jobs_fill_in_and_the_gang_starts_when_it_was_promised() {
    let cluster = cluster(2);
    // One node is taken for a while, and the gang needs both.
    let first = alloc(&cluster, BOB, "first", &["--gpus", "8", "-t", "0:40"]);
    cluster.ready("it runs", |this| job(this, BOB, "first")["state"] == "RUNNING");
    let mut gang = alloc(
        &cluster,
        BOB,
        "gang",
        &["-N2", "--gpus-per-node", "8", "-t", "1:00"],
    );
    waits(&cluster, BOB, "gang");
    let promised = cluster.json(BOB, ["explain", "gang"])["latest_start"].clone();
    assert!(promised.is_string(), "{promised}");

    let fits = ["alloc", "--gpus", "2", "-t", "0:10"];
    let command = ["--immediate", "--", "true"];
    cluster.carrel(BOB, [&fits[..], &SMALL, &command].concat()).ok();
    let too_long = ["alloc", "--gpus", "2", "-t", "10:00"];
    let refused = cluster
        .carrel(BOB, [&too_long[..], &SMALL, &command].concat())
        .run();
    assert_ne!(refused.code, 0, "it would have made the gang wait: {refused}");

    // Nothing that came behind it has moved it.
    assert!(gang.is_running());
    assert_eq!(cluster.json(BOB, ["explain", "gang"])["latest_start"], promised);
    assert_eq!(gang.wait().code, 0);
    let started = job(&cluster, BOB, "gang")["started"].clone();
    let (started, promised) = (started.as_str().unwrap_or("?"), promised.as_str().unwrap_or(""));
    assert!(
        started <= promised,
        "started at {started}, promised for {promised}"
    );
    assert_eq!(first.wait().code, 0);
}

#[test]
fn a_deadline_moves_when_nobody_who_waits_is_harmed() {
    let cluster = cluster(1);
    alloc(&cluster, ALICE, "dev", &["--gpus", "8", "-t", "30:00"])
        .wait()
        .ok();
    cluster.carrel(ALICE, ["extend", "dev", "+5"]).ok();
    let behind = alloc(&cluster, BOB, "next", &["--gpus", "1", "-t", "10:00"]);
    waits(&cluster, BOB, "next");
    let refused = cluster.carrel(ALICE, ["extend", "dev", "+30"]).run();
    assert_ne!(refused.code, 0);
    let next = id(&cluster, BOB, "next");
    assert!(
        refused
            .stderr
            .contains(&format!("others wait for it: job {next} of bob would start in ")),
        "{refused}"
    );
    // An operator decides for all.
    cluster.carrel(ROOT, ["extend", "dev.alice", "+30"]).ok();
    cluster.carrel(BOB, ["stop", "next"]).ok();
    assert_ne!(behind.wait().code, 0);
    cluster.carrel(ALICE, ["extend", "dev", "+30"]).ok();
}

#[test]
fn what_waits_is_held_and_let_go_and_waits_for_others() {
    let cluster = cluster(1);
    let held = alloc(&cluster, ALICE, "held", &["--gpus", "1", "--hold"]);
    waits(&cluster, ALICE, "held");
    assert_eq!(
        job(&cluster, ALICE, "held")["reason"],
        "JobHeldUser: its owner holds it"
    );
    let after = format!("--dependency=after:{}", id(&cluster, ALICE, "held"));
    let dependent = alloc(&cluster, ALICE, "dependent", &["--gpus", "1", &after]);
    waits(&cluster, ALICE, "dependent");
    let other = cluster
        .carrel(BOB, ["release", &id(&cluster, ALICE, "held")])
        .run();
    assert_ne!(other.code, 0, "it is not his: {other}");
    cluster.carrel(ALICE, ["release", "held"]).ok();
    assert_eq!((held.wait().code, dependent.wait().code), (0, 0));
    let late = cluster.carrel(ALICE, ["hold", "held"]).run();
    assert!(late.code != 0 && late.stderr.contains("does not wait"), "{late}");
    let unknown = [
        "alloc",
        "--gpus",
        "1",
        "--dependency",
        "afterok:4711",
        "--",
        "true",
    ];
    let refused = cluster.carrel(ALICE, unknown).run();
    assert!(
        refused.stderr.contains("there is no job 4711 to depend on"),
        "{refused}"
    );
    let top = cluster.carrel(ALICE, ["top", "held"]).run();
    assert_ne!(top.code, 0, "{top}");
}
