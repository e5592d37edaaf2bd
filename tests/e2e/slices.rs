//! MIG slices and shares of GPUs, from the command line to the container: who gets what, how it is kept from
//! others, what is cut and what is not, and what people are told when it goes wrong.

use std::fs;
use std::path::{Path, PathBuf};

use carrel_tests::cluster::{Cluster, Options, Session};
use carrel_tests::process::Cmd;
use carrel_tests::terminal::Terminal;
use carrel_tests::user::{ALICE, BOB, ROOT};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::processes::{named, parent, ssh_servers};

const SMALL: [&str; 4] = ["-c", "1", "--mem", "64M"];
/// Name of the process of the described hosts' `nvidia-smi`: the kernel keeps 15 bytes.
const SMI: &str = "nvidia-smi";
/// Idle instances may be removed to make others.
const RECUT: &str = "[mig]\nrecut = true\n";
/// Only those of the first GPU.
const RECUT_FIRST: &str = "[mig]\nrecut = [0]\n";

/// A host with two GPUs in MIG mode, the first cut into 1g.10gb at 0 and at 1 and 3g.40gb at 4, and two that are not.
fn cluster(config: &'static str) -> Cluster {
    Cluster::start(&Options {
        hosts: vec![Some("h100-mig")],
        agent_configs: vec![config],
        ..Options::default()
    })
}

fn open<'a>(cluster: &'a Cluster, name: &str, args: &[&str]) -> Session<'a> {
    cluster.open(ALICE, name, &[&SMALL[..], args].concat())
}

/// `carrel alloc … -- sh -c CODE`.
fn alloc(cluster: &Cluster, args: &[&str], code: &str) -> Cmd {
    let all = [&["alloc"], &SMALL[..], args, &["--", "sh", "-c", code]].concat();
    cluster.carrel(ALICE, all)
}

/// What a job holds on its node: "0 3g.40gb at 4", the GPU's index and what of it.
fn held(job: &Value) -> Vec<String> {
    let gpus = job["nodes"][0]["gpus"].as_array().into_iter().flatten();
    let text = |gpu: &Value| format!("{} {}", gpu["index"], gpu["slice"].as_str().unwrap_or("whole"));
    gpus.map(text).collect()
}

/// What a node's GPU is cut into, as its operator sees it: profile, start and UUID.
fn cut(cluster: &Cluster, gpu: usize) -> Vec<(String, String)> {
    let nodes = cluster.json(ROOT, ["nodes"]);
    let instances = nodes[0]["gpus"][gpu]["mig_instances"].as_array().cloned();
    let text = |one: &Value| one.as_str().unwrap_or_default().to_owned();
    let named = |one: Value| {
        (
            format!("{}@{}", text(&one["profile"]), one["start"]),
            text(&one["uuid"]),
        )
    };
    instances.into_iter().flatten().map(named).collect()
}

/// The same without UUIDs.
fn places(cluster: &Cluster, gpu: usize) -> Vec<String> {
    cut(cluster, gpu).into_iter().map(|(place, _)| place).collect()
}

/// What the operator is told of the node's GPUs.
fn note(cluster: &Cluster) -> String {
    let nodes = cluster.json(ROOT, ["nodes"]);
    nodes[0]["gpu_note"].as_str().unwrap_or_default().to_owned()
}

fn faults(cluster: &Cluster, text: &str) {
    fs::write(cluster.host(0).join("faults"), text).expect("own file");
}

/// Has `nvidia-smi mig` wait where `fault` says; gives the file that lets it go on.
fn gate(cluster: &Cluster, fault: &str) -> PathBuf {
    let gate = cluster.host(0).join("gate");
    faults(cluster, &format!("{fault} wait {}\n", gate.display()));
    gate
}

/// Waits until an `nvidia-smi mig` stands at a gate.
fn reached(cluster: &Cluster, gate: &Path) {
    let file = gate.with_extension("reached");
    cluster.ready("nvidia-smi is at work", |_| {
        fs::read_to_string(&file).is_ok_and(|pid| !pid.is_empty())
    });
}

/// Ends every `nvidia-smi` of the cluster, as the death of their machine would.
fn kill_smi(cluster: &Cluster) {
    for pid in named(cluster, SMI) {
        kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
    }
    cluster.ready("nvidia-smi is gone", |this| named(this, SMI).is_empty());
}

