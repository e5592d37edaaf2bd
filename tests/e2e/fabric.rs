//! Gangs over a fabric, and nodes that are asked for by name and feature.

use carrel_tests::cluster::{Cluster, Options, Session};
use carrel_tests::user::{ALICE, ROOT};
use serde_json::Value;

/// Two trays of one rack on one switch, and before them in name, on another switch, one of another rack and a
/// host without GPUs.
const FABRIC: &str = r#"
[[fabric.switch]]
name = "leaf1"
nodes = "n[0-1]"

[[fabric.switch]]
name = "leaf2"
nodes = "n[2-3],absent[1-2]"

[[fabric.switch]]
name = "spine"
switches = "leaf[1-2]"
"#;

const SMALL: [&str; 4] = ["-c", "1", "--mem", "64M"];

fn cluster() -> Cluster {
    Cluster::start(&Options {
        hosts: vec![
            None,
            Some("gb200-rack1"),
            Some("gb200-rack2"),
            Some("gb200-rack2"),
        ],
        agent_configs: vec![
            "features = [\"cpu\"]",
            "features = [\"ib\", \"rack1\"]",
            "features = [\"rack2\"]",
            "features = [\"rack2\"]",
        ],
        broker_config: FABRIC.to_owned(),
        ..Options::default()
    })
}

fn open<'a>(cluster: &'a Cluster, name: &str, args: &[&str]) -> Session<'a> {
    cluster.open(ALICE, name, &[&SMALL[..], args].concat())
}

fn held(session: &Session<'_>) -> Vec<Value> {
    let record = session.record();
    let nodes = record["job"]["nodes"].as_array().expect("nodes");
    nodes.clone()
}

fn nodes(session: &Session<'_>) -> Vec<String> {
    let names = held(session).into_iter().map(|part| part["node"].clone());
    names
        .map(|name| name.as_str().expect("a name").to_owned())
        .collect()
}

/// Waits until what was stopped is released everywhere.
fn idle(cluster: &Cluster) {
    cluster.ready("every node is idle again", |this| {
        let nodes = this.json(ALICE, ["nodes"]);
        let nodes = nodes.as_array().expect("nodes");
        nodes.iter().all(|node| node["state"] == "IDLE")
    });
}

/// A gang lands in one block, though the first nodes are free; names, features and exclusions are kept; and what can
/// never be is refused at once, with the reason, and does not wait.
#[test]
fn a_gang_lands_in_one_block_and_constraints_are_kept() {
    let cluster = cluster();
    assert!(
        cluster.logs().contains("absent[1-2]"),
        "nodes that have not joined are told of: {}",
        cluster.last_logs()
    );

    let gang = open(
        &cluster,
        "gang",
        &[
            "-N",
            "2",
            "--gpus-per-node",
            "4",
            "--segment",
            "2",
            "--switches",
            "1",
        ],
    );
    assert_eq!(nodes(&gang), ["n2", "n3"]);
    for part in held(&gang) {
        assert_eq!(part["switch_path"], "leaf2 < spine");
        assert_eq!(part["block"], "9a2cf1f7-550d-4be2-8bd2-a3d91c0e5d64.2");
    }
    let shown = cluster.carrel(ALICE, ["explain", "gang"]).ok();
    assert!(
        shown.contains("NUMA 0-1, leaf2 < spine, block 9a2cf1f7"),
        "{shown}"
    );
    drop(gang);
    idle(&cluster);

    let mixed = open(
        &cluster,
        "mixed",
        &[
            "-C",
            "cpu",
            ":",
            "-N",
            "2",
            "--gpus-per-node",
            "2",
            "-c",
            "1",
            "--mem",
            "64M",
        ],
    );
    assert_eq!(
        nodes(&mixed),
        ["n0", "n2", "n3"],
        "ranks in the order of components"
    );
    let gpus = held(&mixed)
        .into_iter()
        .map(|part| part["gpus"].as_array().map(Vec::len));
    assert_eq!(gpus.collect::<Vec<_>>(), [Some(0), Some(2), Some(2)]);
    drop(mixed);
    idle(&cluster);

    let counted = open(&cluster, "counted", &["-C", "rack2*2&cpu*1"]);
    assert_eq!(
        nodes(&counted),
        ["n2", "n3", "n0"],
        "as many nodes as are counted"
    );
    drop(counted);
    idle(&cluster);

    let same = open(&cluster, "same", &["-N", "2", "-C", "[rack1|rack2]"]);
    assert_eq!(nodes(&same), ["n2", "n3"], "one has the first choice");
    drop(same);
    idle(&cluster);

    let named = open(&cluster, "named", &["-w", "n[2-3]", "--gpus-per-node", "1"]);
    assert_eq!(nodes(&named), ["n2", "n3"], "as many nodes as are named");
    let excluded = open(&cluster, "excluded", &["-x", "n[2-3]", "--gpus", "1"]);
    assert_eq!(nodes(&excluded), ["n1"]);
    let featured = open(&cluster, "featured", &["-C", "ib&(rack1|rack9)"]);
    assert_eq!(nodes(&featured), ["n1"], "though a host without GPUs is there");
    let listed = cluster.json(ALICE, ["nodes"]);
    assert_eq!(listed[1]["features"], serde_json::json!(["ib", "rack1"]));

    let before = cluster.json(ALICE, ["ps"]);
    for (args, why) in [
        (
            &["-N", "3", "--gpus-per-node", "1", "--switches", "1"][..],
            "no 3 such nodes are on one leaf switch",
        ),
        (
            &["-N", "3", "--gpus-per-node", "1", "--segment", "3"],
            "no block has 3 such nodes",
        ),
        (&["-N", "3", "--segment", "2"], "no multiple of --segment=2"),
        (&["-C", "gold"], "no feature gold on 4 nodes"),
        (&["-w", "n[3-5]"], "there are no nodes n[4-5] (--nodelist)"),
        (&["-w", "n0", "--gpus", "1"], "no GPUs on 1 node"),
        (&["-x", "n[0-3]"], "in --exclude on 4 nodes"),
        (&["-w", "gpu[1-"], "no ']' closes its '['"),
        (&["-w", "gpu[1-1000000000]"], "over 65536 names"),
    ] {
        let refused = cluster
            .carrel(ALICE, ["alloc"])
            .args(SMALL)
            .args(args)
            .args(["--", "true"])
            .run();
        assert_ne!(refused.code, 0, "{args:?}: {refused}");
        assert!(refused.stderr.contains(why), "{args:?}: {refused}");
    }
    assert_eq!(
        cluster.json(ALICE, ["ps"]).as_array().map(Vec::len),
        before.as_array().map(Vec::len),
        "nothing waits"
    );
}

