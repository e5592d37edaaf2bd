//! GPUs are handed out once, whatever the hurry, and whatever becomes of them.

use std::fs;

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
    terminal.expect("no free GPU on 1 node");
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
    terminal.expect("no free GPU on 1 node");
    drop(holder);
    terminal.expect("Granted job allocation");
    terminal.ask("echo $((40 + 2))", "42");
    terminal.line("exit");
    assert_eq!(terminal.wait(), 0, "{terminal}");
}

/// Has the first node's host be another, and its agent find out: a new one, which knows of its jobs what the one before
/// it has written down.
fn becomes(cluster: &mut Cluster, change: impl FnOnce(&str) -> String) {
    let file = cluster.host(0).join("host.toml");
    let text = fs::read_to_string(&file).expect("own file");
    fs::write(&file, change(&text)).expect("own file");
    let specification = cluster.nvidia_smi(0).args(["cdi-spec"]).ok();
    fs::write(cluster.host(0).join("cdi/described.json"), specification).expect("own file");
    cluster.agents[0].kill9();
    cluster.agents[0].restart();
}

/// A host without its last GPU, the fourth.
fn without_last(text: &str) -> String {
    const FOURTH: usize = 4;
    let (head, _) = text.rsplit_once("[[gpus]]").expect("a GPU");
    let lines = head.lines().filter(|line| !line.starts_with("GPU3"));
    let lines = lines.map(|line| {
        if !line.starts_with("GPU") && !line.starts_with('\t') {
            return line.to_owned();
        }
        let cells = line.split('\t').enumerate();
        let cells: Vec<&str> = cells
            .filter(|(at, _)| *at != FOURTH)
            .map(|(_, cell)| cell)
            .collect();
        cells.join("\t")
    });
    lines.map(|line| line + "\n").collect()
}

/// A GPU is replaced under a session, and has another UUID: its place is the session's until that ends, and everybody
/// is told why.
#[test]
fn a_gpu_that_is_another_one_now_is_given_to_nobody_while_its_job_runs() {
    const OTHER: &str = "GPU-deadbeef-15d1-4217-a31b-8b9417b14a50";
    let mut cluster = Cluster::start(&Options {
        hosts: vec![Some("2gpu-phb")],
        ..Options::default()
    });
    let one = ["--gpus", "1", "-c", "1", "--mem", "64M"];
    std::mem::forget(cluster.open(ALICE, "mine", &one));
    let job = cluster.json(ALICE, ["show", "mine"])["job"].clone();
    let gpu = &job["nodes"][0]["gpus"][0];
    let uuid = gpu["uuid"].as_str().expect("a UUID").to_owned();
    let index = gpu["index"].as_u64().expect("an index");
    becomes(&mut cluster, |text| text.replace(&uuid, OTHER));
    let why = format!("it was {uuid} and is {OTHER}: job {} goes on", job["id"]);
    cluster.ready("the operator is told", |this| {
        let node = &this.json(ROOT, ["nodes"])[0];
        node["gpus"].to_string().contains(&why)
    });
    let shown = cluster.carrel(ROOT, ["nodes", "--topology"]).ok();
    assert!(shown.contains(&why), "{shown}");
    let listed = cluster.carrel(ALICE, ["ps"]).ok();
    assert!(listed.contains(&format!("{}… (gone)", &uuid[..12])), "{listed}");

    // Nobody else gets it: there is one GPU to be had, and it is the other one.
    let request = [&["alloc"], &one[..], &["--", "sh", "-c", "echo $SLURM_JOB_GPUS"]].concat();
    cluster.ready("its session is entered again", |this| {
        this.ssh(ALICE, ["carrel-mine", "true"]).run().code == 0
    });
    assert_eq!(cluster.carrel(ALICE, request).ok(), (1 - index).to_string());
    let both = |this: &Cluster| {
        let request = ["alloc", "--test-only", "--gpus", "2", "-c", "1", "--mem", "64M"];
        this.carrel(ALICE, request).run().code == 0
    };
    assert!(!both(&cluster), "a GPU that is drained is none");
    cluster.carrel(ALICE, ["rm", "-f", "mine"]).ok();
    cluster.ready("it is a GPU like others", |this| both(this));
}

/// A GPU falls off its bus under a session, and then is not there at all: who has it, and who looks after the node, is
/// told, and no other GPU is named in its place.
#[test]
fn a_gpu_that_is_gone_is_missed() {
    let mut cluster = Cluster::start(&Options {
        hosts: vec![Some("a100pcie-bridge-pairs")],
        ..Options::default()
    });
    std::mem::forget(cluster.open(ALICE, "mine", &["--gpus", "4", "-c", "1", "--mem", "64M"]));
    let id = cluster.json(ALICE, ["show", "mine"])["job"]["id"].to_string();
    becomes(&mut cluster, |text| text.to_owned() + "lost = true\n");
    cluster.ready("its fault is shown beside its holder", |this| {
        let shown = this.carrel(ROOT, ["nodes", "--topology"]).ok();
        shown.contains(&format!("job {id} mine, alice (exclusive), drained: NVML"))
    });
    becomes(&mut cluster, without_last);
    let gone = "GPU-a219cf13-dd83-4841-a3c0-3b66451fc35a";
    cluster.ready("it is missed, with who holds it", |this| {
        let shown = this.carrel(ROOT, ["nodes"]).ok();
        shown.contains(&format!(
            "3 of 4 GPUs are left: NVML does not list GPU 3 ({gone}, held by job {id}) any more"
        ))
    });
    cluster.ready("its user is told", |this| {
        let shown = this.carrel(ALICE, ["explain", "mine"]).ok();
        shown.contains(&format!("node n0 does not list its {gone} any more"))
            && shown.contains("GPU0, GPU1, GPU2, GPU-a219cf13… (gone)")
    });
    let listed = cluster.carrel(ALICE, ["ps"]).ok();
    assert!(listed.contains("n0 GPUs 0-2, GPU-a219cf13… (gone)"), "{listed}");
    let gpus = cluster.json(ALICE, ["show", "mine"])["job"]["nodes"][0]["gpus"].clone();
    assert_eq!(gpus[3]["index"], serde_json::Value::Null, "{gpus}");
    cluster.carrel(ALICE, ["rm", "-f", "mine"]).ok();
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