/// What programs in a session find: the nodes of slices, and by what they find their GPUs.
fn inside(session: &Session<'_>) -> (Vec<String>, Vec<String>) {
    let output = session
        .ssh(["ls /dev/nvidia-caps; echo $CUDA_VISIBLE_DEVICES; echo $NVIDIA_VISIBLE_DEVICES"])
        .ok();
    let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
    let (nvidia, cuda) = (lines.pop().expect("a line"), lines.pop().expect("a line"));
    assert_eq!(nvidia, cuda);
    lines.sort();
    (lines, cuda.split(',').map(str::to_owned).collect())
}

/// Slices that are there: granted, named by their isolation wherever a GPU is, the job's alone, and free again.
#[test]
fn slices_are_given_shown_and_fenced() {
    let cluster = cluster("");
    let granted = alloc(&cluster, &["--gpus", "1g.10gb:2"], "true").run();
    assert_eq!(granted.code, 0, "{granted}");
    assert!(
        granted.stderr.contains("n0 GPU 0 (1g.10gb at 0, 1) (mig)"),
        "{granted}"
    );

    let pair = open(&cluster, "pair", &["--gpus", "1g.10gb:2"]);
    let job = pair.record()["job"].clone();
    assert_eq!(held(&job), ["0 1g.10gb at 0", "0 1g.10gb at 1"]);
    assert_eq!(job["isolation"], "mig");
    assert_eq!(job["nodes"][0]["gpus"][0]["isolation"], "mig");
    assert_eq!(job["request"]["gpu_unit"], "1g.10gb");
    let holders = &cluster.json(ROOT, ["nodes"])[0]["gpus"][0]["holders"];
    assert_eq!(
        *holders,
        json!([
            { "job": job["id"], "name": "pair", "user": "alice", "slice": "1g.10gb at 0", "isolation": "mig" },
            { "job": job["id"], "name": "pair", "user": "alice", "slice": "1g.10gb at 1", "isolation": "mig" },
        ])
    );
    for (shown, what) in [
        (&["ps"][..], "n0 GPU 0 (1g.10gb at 0, 1) (mig)"),
        (&["show", "pair"], "n0 GPU 0 (1g.10gb at 0, 1) (mig)"),
        (&["explain", "pair"], "GPU0 1g.10gb at 0, 1 (mig)"),
        (&["nodes"], "2/2 H100 80GB HBM3, 1/2 H100 80GB HBM3 in MIG mode"),
        (
            &["nodes", "--topology"],
            "(1g.10gb at 0, 1; mig), free: 3g.40gb at 4",
        ),
    ] {
        let text = cluster.carrel(ALICE, shown).ok();
        assert!(text.contains(what), "{shown:?}: {text}");
    }
    let mut terminal = Terminal::start(&cluster.ssh(ALICE, ["-tt", &pair.alias()]));
    terminal.expect("2 x 1g.10gb of NVIDIA H100 80GB HBM3 (mig)");
    drop(terminal);

    let (nodes, visible) = inside(&pair);
    let uuids: Vec<String> = cut(&cluster, 0).into_iter().map(|(_, uuid)| uuid).collect();
    assert_eq!(visible, uuids[..2]);
    assert!(visible.iter().all(|uuid| uuid.starts_with("MIG-")), "{visible:?}");
    assert_eq!(nodes.len(), 4, "two for each slice: {nodes:?}");
    // The neighbour's, made by hand in this container, are of no use there; one's own are.
    let neighbour = cluster.open(BOB, "neighbour", &[&SMALL[..], &["--gpus", "3g.40gb"]].concat());
    let (of_neighbour, visible) = inside(&neighbour);
    assert_eq!(visible, uuids[2..]);
    let server = ssh_servers(&cluster);
    for server in &server {
        let root = PathBuf::from(format!("/proc/{}/root/tmp", parent(*server)));
        for name in nodes.iter().chain(&of_neighbour) {
            let minor = name.trim_start_matches("nvidia-cap");
            let made = std::process::Command::new("mknod")
                .args(["-m", "666"])
                .arg(root.join(name))
                .args(["c", "61", minor])
                .status();
            assert!(made.expect("mknod").success());
        }
    }
    let tried = |session: &Session<'_>, name: &str| session.ssh([format!("cat /tmp/{name}")]).run().stderr;
    for (own, name) in nodes
        .iter()
        .map(|name| (true, name))
        .chain(of_neighbour.iter().map(|name| (false, name)))
    {
        let refused = if own {
            "No such device or address"
        } else {
            "Operation not permitted"
        };
        let said = tried(&pair, name);
        assert!(said.contains(refused), "{name}, own {own}: {said}");
    }
    assert!(
        pair.record()["job"]["nodes"][0]["fence"]["checks"]
            .as_u64()
            .is_some()
    );

    // Both are held: the next waits, says for what, and has them when they are given back.
    let waiting = alloc(
        &cluster,
        &["--gpus", "1g.10gb", "--name", "waiter"],
        "echo $CUDA_VISIBLE_DEVICES",
    )
    .spawn();
    cluster.ready("it waits for a slice", |this| {
        this.json(ALICE, ["ps"])
            .to_string()
            .contains("no free slice 1g.10gb")
    });
    drop(pair);
    let output = waiting.wait();
    assert!(uuids[..2].contains(&output.stdout.trim().to_owned()), "{output}");
    drop(neighbour);
}

