//! GPUs are handed out once, whatever the hurry.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::{ALICE, ROOT};

/// Allocations at once.
const HURRY: usize = 50;

/// Takes a mark for each of its GPUs and says if somebody else has one; the
/// marks are in the home, which all of a user's sessions share. The hosts here are of one
/// description, UUIDs and all: a GPU is known by its host and its UUID.
const TAKE: &str = r#"
mkdir -p ~/held
for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do
  gpu=$SLURMD_NODENAME-$gpu
  mkdir ~/held/$gpu || echo "taken twice: $gpu"
  took="$took $gpu"
done
for gpu in $took; do rmdir ~/held/$gpu; done
echo finished
"#;

fn free_gpus(cluster: &Cluster) -> u64 {
    let nodes = cluster.json(ROOT, ["nodes"]);
    nodes
        .as_array()
        .expect("nodes")
        .iter()
        .filter_map(|node| node["gpus_free"].as_u64())
        .sum()
}

/// Fifty allocations of different sizes race for sixteen GPUs; all get theirs, none shares.
#[test]
fn never_twice_under_parallel_allocs_and_releases() {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("hgx-h100"), Some("hgx-h100")],
        ..Options::default()
    });
    let running: Vec<_> = (0..HURRY)
        .map(|n| {
            let gpus = [1, 2, 3, 4, 8][n % 5].to_string();
            let request = [
                "alloc", "-c", "1", "--mem", "64M", "--gpus", &gpus, "--", "sh", "-c", TAKE,
            ];
            cluster.carrel(ALICE, request).spawn()
        })
        .collect();
    for one in running {
        let output = one.wait();
        assert_eq!(output.stdout, "finished\n", "{output}{}", cluster.last_logs());
        assert_eq!(output.code, 0, "{output}");
    }
    cluster.ready("all GPUs are free again", |this| free_gpus(this) == 16);
    assert_eq!(cluster.json(ALICE, ["ps"]), serde_json::json!([]));
}

/// What does not fit waits, says why, and starts when there is room; Ctrl-C while waiting cancels.
#[test]
fn waiting_and_cancelling() {
    let cluster = Cluster::start(&Options::default());
    let holder = cluster.open(ALICE, "holder", &["--gpus", "8", "-c", "1", "--mem", "64M"]);
    let request = [
        "alloc", "--gpus", "1", "-c", "1", "--mem", "64M", "--name", "waiter",
    ];
    let mut terminal = cluster.terminal(ALICE, request);
    terminal.expect("Resources");
    let waiting = cluster.json(ALICE, ["show", "waiter"]);
    assert_eq!(waiting["job"]["state"], "PENDING");
    assert!(
        waiting["job"]["reason"]
            .as_str()
            .is_some_and(|why| why.starts_with("Resources")),
        "{waiting}"
    );
    terminal.write("\x03");
    assert_eq!(terminal.wait(), 130, "{terminal}");
    cluster.ready("the waiting job is gone", |this| {
        !this.json(ALICE, ["ps"]).to_string().contains("waiter")
    });

    let mut terminal = cluster.terminal(ALICE, request);
    terminal.expect("Resources");
    drop(holder);
    terminal.expect("Granted job allocation");
    terminal.ask("echo $((40 + 2))", "42");
    terminal.line("exit");
    assert_eq!(terminal.wait(), 0, "{terminal}");
}

/// `--nvlink` on a host where only pairs are joined: a pair, and never more than a pair.
#[test]
fn joined_gpus_where_only_pairs_are() {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("a100pcie-bridge-pairs")],
        ..Options::default()
    });
    let small = ["-c", "1", "--mem", "64M", "--nvlink"];
    let pair = cluster.open(ALICE, "pair", &[&["--gpus", "2"][..], &small].concat());
    assert_eq!(
        pair.record()["job"]["nodes"][0]["gpus"].as_array().map(Vec::len),
        Some(2)
    );
    let four = cluster
        .carrel(ALICE, ["alloc", "--gpus", "4"])
        .args(small)
        .args(["--", "true"])
        .run();
    assert_ne!(four.code, 0, "{four}");
    assert!(four.stderr.to_lowercase().contains("nvlink"), "{four}");
}
