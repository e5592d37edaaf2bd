//! The broker's store is yesterday's, or gone, under running sessions: nobody's work ends, and
//! operators take it over or end it.

use std::fs;
use std::path::PathBuf;

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::terminal::Terminal;
use carrel_tests::user::{ALICE, BOB, ROOT};
use serde_json::Value;

use crate::processes::ssh_servers;

const SMALL: [&str; 6] = ["--gpus", "2", "-c", "1", "--mem", "64M"];
/// SQLite's files.
const STORE: [&str; 3] = ["broker.db", "broker.db-wal", "broker.db-shm"];

fn store(cluster: &Cluster) -> impl Iterator<Item = PathBuf> {
    let dir = cluster.root().join("broker");
    STORE.into_iter().map(move |file| dir.join(file))
}

/// alice's "dev" with an open terminal, and bob's "train".
fn sessions(cluster: &Cluster) -> Terminal {
    std::mem::forget(cluster.open(ALICE, "dev", &SMALL));
    std::mem::forget(cluster.open(BOB, "train", &SMALL));
    let mut terminal = Terminal::start(&cluster.ssh(ALICE, ["-tt", "carrel-dev"]));
    terminal.ask("echo start-$((40 + 2)) > /tmp/mark; cat /tmp/mark", "start-42");
    terminal
}

fn found(cluster: &Cluster) -> Value {
    cluster.json(ROOT, ["found"])
}

/// The found job of a user, and its key.
fn job_of(found: &Value, user: &str) -> (Value, String) {
    let jobs = found["jobs"].as_array().expect("a list");
    let job = jobs.iter().find(|job| job["user"] == user);
    let job = job.unwrap_or_else(|| panic!("nothing of {user} was found: {found}"));
    let key = job["job"].as_str().expect("a key").to_owned();
    (job.clone(), key)
}

/// What is found is listed, can be adopted and ended, and nothing of it ended before.
fn take_over(cluster: &Cluster, mut open: Terminal) {
    cluster.ready("what runs is found", |this| {
        found(this)["jobs"].as_array().is_some_and(|jobs| jobs.len() == 2)
    });
    open.ask("echo still-$((40 + 2))", "still-42");
    let listed = found(cluster);
    let (alices, dev) = job_of(&listed, "alice");
    assert_eq!(
        (&alices["name"], &alices["nodes"][0]["node"]),
        (&"dev".into(), &"n0".into())
    );
    assert_eq!(alices["nodes"][0]["gpus"].as_array().map(Vec::len), Some(2));
    assert!(
        alices["started"].is_string() && alices["deadline"].is_string(),
        "{alices}"
    );
    let text = cluster.carrel(ROOT, ["nodes"]).ok();
    assert!(text.contains("2 jobs that no record knows"), "{text}");
    let refused = cluster.carrel(ALICE, ["found", "adopt", &dev]).run();
    refused.fails(refused.code, &["may not"]);

    cluster.carrel(ROOT, ["found", "adopt", &dev]).ok();
    let record = cluster.json(ALICE, ["show", "dev"]);
    assert_eq!(record["state"], "RUNNING", "{record}");
    assert_eq!(
        record["job"]["nodes"][0]["gpus"].as_array().map(Vec::len),
        Some(2)
    );
    cluster.ready("its user enters it", |this| {
        this.ssh(ALICE, ["carrel-dev", "grep -q start-42 /tmp/mark"])
            .run()
            .code
            == 0
    });
    open.ask("echo mine-$((40 + 2))", "mine-42");

    let (_, train) = job_of(&found(cluster), "bob");
    cluster.carrel(ROOT, ["found", "end", &train]).ok();
    cluster.ready("the other has ended", |this| ssh_servers(this).len() == 1);
    cluster.ready("and is not found any more", |this| {
        found(this)["jobs"] == Value::Array(vec![])
    });

    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
    cluster.ready("all GPUs are free", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 8
    });
}

#[test]
fn yesterdays_store() {
    let mut cluster = Cluster::start(&Options::default());
    assert_eq!(cluster.broker.terminate(), 0);
    let yesterday = cluster.root().join("yesterday");
    fs::create_dir(&yesterday).expect("own directory");
    for file in store(&cluster).filter(|file| file.exists()) {
        fs::copy(&file, yesterday.join(file.file_name().expect("a name"))).expect("copied");
    }
    cluster.broker.restart();
    cluster.ready("the broker answers", |this| {
        this.carrel(ROOT, ["ps"]).run().code == 0
    });
    let open = sessions(&cluster);

    cluster.broker.kill9();
    for file in store(&cluster) {
        fs::remove_file(&file).ok();
        let old = yesterday.join(file.file_name().expect("a name"));
        if old.exists() {
            fs::copy(old, file).expect("copied");
        }
    }
    cluster.broker.restart();
    cluster.ready("the broker answers", |this| {
        this.carrel(ROOT, ["ps"]).run().code == 0
    });
    cluster.ready("it has noticed", |this| {
        found(this)["store"]
            .as_str()
            .is_some_and(|text| text.contains("restored backup"))
    });
    assert!(
        cluster.broker.log().contains("restored backup"),
        "{}",
        cluster.last_logs()
    );
    take_over(&cluster, open);
}

#[test]
fn a_lost_store() {
    let mut cluster = Cluster::start(&Options::default());
    let open = sessions(&cluster);
    cluster.broker.kill9();
    for file in store(&cluster) {
        fs::remove_file(file).ok();
    }
    cluster.broker.restart();
    cluster.ready("the broker answers", |this| {
        this.carrel(ROOT, ["ps"]).run().code == 0
    });
    cluster.ready("the node is found", |this| {
        this.json(ROOT, ["nodes"])[0]["state"] == "FOUND"
    });
    assert!(
        cluster.broker.log().contains("it was lost"),
        "{}",
        cluster.last_logs()
    );
    cluster.ready("what runs is found", |this| {
        found(this)["jobs"].as_array().is_some_and(|jobs| jobs.len() == 2)
    });
    // Nothing is placed there: not beside what runs either.
    let waits = cluster
        .carrel(ALICE, ["alloc", "--immediate=1", "--gpus", "1", "--", "true"])
        .run();
    assert_ne!(waits.code, 0, "{waits}");
    let (_, dev) = job_of(&found(&cluster), "alice");
    let early = cluster.carrel(ROOT, ["found", "adopt", &dev]).run();
    early.fails(early.code, &["carrel node adopt n0"]);
    cluster.carrel(ROOT, ["node", "adopt", "n0"]).ok();
    take_over(&cluster, open);
}