/// Who asks for what cannot be there is told so at once, in words that say what to do.
#[test]
fn wrong_turns_are_named() {
    let cluster = cluster("");
    for (args, why) in [
        (&["--gpus", "0.0001"][..], "a share of a GPU is 0.001 to 0.999"),
        (&["--gpus", "1g.10"], "MIG slices (1g.10gb:2) or a share"),
        (&["--gpus", "0.5:2"], "a share is of one GPU: 0.5"),
        (
            &["--gpus", "1g.10gb:2", "--nvlink"],
            "slices and shares are not joined",
        ),
        (
            &["--gpus", "1g.10gb", "--isolation", "exclusive"],
            "kept apart by the hardware",
        ),
        (&["--gpus", "9g.90gb"], "no slice 9g.90gb on 1 node"),
        (
            &["--gpus", "1g.10gb:3"],
            "fewer than 3 slices 1g.10gb and no GPU that may be cut anew on 1 node",
        ),
        (
            &["--gpus", "2g.20gb"],
            "no slice 2g.20gb and no GPU that may be cut anew on 1 node",
        ),
        (&["--gpus", "a100:1g.10gb"], "no a100 on 1 node"),
        (&["--gpus", "3"], "fewer than 3 GPUs on 1 node"),
        (&["--gpus", "0.5"], "no GPU that jobs may share on 1 node"),
    ] {
        alloc(&cluster, args, "true").run().fails(2, &[why]);
    }
    assert_eq!(cluster.json(ALICE, ["ps"]), json!([]));
    // The smallest that is there and large enough; then a whole GPU, as nothing smaller is left.
    let twenty = open(&cluster, "twenty", &["--gpu-mem", "20G"]);
    assert_eq!(held(&twenty.record()["job"]), ["0 3g.40gb at 4"]);
    let whole = open(&cluster, "whole", &["--gpu-mem", "20G"]);
    let record = whole.record();
    assert!(
        ["2 whole", "3 whole"].contains(&&*held(&record["job"])[0]),
        "{record}"
    );
    assert_eq!(record["job"]["isolation"], "exclusive");
}

