//! What was: jobs in the history, and what they held.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::{ALICE, User};
use serde_json::Value;

const SMALL: [&str; 4] = ["-c", "1", "--mem", "64M"];

fn history(cluster: &Cluster, user: User, options: &[&str]) -> Vec<Value> {
    let jobs = cluster.json(user, [&["history"][..], options].concat());
    jobs.as_array().cloned().expect("a list")
}

fn names(jobs: &[Value]) -> Vec<&str> {
    jobs.iter()
        .map(|job| job["name"].as_str().expect("a name"))
        .collect()
}

#[test]
fn what_runs_counts_up_to_now() {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("hgx-h100")],
        ..Options::default()
    });
    let fixed = ["alloc", "--no-shell", "--name", "long", "--gpus", "8"];
    let running = cluster.carrel(ALICE, [&fixed[..], &SMALL].concat()).spawn();
    cluster.ready("it runs", |this| {
        let jobs = history(this, ALICE, &[]);
        jobs.iter()
            .any(|job| job["name"] == "long" && job["state"] == "RUNNING")
    });
    let hours = |this: &Cluster| {
        this.json(ALICE, ["usage"])["total"]["gpu_hours"]
            .as_f64()
            .unwrap_or(0.0)
    };
    let first = hours(&cluster);
    cluster.ready("more was used", |this| hours(this) > first && first > 0.0);
    cluster.carrel(ALICE, ["stop", "long"]).ok();
    drop(running);
    cluster.ready("it is over", |this| {
        let jobs = history(this, ALICE, &["-s", "COMPLETED,CANCELLED"]);
        names(&jobs) == ["long"]
    });
    let end = hours(&cluster);
    assert!((hours(&cluster) - end).abs() < 1e-12, "what is over uses nothing");
}
