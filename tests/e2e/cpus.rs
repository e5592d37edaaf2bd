//! CPUs of a job's own: what its programs see, what is told of them, and that they stay whoever dies.

use carrel_core::model::cpus::CpuSet;
use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::{ALICE, BOB, ROOT};

use crate::shared;

const ONE: [&str; 4] = ["-c", "1", "--mem", "64M"];
const SEEN: &str = "grep -w Cpus_allowed_list /proc/self/status | tr -d '\\t' | cut -d: -f2; nproc";

/// What a program sees: its CPUs, and how many it takes them for.
fn seen(output: &str) -> (CpuSet, usize) {
    let mut lines = output.lines();
    let cpus = lines.next().expect("a list").parse().expect("a kernel cpulist");
    (cpus, lines.next().expect("a number").parse().expect("a number"))
}

#[test]
fn jobs_have_cpus_of_their_own_whoever_dies() {
    let here = std::thread::available_parallelism().expect("some").get();
    assert!(here >= 2, "two jobs need two CPUs");
    let mut cluster = Cluster::start(&Options {
        own_cpus: true,
        ..Options::default()
    });
    std::mem::forget(cluster.open(ALICE, "first", &[&["--gpus", "1"], &ONE[..]].concat()));
    let of_first = |cluster: &Cluster| seen(&cluster.ssh(ALICE, ["carrel-first", SEEN]).ok());
    let first = of_first(&cluster);
    assert_eq!((first.0.len(), first.1), (1, 1), "{first:?}");
    let told = |cluster: &Cluster| {
        let record = cluster.json(ALICE, ["show", "first"]);
        record["job"]["nodes"][0]["cpuset"]
            .as_str()
            .expect("a list")
            .to_owned()
    };
    assert_eq!(told(&cluster), first.0.to_string());

    cluster.agents[0].kill9();
    cluster.agents[0].restart();
    cluster.ready("the node is back", |this| {
        this.json(ROOT, ["nodes"])[0]["cpu_holders"][0]["cpuset"] == first.0.to_string()
    });
    let output = cluster
        .carrel(BOB, [&["alloc"], &ONE[..]].concat())
        .args(["--", "sh", "-c", SEEN])
        .ok();
    let second = seen(&output);
    assert_eq!(second.1, 1);
    assert!(second.0.is_disjoint(&first.0), "{second:?} and {first:?}");
    assert_eq!(of_first(&cluster), first);
    assert_eq!(told(&cluster), first.0.to_string());

    let explained = cluster.carrel(ALICE, ["explain", "first"]).ok();
    assert!(
        explained.contains(&format!("CPU ids: {} (its own)", first.0)),
        "{explained}"
    );
    let drawn = cluster.carrel(ALICE, ["nodes", "--topology", "n0"]).ok();
    assert!(drawn.contains(&format!("CPU ids {}: job 1", first.0)), "{drawn}");
    let isolation = cluster.json(ROOT, ["nodes"])[0]["isolation"].to_string();
    assert!(isolation.contains("each job has CPUs of its own"), "{isolation}");
    cluster.carrel(ALICE, ["rm", "-f", "first"]).ok();
}

/// A node whose operator says that it has more CPUs than are there gives nobody CPUs of his own, and says so.
#[test]
fn what_is_not_there_is_not_bound() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "unbound", &[&["--gpus", "1"], &ONE[..]].concat());
    let all = seen(&session.ssh([SEEN]).ok());
    let here = std::thread::available_parallelism().expect("some").get();
    assert_eq!(all.1, here);
    assert_eq!(
        session.record()["job"]["nodes"][0]["cpuset"],
        serde_json::Value::Null
    );
    let isolation = cluster.json(ROOT, ["nodes"])[0]["isolation"].to_string();
    assert!(
        isolation.contains("no CPUs of a job's own (the node offers 104 CPUs"),
        "{isolation}"
    );
}
