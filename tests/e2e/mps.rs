//! GPUs that jobs share by MPS, from the command line to a program in a container that finds its GPU's daemon: who
//! shares with whom, to which limits programs are kept, and what they notice of deaths around them.

use std::fs;
use std::path::PathBuf;

use carrel_tests::cluster::{Cluster, Options, Session};
use carrel_tests::image::Image;
use carrel_tests::process::Cmd;
use carrel_tests::user::{ALICE, BOB, ROOT, User};
use serde_json::Value;

const SMALL: [&str; 6] = ["-c", "1", "--mem", "64M", "--isolation", "mps"];
/// The two GPUs of the host that are not in MIG mode.
const CONFIG: &str =
    "[sharing]\ngpus = [2, 3]\nmode = \"mps\"\nmps_control = \"HOST/nvidia-cuda-mps-control\"\n";
/// NVML's number of the mode in which one process may have a context.
const EXCLUSIVE: &str = "3";

/// A host on which two GPUs are shared by MPS and two are in MIG mode, and a CUDA program in alice's home.
fn cluster() -> Cluster {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("h100-mig")],
        agent_configs: vec![CONFIG],
        images: vec![Image::Debian],
        ..Options::default()
    });
    let program = cluster.sandbox().home(ALICE).join("program");
    fs::copy(cluster.host(0).join("nvidia-cuda-mps-control"), program).expect("own directory");
    cluster
}

fn alloc(cluster: &Cluster, user: User, args: &[&str], code: &str) -> Cmd {
    let all = [&["alloc"], &SMALL[..], args, &["--", "sh", "-c", code]].concat();
    cluster.carrel(user, all)
}

fn open<'a>(cluster: &'a Cluster, user: User, name: &str, gpus: &str) -> Session<'a> {
    cluster.open(user, name, &[&SMALL[..], &["--gpus", gpus]].concat())
}

/// The index of a session's GPU.
fn gpu(session: &Session<'_>) -> u64 {
    let record = session.record();
    record["job"]["nodes"][0]["gpus"][0]["index"]
        .as_u64()
        .expect("an index")
}

/// Starts the program in a session; it goes on, and writes to this file.
fn start(cluster: &Cluster, session: &Session<'_>, file: &str, env: &str) -> PathBuf {
    let code = format!("{env} setsid ./program --client >{file} 2>&1 </dev/null &");
    session.ssh([code]).ok();
    cluster.sandbox().home(ALICE).join(file)
}

fn says(cluster: &Cluster, file: &PathBuf, what: &str) {
    cluster.ready(&format!("{} says {what}", file.display()), |_| {
        fs::read_to_string(file).is_ok_and(|text| text.contains(what))
    });
}

fn modes(cluster: &Cluster) -> String {
    fs::read_to_string(cluster.host(0).join("modes")).unwrap_or_default()
}

/// The daemons of the cluster's GPUs.
fn daemons(cluster: &Cluster) -> Vec<i32> {
    let program = cluster
        .host(0)
        .join("nvidia-cuda-mps-control")
        .display()
        .to_string();
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split('\0').take(2).eq([program.as_str(), "-f"])
        })
        .collect()
}

