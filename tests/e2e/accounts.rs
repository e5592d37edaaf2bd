//! Accounts, limits and partitions as administrators set them, and the queue as users see it.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::process::Running;
use carrel_tests::user::{ALICE, BOB, ROOT, User};
use serde_json::Value;

const SMALL: [&str; 4] = ["-c", "1", "--mem", "64M"];

fn cluster() -> Cluster {
    Cluster::start(&Options {
        broker_config: "grace = \"1s\"\n[queue.weights]\nage = 0\nsize = 0\n".to_owned(),
        ..Options::default()
    })
}

fn admin(cluster: &Cluster, args: &[&str]) -> String {
    let done = cluster.carrel(ROOT, [&["admin"], args].concat()).run();
    assert_eq!(done.code, 0, "{done}");
    done.stderr
}

/// `carrel alloc --no-shell` with these options and small sizes, in the background.
fn alloc(cluster: &Cluster, user: User, name: &str, options: &[&str]) -> Running {
    let fixed = ["alloc", "--no-shell", "--name", name];
    cluster
        .carrel(user, [&fixed[..], &SMALL, options].concat())
        .spawn()
}

fn queue(cluster: &Cluster, options: &[&str]) -> Vec<Value> {
    let all = cluster.json(BOB, [&["queue"], options].concat());
    all.as_array().cloned().unwrap_or_default()
}

fn names(jobs: &[Value]) -> Vec<&str> {
    jobs.iter().filter_map(|job| job["name"].as_str()).collect()
}

#[test]
fn a_limit_refuses_what_it_never_allows_and_lets_the_rest_wait_its_turn() {
    let cluster = cluster();
    admin(&cluster, &["account", "add", "science"]);
    let limits = ["--max-gpus", "4", "--user-max-time", "2h"];
    admin(
        &cluster,
        &[&["account", "add", "physics", "--parent", "science"], &limits[..]].concat(),
    );
    let said = admin(&cluster, &["user", "add", "alice", "zoe", "-A", "physics"]);
    assert!(said.contains("note: zoe is not in the directory yet"), "{said}");
    for (options, why) in [
        (
            &["--gpus", "5", "-t", "1h"][..],
            "account physics may hold 4 GPUs at once, and this asks for 5",
        ),
        (
            &["--gpus", "1", "-t", "3h"],
            "may run jobs of 120 min at most, and this asks for 180 min",
        ),
        (&["--gpus", "1", "-A", "biology"], "there is no account biology"),
    ] {
        let refused = cluster
            .carrel(ALICE, [&["alloc"][..], options, &SMALL, &["--", "true"]].concat())
            .run();
        assert!(refused.code != 0 && refused.stderr.contains(why), "{refused}");
    }
    alloc(&cluster, ALICE, "first", &["--gpus", "3", "-t", "1h"])
        .wait()
        .ok();
    let second = alloc(&cluster, ALICE, "second", &["--gpus", "2", "-t", "1h"]);
    cluster.ready("the second waits for the limit", |this| {
        let waits = queue(this, &["-A", "physics"]);
        names(&waits) == ["second"] && waits[0]["reason"] == "AssocGrpGRES: account physics"
    });
    let why = cluster.json(ALICE, ["explain", "second"]);
    assert!(
        why["job"]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("holds 3 of the 4 GPUs that it may (alice 3)")),
        "{why}"
    );
    // Others are not limited by it.
    alloc(&cluster, BOB, "third", &["--gpus", "2", "-t", "1h"])
        .wait()
        .ok();
    let told = admin(&cluster, &["account", "set", "physics", "--max-gpus", "2"]);
    assert!(
        told.contains("holds 3 GPUs and may now hold 2: nothing is ended"),
        "{told}"
    );
    let refused = cluster.carrel(ROOT, ["admin", "account", "rm", "physics"]).run();
    assert!(
        refused.stderr.contains("2 jobs that wait or run (alice 2)"),
        "{refused}"
    );
    assert_eq!(
        names(&queue(&cluster, &["--all", "-u", "alice"])),
        ["first", "second"]
    );
    admin(&cluster, &["account", "set", "physics", "--max-gpus", "none"]);
    second.wait().ok();

    // Users see what is theirs, and change nothing.
    let own = cluster.json(ALICE, ["admin", "account", "list"]);
    assert_eq!(names(own.as_array().expect("accounts")), ["physics", "science"]);
    assert_eq!(own[0]["members"].as_array().map(Vec::len), Some(1), "{own}");
    assert_eq!(own[0]["held"]["gpu_milli"], 5_000, "{own}");
    let all = cluster.json(BOB, ["admin", "account", "list"]);
    assert_eq!(all.as_array().map(Vec::len), Some(0), "{all}");
    let denied = cluster.carrel(ALICE, ["admin", "account", "add", "mine"]).run();
    assert!(denied.stderr.contains("it takes the role admin"), "{denied}");
}