/// Who holds out for a switch starts when the time is over, on what there is, and lets others pass meanwhile.
#[test]
fn a_wish_is_held_out_for_and_then_given_up() {
    let cluster = cluster();
    let holder = open(&cluster, "holder", &["-w", "n3", "--gpus", "4"]);
    let patient = cluster
        .carrel(
            ALICE,
            ["alloc", "-N", "2", "--gpus-per-node", "4", "--switches", "1@5s"],
        )
        .args(SMALL)
        .args(["--", "sh", "-c", "echo $SLURM_JOB_NODELIST"])
        .spawn();
    cluster.ready("it holds out", |this| {
        let jobs = this.json(ALICE, ["ps"]).to_string();
        jobs.contains("holds out for nodes on fewer switches")
    });
    drop(open(&cluster, "later", &[]));
    let output = patient.wait();
    assert_eq!(output.stdout.trim(), "n[1-2]", "{output}");
    drop(holder);
}

/// Features that an operator gives a node: asked for like its own, kept by the broker, and taken away again.
#[test]
fn an_operator_gives_a_node_features() {
    let mut cluster = Cluster::start(&Options {
        hosts: vec![None, None],
        agent_configs: vec!["features = [\"cpu\"]"],
        ..Options::default()
    });
    let feature = |cluster: &Cluster, user, changes: &[&str]| {
        cluster
            .carrel(user, [&["node", "feature", "n1"], changes].concat())
            .run()
    };
    let on = |cluster: &Cluster, wanted: &str| {
        let args = ["alloc", "-C", wanted, "-c", "1", "--mem", "64M", "--"];
        cluster
            .carrel(ALICE, args)
            .args(["sh", "-c", "echo $SLURMD_NODENAME"])
            .run()
    };
    on(&cluster, "gold").fails(2, &["no feature gold on 2 nodes"]);
    feature(&cluster, ALICE, &["+gold"]).fails(5, &["operator"]);
    let given = feature(&cluster, ROOT, &["+gold", "+a-b"]);
    assert_eq!(given.code, 0, "{given}");
    assert!(given.stderr.contains("node n1 has features a-b, gold"), "{given}");
    cluster.broker.kill9();
    cluster.broker.restart();
    cluster.ready("the nodes are back", |this| on(this, "gold&a-b").stdout == "n1\n");
    let listed = cluster.json(ALICE, ["nodes"]);
    assert_eq!(
        (&listed[0]["features"], &listed[1]["features"]),
        (&serde_json::json!(["cpu"]), &serde_json::json!(["a-b", "gold"]))
    );
    for (changes, why) in [
        (&["gold"][..], "write +FEATURE"),
        (&["+"], "1 to 64 letters"),
        (&["-silver"], "no feature silver"),
        (&["+x", "-x"], "to be added and to be removed"),
    ] {
        let refused = feature(&cluster, ROOT, changes);
        assert!(
            refused.code != 0 && refused.stderr.contains(why),
            "{changes:?}: {refused}"
        );
    }
    cluster
        .carrel(ROOT, ["node", "feature", "n0", "-cpu"])
        .run()
        .fails(2, &["the node's own configuration"]);
    assert_eq!(feature(&cluster, ROOT, &["-gold", "-a-b"]).code, 0);
    on(&cluster, "gold").fails(2, &["no feature gold on 2 nodes"]);
}