fn note(cluster: &Cluster) -> String {
    let nodes = cluster.json(ROOT, ["nodes"]);
    nodes[0]["gpu_note"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn one_users_sessions_share_a_gpu_and_keep_to_their_limits() {
    let cluster = cluster();
    let granted = alloc(&cluster, ALICE, &["--gpus", "0.5"], "env | grep ^CUDA_MPS | sort").run();
    assert_eq!(granted.code, 0, "{granted}");
    assert!(granted.stderr.contains("(0.5 by mps) (mps)"), "{granted}");
    assert_eq!(
        granted.stdout.lines().collect::<Vec<_>>(),
        [
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=40779M",
            "CUDA_MPS_PIPE_DIRECTORY=/dev/shm/nvidia-mps",
        ]
    );
    let half = open(&cluster, ALICE, "half", "0.5");
    let quarter = open(&cluster, ALICE, "quarter", "0.25");
    let shared = gpu(&half);
    assert_eq!(shared, gpu(&quarter));
    assert_eq!(daemons(&cluster).len(), 1);
    assert!(modes(&cluster).contains(&format!("{shared} {EXCLUSIVE}")));
    for shown in [
        &["ps"][..],
        &["show", "half"],
        &["explain", "half"],
        &["nodes", "--topology", "n0"],
    ] {
        let text = cluster.carrel(ALICE, shown).ok();
        assert!(text.contains("0.5 by mps"), "{shown:?}: {text}");
    }

    // Programs find the daemon, which keeps them to their limits, and to the largest share who forgets its own.
    let first = start(&cluster, &half, "first", "");
    says(&cluster, &first, "50 %, 40779M");
    let second = start(&cluster, &quarter, "second", "");
    says(&cluster, &second, "25 %, 20389M");
    let forgets = "env -u CUDA_MPS_ACTIVE_THREAD_PERCENTAGE -u CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    says(
        &cluster,
        &start(&cluster, &quarter, "greedy", forgets),
        "50 %, 40779M",
    );

    // What is left of it is hers; another has the other GPU, and nobody else is left one.
    let other = open(&cluster, BOB, "other", "0.25");
    assert_ne!(gpu(&other), shared);
    let root = alloc(&cluster, ROOT, &["--gpus", "0.25"], "echo $SLURM_JOB_GPUS").spawn();
    cluster.ready("a third user waits", |this| {
        let waits = this.json(ROOT, ["ps"]).to_string();
        waits.contains("no shared GPU with 0.25 of it free")
    });
    drop(half);
    cluster.ready("its GPU is given back", |this| {
        !this.json(ALICE, ["ps"]).to_string().contains("\"half\"")
    });
    // The program has ended with it, and not with the daemon.
    assert_eq!(fs::read_to_string(&first).expect("own file").lines().count(), 1);
    says(
        &cluster,
        &start(&cluster, &quarter, "later", forgets),
        "25 %, 20389M",
    );
    drop(quarter);
    assert_eq!(root.wait().stdout, format!("{shared}\n"));
    drop(other);
    cluster.ready("nothing is left of it", |this| {
        daemons(this).is_empty() && !modes(this).contains(&format!(" {EXCLUSIVE}"))
    });
    assert_eq!(note(&cluster), "");

    // And two whole ones can be had.
    let whole = [
        "alloc", "-c", "1", "--mem", "64M", "--gpus", "2", "--nvlink", "--",
    ];
    let indices = [&whole[..], &["sh", "-c", "echo $SLURM_JOB_GPUS"]].concat();
    assert_eq!(cluster.carrel(ALICE, indices).ok(), "2,3");
}

/// Broker and agent die, and no program on the GPU notices; its daemon dies, and everybody is told.
#[test]
fn programs_outlive_the_agent_and_the_death_of_a_daemon_is_told() {
    let mut cluster = cluster();
    std::mem::forget(open(&cluster, ALICE, "mine", "0.5"));
    let program = |cluster: &Cluster, file: &str| {
        let code = format!("setsid ./program --client >{file} 2>&1 </dev/null &");
        cluster.ssh(ALICE, ["carrel-mine", &code]).ok();
        cluster.sandbox().home(ALICE).join(file)
    };
    let before = program(&cluster, "before");
    says(&cluster, &before, "50 %, 40779M");
    let daemon = daemons(&cluster);
    cluster.broker.kill9();
    cluster.agents[0].kill9();
    cluster.agents[0].restart();
    cluster.broker.restart();
    cluster.ready("the session is entered again", |this| {
        this.ssh(ALICE, ["carrel-mine", "true"]).run().code == 0
    });
    let after = program(&cluster, "after");
    says(&cluster, &after, "50 %, 40779M");
    assert_eq!(daemons(&cluster), daemon);
    let told = |file: &PathBuf| fs::read_to_string(file).expect("own file").lines().count();
    assert_eq!((told(&before), told(&after)), (1, 1));

    for pid in &daemon {
        let killed = cluster.cmd(ROOT, "kill").args(["-9", &inside(*pid)]).run();
        assert_eq!(killed.code, 0, "{killed}");
    }
    says(&cluster, &before, "the daemon is gone");
    cluster.ready("owner and operator are told", |this| {
        let shown = this.json(ALICE, ["show", "mine"]).to_string();
        shown.contains("the MPS daemon of GPU 2 ended and was started anew")
            && note(this).contains("MPS daemon ended under its jobs")
    });
    says(&cluster, &program(&cluster, "again"), "50 %, 40779M");
    cluster.carrel(ALICE, ["rm", "-f", "mine"]).ok();
    cluster.ready("nothing is left of it", |this| {
        daemons(this).is_empty() && note(this).is_empty() && !modes(this).contains(&format!(" {EXCLUSIVE}"))
    });
}

/// A process's number in the sandbox.
fn inside(pid: i32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let last = line.and_then(|pids| pids.split_whitespace().last());
    last.expect("it runs").to_owned()
}

/// What can never be had says so at once, and a GPU whose daemon does not start is named.
#[test]
fn wrong_turns_are_named() {
    let cluster = cluster();
    alloc(&cluster, ALICE, &["--gpus", "0.5:2"], "true")
        .run()
        .fails(2, &["share"]);
    alloc(&cluster, ALICE, &["--gpus", "1.5"], "true")
        .run()
        .fails(2, &["1.5"]);
    let slices = alloc(&cluster, ALICE, &["--gpus", "1g.10gb"], "true").run();
    assert_eq!(slices.code, 2, "{slices}");
    fs::write(cluster.host(0).join("mps-faults"), "start exit\n").expect("own file");
    let failed = alloc(&cluster, ALICE, &["--gpus", "0.5"], "true").run();
    assert_ne!(failed.code, 0, "{failed}");
    assert!(
        failed.stderr.contains("no CUDA-capable device is detected"),
        "{failed}"
    );
    let gpus: Vec<Value> = cluster.json(ROOT, ["nodes"])[0]["gpus"]
        .as_array()
        .cloned()
        .expect("GPUs");
    assert!(
        gpus[2].to_string().contains("cannot be shared by MPS"),
        "{gpus:?}"
    );
}
