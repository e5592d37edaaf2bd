//! Gangs whose agents, broker, containers or nodes die, in each phase of a gang's life: it goes on, or ends as it should,
//! its script runs as often as it should, and nothing of it is left.

mod left;
mod lost;
mod phases;
mod unwinding;

use std::path::PathBuf;

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::{ALICE, ROOT};
use serde_json::Value;

/// Sizes of which a node has room for many.
const SMALL: [&str; 4] = ["-c", "1", "--mem", "256M"];

/// So many hosts with eight GPUs and a network each, whose containers can be held up.
fn hosts(count: usize, broker_flags: &[&str]) -> Cluster {
    Cluster::start(&Options {
        hosts: vec![Some("hgx-h100"); count],
        networks: true,
        gates: true,
        broker_flags: broker_flags.iter().map(|flag| (*flag).to_owned()).collect(),
        ..Options::default()
    })
}

fn home(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.sandbox().home(ALICE).join(name)
}

/// A file that jobs write, or wait for.
fn read(cluster: &Cluster, name: &str) -> String {
    std::fs::read_to_string(home(cluster, name)).unwrap_or_default()
}

fn touch(cluster: &Cluster, name: &str) {
    std::fs::write(home(cluster, name), "").expect("own file");
}

/// `carrel submit` of a script; the job's id.
#[track_caller]
fn submit(cluster: &Cluster, args: &[&str], script: &str) -> String {
    let all = [&["submit", "--parsable"][..], &SMALL, args, &["--wrap", script]].concat();
    cluster.carrel(ALICE, all).ok().trim().to_owned()
}

fn show(cluster: &Cluster, id: &str) -> Value {
    cluster.json(ROOT, ["show", id])
}

#[track_caller]
fn until(cluster: &Cluster, id: &str, state: &str) -> Value {
    let mut last = Value::Null;
    let came = carrel_tests::wait::poll(carrel_tests::wait::PATIENCE, || {
        last = show(cluster, id);
        (last["state"] == state).then_some(())
    });
    assert!(
        came.is_some(),
        "job {id} is not {state}: {last}\n{}",
        cluster.last_logs()
    );
    last
}

#[track_caller]
fn answers(cluster: &Cluster) {
    cluster.ready("the broker answers", |this| {
        this.carrel(ROOT, ["ps"]).run().code == 0
    });
}

/// A gang of nothing over all nodes, for what stays after the first one; what hosts have then.
fn first(cluster: &Cluster, nodes: usize) -> String {
    let id = submit(cluster, &[&format!("-N{nodes}"), "-o", "first.out"], "true");
    until(cluster, &id, "COMPLETED");
    let mut last = left::look(cluster);
    // Until what it had is gone.
    cluster.ready("the first gang is gone", |this| {
        let now = left::look(this);
        let settled = now == last && !now.contains("containerd-shim") && !now.contains("veth");
        last = now;
        settled
    });
    last
}
