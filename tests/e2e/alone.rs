//! Sessions that are left alone: by the broker, by broker and agent, by containerd, by the broker's disk.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::terminal::Terminal;
use carrel_tests::user::{ALICE, ROOT};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::processes::{named, parent, ssh_servers};

const SMALL: [&str; 6] = ["--gpus", "2", "-c", "1", "--mem", "64M"];

fn answers(cluster: &Cluster) {
    cluster.ready("the broker answers", |this| {
        this.carrel(ROOT, ["ps"]).run().code == 0
    });
}

#[test]
fn the_deadline_ends_a_session_with_the_broker_gone() {
    let mut cluster = Cluster::start(&Options::default());
    std::mem::forget(cluster.open(ALICE, "dev", &[&["-t", "0:20"][..], &SMALL].concat()));
    cluster.broker.kill9();
    cluster.ready("it has ended", |this| ssh_servers(this).is_empty());
    cluster.broker.restart();
    answers(&cluster);
    cluster.ready("the broker knows", |this| {
        this.json(ALICE, ["show", "dev"])["job"]["state"] == "TIMEOUT"
    });
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
}

#[test]
fn the_lease_ends_a_session_with_broker_and_agent_gone() {
    let mut cluster = Cluster::start(&Options {
        broker_flags: ["--lease", "15s"].map(String::from).to_vec(),
        ..Options::default()
    });
    std::mem::forget(cluster.open(ALICE, "dev", &SMALL));
    cluster.broker.kill9();
    cluster.agents[0].kill9();
    cluster.ready("carrel-init has ended it", |this| {
        named(this, "carrel-init").is_empty()
    });
    cluster.agents[0].restart();
    cluster.broker.restart();
    answers(&cluster);
    cluster.ready("the broker knows why", |this| {
        let job = &this.json(ALICE, ["show", "dev"])["job"];
        job["state"] == "NODE_FAIL" && job["reason"].as_str().is_some_and(|why| why.contains("lease"))
    });
    cluster.ready("its GPUs are free", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 8
    });
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
}

/// containerd is stopped, and started again, under a session.
#[test]
fn containerd_is_killed() {
    let cluster = Cluster::start(&Options::default());
    let session = cluster.open(ALICE, "dev", &SMALL);
    let mut open = Terminal::start(&cluster.ssh(ALICE, ["-tt", "carrel-dev"]));
    open.ask("echo start-$((40 + 2))", "start-42");
    let before = named(&cluster, "containerd");
    assert_eq!(before.len(), 1, "one private containerd: {before:?}");
    kill(Pid::from_raw(before[0]), Signal::SIGKILL).expect("it runs");
    open.ask("echo without-$((40 + 2))", "without-42");
    // It is started again, with all that it knew.
    let another = cluster.open(ALICE, "another", &SMALL);
    another.ssh(["true"]).ok();
    open.ask("echo after-$((40 + 2))", "after-42");
    assert_eq!(session.record()["state"], "RUNNING");
    drop((session, another));
    cluster.ready("all GPUs are free", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 8
    });
}

/// Adds users until the disk is full; what it said then.
fn fill(cluster: &Cluster) -> String {
    let ballast = cluster.root().join("broker/ballast");
    let script = format!("cat /dev/zero > {} || true", ballast.display());
    cluster.cmd(ROOT, "sh").args(["-c", &script]).ok();
    // The log has room of its own, for a while.
    for number in 0..4_000 {
        let home = format!("/home/{}", "x".repeat(2_000));
        let uid = (100_000 + number).to_string();
        let name = format!("u{number}");
        let added = cluster
            .carrel(ROOT, ["user", "add", &name, "--uid", &uid, "--home", &home])
            .run();
        if added.code != 0 {
            return added.stderr;
        }
    }
    panic!("the disk is never full");
}

/// When the node was last heard of, seconds of its text.
fn last_contact(cluster: &Cluster) -> String {
    let nodes = cluster.json(ROOT, ["nodes"]);
    nodes[0]["last_contact"].as_str().expect("a time").to_owned()
}

/// Without room on the broker's disk reads go on, writes say why, and leases are renewed, also
/// when a node has something to say that should be kept.
#[test]
fn the_brokers_disk_is_full() {
    let cluster = Cluster::start(&Options {
        broker_flags: ["--lease", "15s"].map(String::from).to_vec(),
        broker_room_mib: Some(6),
        ..Options::default()
    });
    std::mem::forget(cluster.open(ALICE, "dev", &SMALL));
    let own = ssh_servers(&cluster);
    std::mem::forget(cluster.open(ALICE, "victim", &SMALL));
    let why = fill(&cluster);
    assert!(why.contains("is full"), "{why}");
    assert_eq!(cluster.json(ALICE, ["ps"]).as_array().map(Vec::len), Some(2));

    // From here on each report says what cannot be kept.
    let victim = ssh_servers(&cluster).into_iter().find(|pid| !own.contains(pid));
    let init = parent(victim.expect("it runs"));
    kill(Pid::from_raw(init), Signal::SIGKILL).expect("it runs");
    cluster.ready("it has ended", |this| ssh_servers(this) == own);
    let mut heard = last_contact(&cluster);
    // Far more reports than a lease has.
    for _ in 0..12 {
        cluster.ready("the node is heard", |this| last_contact(this) > heard);
        heard = last_contact(&cluster);
    }
    cluster.ssh(ALICE, ["carrel-dev", "true"]).ok();
    let refused = cluster.carrel(ALICE, ["extend", "dev", "1:00"]).run();
    refused.fails(refused.code, &["full"]);

    let ballast = cluster.root().join("broker/ballast");
    cluster.cmd(ROOT, "rm").arg(ballast).ok();
    cluster.ready("what was said is kept", |this| {
        this.json(ALICE, ["show", "victim"])["job"]["state"] == "FAILED"
    });
    assert_eq!(cluster.json(ALICE, ["show", "dev"])["state"], "RUNNING");
    for name in ["dev", "victim"] {
        cluster.carrel(ALICE, ["rm", "-f", name]).ok();
    }
}
