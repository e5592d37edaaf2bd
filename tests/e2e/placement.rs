//! Jobs lie where their GPUs are best joined; what can never be is refused at once; and it is all explained.

use carrel_tests::cluster::{Cluster, Options, Session};
use carrel_tests::user::{ALICE, BOB, ROOT};
use serde_json::Value;

const SMALL: [&str; 4] = ["-c", "1", "--mem", "64M"];

/// Indices of the GPUs that a job holds on its first node, and that node.
fn held(job: &Value) -> (String, Vec<u64>) {
    let node = &job["nodes"][0];
    let gpus = node["gpus"].as_array().into_iter().flatten();
    let indices = gpus.filter_map(|gpu| gpu["index"].as_u64()).collect();
    (node["node"].as_str().unwrap_or_default().to_owned(), indices)
}

/// All GPUs of a node held one by one, by sessions in the order of their indices.
fn one_by_one(cluster: &Cluster, count: usize) -> Vec<Session<'_>> {
    let mut all: Vec<(u64, Session<'_>)> = (0..count)
        .map(|number| {
            let session = cluster.open(
                BOB,
                &format!("s{number}"),
                &[&["--gpus", "1"][..], &SMALL].concat(),
            );
            (held(&session.record()["job"]).1[0], session)
        })
        .collect();
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, session)| session).collect()
}

/// Four free GPUs on the first node, two on each of its islands; the second node, all free, has whole ones.
#[test]
fn an_island_is_taken_rather_than_the_first_gpus_that_are_free() {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("h200nvl-two-islands"); 2],
        ..Options::default()
    });
    cluster
        .carrel(ROOT, ["node", "drain", "n1", "--reason", "test"])
        .ok();
    let mut singles = one_by_one(&cluster, 8);
    for index in [5, 4, 1, 0] {
        drop(singles.remove(index));
    }
    cluster.ready("four GPUs of n0 are free", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 4
    });

    // Joined by NVLink four are to be had when the others end; now, across the bridge between the sockets.
    let plan = cluster.json(
        ALICE,
        [
            "alloc",
            "--test-only",
            "--gpus",
            "4",
            "--nvlink",
            "-c",
            "4",
            "--mem",
            "1G",
        ],
    );
    let choices = plan["choices"].as_array().expect("choices");
    assert_eq!(
        (&choices[0]["now"], choices[0]["start"].is_string()),
        (&Value::from(false), true),
        "{plan}"
    );
    assert_eq!(choices[0]["seats"][0]["worst_link"], "NV6", "{plan}");
    assert_eq!(
        (&choices[1]["now"], &choices[1]["request"]["nvlink"]),
        (&Value::from(true), &Value::from(false)),
        "{plan}"
    );
    assert_eq!(choices[1]["seats"][0]["worst_link"], "SYS", "{plan}");
    let now = cluster
        .carrel(
            ALICE,
            [
                "alloc", "--gpus", "4", "--nvlink", "--choose", "now", "-c", "4", "--mem", "1G", "--", "true",
            ],
        )
        .run();
    assert_eq!(now.code, 0, "{now}");
    assert!(
        now.stderr.contains("taken now: 4 GPUs, slowest link SYS"),
        "{now}"
    );

    cluster.carrel(ROOT, ["node", "resume", "n1"]).ok();
    let session = cluster.open(ALICE, "island", &[&["--gpus", "4"][..], &SMALL].concat());
    let (node, gpus) = held(&session.record()["job"]);
    assert_eq!(node, "n1");
    assert!(gpus == [0, 1, 2, 3] || gpus == [4, 5, 6, 7], "{gpus:?}");

    let why = cluster.json(ALICE, ["explain", "island"]);
    let seat = &why["seats"][0];
    assert_eq!(
        (&seat["worst_link"], seat["links"].as_array().map(Vec::len)),
        (&Value::from("NV6"), Some(4)),
        "{why}"
    );
    let drawn = cluster.carrel(ALICE, ["explain", "island"]).run();
    assert!(drawn.stdout.contains("slowest: NV6 between GPU"), "{drawn}");
}

/// What no node of the cluster could ever give is no job that waits.
#[test]
fn what_can_never_be_is_refused_at_once_with_the_reason() {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("hgx-h100"), Some("a100pcie-bridge-pairs")],
        ..Options::default()
    });
    for (request, why) in [
        (&["--gpus", "9"][..], "fewer than 9 GPUs on 2 nodes"),
        (&["--gpus", "b200:1"], "no b200 on 2 nodes"),
        (&["--gpus", "a100:4", "--nvlink"], "no 4 GPUs joined by NVLink"),
        (&["-N", "3", "--gpus-per-node", "1"], "fewer than 3 such nodes"),
        (&["--gpus", "1g.10gb"], "no slice 1g.10gb on 2 nodes"),
        (&["--gpus", "0.5"], "no GPU that jobs may share on 2 nodes"),
        (
            &["--gpu-mem", "90G"],
            "no GPU or slice with 90 GB of memory on 2 nodes",
        ),
        (&["-c", "100000"], "CPUs"),
    ] {
        for verb in [&["alloc", "--test-only"][..], &["alloc", "--no-shell"]] {
            let refused = cluster.carrel(ALICE, [verb, request].concat()).run();
            assert_ne!(refused.code, 0, "{refused}");
            assert!(refused.stderr.contains(why), "{why}: {refused}");
        }
    }
    assert_eq!(cluster.json(ALICE, ["ps"]), serde_json::json!([]));
    // 80 GB is what two of these models have; the cheaper in memory is taken.
    let plan = cluster.json(ALICE, ["alloc", "--test-only", "--gpu-mem", "80G"]);
    assert_eq!(plan["choices"][0]["now"], true, "{plan}");
}

/// At a terminal there is a choice, and the key that is typed decides.
#[test]
fn a_person_chooses_between_waiting_and_less() {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("a100pcie-bridge-pairs")],
        ..Options::default()
    });
    let mut singles = one_by_one(&cluster, 4);
    for index in [2, 0] {
        drop(singles.remove(index));
    }
    let ready = || {
        cluster.ready("one GPU of each pair is free", |this| {
            this.json(ROOT, ["nodes"])[0]["gpus_free"] == 2
        });
    };
    ready();
    let request = [&["alloc", "--gpus", "2", "--nvlink"][..], &SMALL].concat();
    let mut terminal = cluster.terminal(ALICE, &request);
    terminal.expect("1  2 GPUs joined by NVLink, slowest link NV12, exclusive: in about");
    terminal.expect("2  2 GPUs, slowest link SYS, exclusive, on n0: now");
    terminal.expect("Which?");
    terminal.line("7");
    terminal.expect("7 is none of them");
    terminal.line("2");
    terminal.expect("Granted job allocation");
    terminal.ask("echo $((40 + 2))", "42");
    terminal.line("exit");
    assert_eq!(terminal.wait(), 0, "{terminal}");

    ready();
    let mut terminal = cluster.terminal(ALICE, &request);
    terminal.expect("Which?");
    terminal.write("\x03");
    assert_eq!(terminal.wait(), 130, "{terminal}");
    let mut terminal = cluster.terminal(ALICE, &request);
    terminal.expect("Which?");
    terminal.line("");
    terminal.expect("waits, 1st");
    terminal.write("\x03");
    assert_eq!(terminal.wait(), 130, "{terminal}");
    cluster.ready("nothing of hers is left", |this| {
        this.json(ALICE, ["ps"]) == serde_json::json!([])
    });
}