/// Idle GPUs are cut for whoever comes; what others have stays as it is, and what is left is used again.
#[test]
fn idle_gpus_are_cut_and_neighbours_notice_nothing() {
    let cluster = cluster(RECUT);
    let neighbour = cluster.open(BOB, "neighbour", &[&SMALL[..], &["--gpus", "3g.40gb"]].concat());
    assert_eq!(held(&neighbour.record()["job"]), ["0 3g.40gb at 4"]);
    let before = cut(&cluster, 0);
    let instances = |cluster: &Cluster| {
        let listed = cluster.nvidia_smi(0).args(["mig", "-i", "0", "-lgi"]).ok();
        let of_three = listed.lines().filter(|line| line.contains("3g.40gb"));
        of_three.map(str::to_owned).collect::<Vec<_>>()
    };
    let number = instances(&cluster);

    // Of the second GPU, which is not cut at all, both could be had; they are packed beside the neighbour.
    let mut terminal = cluster.terminal(
        ALICE,
        [&["alloc", "--gpus", "2g.20gb:2", "--name", "cut"], &SMALL[..]].concat(),
    );
    terminal.expect("Granted job allocation");
    terminal.expect("(mig)");
    terminal.ask(
        "echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | grep -c MIG- | sed s/^/slices=/",
        "slices=2",
    );
    let job = cluster.json(ALICE, ["show", "cut"])["job"].clone();
    assert_eq!(held(&job), ["0 2g.20gb at 0", "0 2g.20gb at 2"]);
    let after = cut(&cluster, 0);
    assert_eq!(after[2], before[2], "the neighbour's slice is the same device");
    assert_eq!(instances(&cluster), number, "and the same GPU instance");
    assert_eq!(inside(&neighbour).1, [before[2].1.clone()]);
    terminal.line("exit");
    assert_eq!(terminal.wait(), 0, "{terminal}");

    // They stay, and are given again without a cut.
    cluster.ready("they are released", |this| this.json(ALICE, ["ps"]) == json!([]));
    faults(
        &cluster,
        "cgi * Unknown Error\ndci * Unknown Error\ndgi * Unknown Error\n",
    );
    let again = alloc(&cluster, &["--gpus", "2g.20gb:2"], "echo $CUDA_VISIBLE_DEVICES").ok();
    assert_eq!(again, format!("{},{}", after[0].1, after[1].1));
    faults(&cluster, "");

    // Whoever is idle goes, and nobody else: what would take a held slice's place waits for it.
    let all = alloc(&cluster, &["--gpus", "7g.80gb:2"], "echo started").spawn();
    cluster.ready("it waits for the neighbour", |this| {
        this.json(ALICE, ["ps"])
            .to_string()
            .contains("fewer than 2 free slices 7g.80gb")
    });
    drop(neighbour);
    let output = all.wait();
    assert_eq!(output.stdout, "started\n", "{output}");
    cluster.ready("the operator sees what they are cut into", |this| {
        [places(this, 0), places(this, 1)] == [["7g.80gb@0"], ["7g.80gb@0"]]
    });
}

/// Several slices for one job are cut out of a larger one that is idle.
#[test]
fn slices_share_the_place_of_an_idle_one() {
    let cluster = cluster("[mig]\nrecut = [1]\n");
    alloc(&cluster, &["--gpus", "7g.80gb"], "true").ok();
    cluster.ready("the GPU is one idle slice", |this| {
        places(this, 1) == ["7g.80gb@0"]
    });
    let pair = alloc(&cluster, &["--gpus", "2g.20gb:2"], "echo $CUDA_VISIBLE_DEVICES").ok();
    assert_eq!(pair.matches("MIG-").count(), 2, "{pair}");
}

/// A cut that fails is undone, and told to the user and to the operator; a GPU that is left in parts is not cut again.
#[test]
fn a_failed_cut_is_undone_and_told() {
    let mut cluster = cluster(RECUT_FIRST);
    let before = places(&cluster, 0);
    std::mem::forget(cluster.open(BOB, "neighbour", &[&SMALL[..], &["--gpus", "3g.40gb"]].concat()));
    // Whoever wants four slices' room wants the two that are idle gone, and they come back.
    faults(&cluster, "cgi 5:0 Insufficient Resources\n");
    let failed = alloc(&cluster, &["--gpus", "4g.40gb"], "true").run();
    assert_eq!(failed.code, 1, "{failed}");
    let why = "GPU 0 could not be cut into 4g.40gb at 0, and is as before";
    for part in [why, "Insufficient Resources"] {
        assert!(failed.stderr.contains(part), "{part}: {failed}");
    }
    assert_eq!(failed.stderr.matches(why).count(), 1, "said once: {failed}");
    cluster.ready("the operator is told", |this| note(this).contains(why));
    let shown = cluster.carrel(ROOT, ["nodes"]).ok();
    assert!(shown.contains(why), "{shown}");
    assert_eq!(places(&cluster, 0), before);
    assert_eq!(cluster.json(ALICE, ["ps"]), json!([]), "nothing hangs");

    // Once it works nothing is to be told any more.
    faults(&cluster, "");
    alloc(&cluster, &["--gpus", "4g.40gb"], "true").ok();
    cluster.ready("nothing is told any more", |this| note(this).is_empty());

    // What cannot be undone is left alone until an operator has seen to it; the neighbour goes on.
    faults(&cluster, "cgi * Unknown Error\n");
    let failed = alloc(&cluster, &["--gpus", "2g.20gb"], "true").run();
    assert_eq!(failed.code, 1, "{failed}");
    assert!(failed.stderr.contains("nor made as before"), "{failed}");
    cluster.ready("the operator is asked", |this| {
        note(this).contains("GPU 0 is not cut anew until an operator has seen to it")
    });
    faults(&cluster, "");
    let refused = alloc(&cluster, &["--gpus", "2g.20gb"], "true").run();
    assert!(
        refused
            .stderr
            .contains("no slice 2g.20gb and no GPU that may be cut anew"),
        "{refused}"
    );
    let visible = cluster.ssh(BOB, ["carrel-neighbour", "echo $CUDA_VISIBLE_DEVICES"]);
    assert!(visible.ok().starts_with("MIG-"), "the neighbour goes on");
    // He makes what he likes, and it is cut again.
    cluster
        .nvidia_smi(0)
        .args(["mig", "-i", "0", "-cgi", "14:0", "-C"])
        .ok();
    cluster.agents[0].kill9();
    cluster.agents[0].restart();
    cluster.ready("slices are cut again", |this| {
        note(this).is_empty() && alloc(this, &["--gpus", "4g.40gb"], "true").run().code == 0
    });
    cluster.carrel(BOB, ["rm", "-f", "neighbour"]).ok();
}