#[test]
fn shares_order_the_queue_and_partitions_divide_it() {
    let cluster = cluster();
    for (account, shares, user) in [("large", "3", "alice"), ("small", "1", "bob")] {
        admin(&cluster, &["account", "add", account, "--shares", shares]);
        admin(&cluster, &["user", "add", user, "-A", account]);
    }
    // Both use the same: the one with more shares has used less of what it was promised.
    for (user, name) in [(BOB, "b0"), (ALICE, "a0")] {
        alloc(&cluster, user, name, &["--gpus", "4", "-t", "1h"])
            .wait()
            .ok();
    }
    let waiting: Vec<Running> = [(BOB, "b1"), (ALICE, "a1"), (BOB, "b2"), (ALICE, "a2")]
        .into_iter()
        .map(|(user, name)| alloc(&cluster, user, name, &["--gpus", "8", "-t", "1h"]))
        .collect();
    cluster.ready("all four wait", |this| queue(this, &[]).len() == 4);
    // Fair-share is worked out anew once a minute, and when shares are set.
    admin(&cluster, &["account", "set", "large", "--shares", "3"]);
    cluster.ready("shares have ordered the queue", |this| {
        let order: String = names(&queue(this, &[])).iter().map(|name| &name[..1]).collect();
        order == "aabb"
    });
    let starts = queue(&cluster, &["--start"]);
    let kinds: Vec<&Value> = starts.iter().map(|job| &job["start_kind"]).collect();
    assert_eq!(kinds[0], "promised", "{starts:?}");
    let times: Vec<&str> = starts.iter().filter_map(|job| job["start"].as_str()).collect();
    assert!(times.len() == 4 && times.is_sorted(), "{starts:?}");
    let first = starts[0]["id"].to_string();
    let why = cluster.json(ALICE, ["explain", "--priority", &first]);
    let factors = why["priority"]["factors"].as_array().expect("factors");
    assert_eq!(factors[0]["name"], "fair-share");
    assert_eq!(why["priority"]["total"], starts[0]["priority"], "{why}");

    // An operator may have it otherwise, for all jobs of a QOS or a partition.
    let made = admin(
        &cluster,
        &["partition", "add", "elsewhere", "--nodes", "n[7-8]", "--default"],
    );
    assert!(
        made.contains("the cluster has no node n7, n8") && made.contains("has no node now"),
        "{made}"
    );
    let refused = cluster
        .carrel(ALICE, ["alloc", "--gpus", "1", "-p", "nowhere", "--", "true"])
        .run();
    assert!(
        refused.stderr.contains("there is no partition nowhere"),
        "{refused}"
    );
    let all = cluster.json(BOB, ["admin", "partition", "list"]);
    assert_eq!(all[0]["node_count"], 0, "{all}");
    admin(&cluster, &["partition", "set", "elsewhere", "--nodes", "none"]);
    let all = cluster.json(BOB, ["admin", "partition", "list"]);
    assert_eq!(all[0]["nodes"], "n0", "{all}");
    for name in ["a1", "a2"] {
        cluster.carrel(ALICE, ["stop", name]).ok();
    }
    for name in ["b1", "b2"] {
        cluster.carrel(BOB, ["stop", name]).ok();
    }
    for waits in waiting {
        assert_ne!(waits.wait().code, 0);
    }
}