/// Broker, agent and nvidia-smi die at once, with the GPU in parts: who waited gets his slice, and his neighbour has
/// noticed nothing.
#[test]
fn everything_dies_in_the_middle_of_a_cut() {
    let mut cluster = cluster(RECUT_FIRST);
    std::mem::forget(cluster.open(BOB, "neighbour", &[&SMALL[..], &["--gpus", "3g.40gb"]].concat()));
    let its = cut(&cluster, 0)[2].clone();
    // An instance without its device, and after that a GPU without the instance.
    for (fault, profile) in [("dgi 7", "4g.40gb"), ("cgi 14:0", "2g.20gb")] {
        let gate = gate(&cluster, fault);
        let name = format!("cut-{profile}").replace('.', "-");
        let request = ["open", &name, "--editor", "none", "--gpus", profile];
        let opening = cluster.carrel(ALICE, [&request, &SMALL[..]].concat()).spawn();
        reached(&cluster, &gate);
        cluster.broker.kill9();
        cluster.agents[0].kill9();
        kill_smi(&cluster);
        faults(&cluster, "");
        fs::remove_file(gate.with_extension("reached")).expect("it was there");
        cluster.agents[0].restart();
        cluster.broker.restart();
        drop(opening.wait());
        cluster.ready("it runs on its slice", |this| {
            let job = &this.json(ALICE, ["show", &name])["job"];
            job["state"] == "RUNNING" && held(job) == [format!("0 {profile} at 0")]
        });
        let uuid = cluster.ssh(ALICE, [&format!("carrel-{name}"), "echo $CUDA_VISIBLE_DEVICES"]);
        cluster.ready("the operator sees the slice", |this| {
            places(this, 0) == [&format!("{profile}@0"), "3g.40gb@4"]
        });
        assert_eq!(uuid.ok(), cut(&cluster, 0)[0].1);
        assert_eq!(cut(&cluster, 0)[1], its, "the neighbour's is the same device");
        cluster.carrel(ALICE, ["rm", "-f", &name]).ok();
    }
    let visible = cluster.ssh(BOB, ["carrel-neighbour", "echo $CUDA_VISIBLE_DEVICES"]);
    assert_eq!(visible.ok(), its.1);
    cluster.carrel(BOB, ["rm", "-f", "neighbour"]).ok();
}

/// MIG mode is switched off under a session: it goes on, the operator is told, and its GPU is given to nobody before
/// it ends.
#[test]
fn mig_mode_changes_behind_our_back() {
    let mut cluster = cluster("");
    std::mem::forget(open(&cluster, "mine", &["--gpus", "1g.10gb"]));
    let visible = |cluster: &Cluster| {
        cluster
            .ssh(ALICE, ["carrel-mine", "echo $CUDA_VISIBLE_DEVICES"])
            .ok()
    };
    let before = visible(&cluster);
    fs::write(cluster.host(0).join("mig"), "gpu 0 off off\ngpu 1 on on\n").expect("own file");
    // Who is the first to be placed there finds out, and with him everybody.
    let failed = alloc(&cluster, &["--gpus", "1g.10gb"], "true").run();
    assert_eq!(failed.code, 1, "{failed}");
    assert!(failed.stderr.contains("GPU 0 is not in MIG mode"), "{failed}");
    let told =
        |this: &Cluster| note(this).contains("GPU 0 is not in MIG mode any more, and was given in slices");
    cluster.ready("the operator is told", told);
    let all = ["--gpus", "3", "-c", "1", "--mem", "64M"];
    let now = |cluster: &Cluster| {
        cluster.json(ALICE, [&["alloc", "--test-only"], &all[..]].concat())["choices"][0]["now"].clone()
    };
    assert_eq!(now(&cluster), false, "it is not given as a whole either");
    cluster.agents[0].kill9();
    cluster.agents[0].restart();
    cluster.ready("the session is entered again", |this| {
        this.ssh(ALICE, ["carrel-mine", "true"]).run().code == 0
    });
    cluster.ready("the operator is still told", told);
    assert_eq!(visible(&cluster), before);
    assert_eq!(now(&cluster), false);
    cluster.carrel(ALICE, ["rm", "-f", "mine"]).ok();
    cluster.ready("it is a GPU like others", |this| {
        now(this) == true && note(this).is_empty()
    });
}

/// Shares fill one GPU before they open the next; whole GPUs are whole, and a node that shares none says so.
#[test]
fn shares_are_packed_and_kept_from_whole_gpus() {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("2gpu-phb"), Some("a100pcie-bridge-pairs")],
        agent_configs: vec!["[sharing]\ngpus = \"all\"\n"],
        ..Options::default()
    });
    let granted = alloc(&cluster, &["--gpus", "0.5"], "echo $SLURM_JOB_GPUS").run();
    assert_eq!(granted.code, 0, "{granted}");
    assert!(
        granted.stderr.contains("(0.5 by time-slice) (cooperative)"),
        "{granted}"
    );
    let half = |name: &str| {
        let session = open(&cluster, name, &["--gpus", "0.5"]);
        let job = session.record()["job"].clone();
        assert_eq!(job["nodes"][0]["node"], "n0");
        assert_eq!(job["isolation"], "cooperative");
        assert_eq!(job["nodes"][0]["gpus"][0]["isolation"], "cooperative");
        let index = job["nodes"][0]["gpus"][0]["index"].as_u64().expect("an index");
        (index, session)
    };
    let (first, one) = half("one");
    let (second, two) = half("two");
    assert_eq!(first, second, "the second half of the same GPU");
    let (third, three) = half("three");
    assert_ne!(third, first);
    for shown in [
        &["ps"][..],
        &["show", "one"],
        &["explain", "one"],
        &["nodes", "--topology", "n0"],
    ] {
        let text = cluster.carrel(ALICE, shown).ok();
        assert!(
            text.contains("0.5 by time-slice") && text.contains("cooperative"),
            "{shown:?}: {text}"
        );
    }
    // Both see the GPU itself.
    let uuid = |session: &Session<'_>| session.ssh(["echo $CUDA_VISIBLE_DEVICES"]).ok();
    assert_eq!(uuid(&one), uuid(&two));

    // A whole GPU is to be had elsewhere only, though half of one is idle here.
    let whole = alloc(
        &cluster,
        &["--gpus", "1", "--nodes", "1"],
        "echo $SLURMD_NODENAME",
    )
    .ok();
    assert_eq!(whole, "n1");
    let waiting = alloc(&cluster, &["--gpus", "1", "-w", "n0"], "echo $SLURM_JOB_GPUS").spawn();
    cluster.ready("it waits for a whole one", |this| {
        this.json(ALICE, ["ps"]).to_string().contains("no free GPU")
    });
    drop(three);
    assert_eq!(waiting.wait().stdout, format!("{third}\n"));

    // More than is left of any, and what nobody shares.
    let (_, fill) = half("fill");
    let plan = cluster.json(ALICE, ["alloc", "--test-only", "--gpus", "0.501"]);
    assert_eq!(plan["choices"][0]["now"], false, "{plan}");
    assert!(
        plan.to_string().contains("no shared GPU with 0.501 of it free"),
        "{plan}"
    );
    alloc(&cluster, &["--gpus", "0.5", "-w", "n1"], "true")
        .run()
        .fails(2, &["no GPU that jobs may share"]);
    alloc(&cluster, &["--gpus", "0.5", "--isolation", "mps"], "true")
        .run()
        .fails(2, &["no GPU that jobs may share"]);
    drop(fill);
}
