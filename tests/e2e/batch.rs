//! Batch jobs from the command line to the container and back: what they run, where their output goes, how they end,
//! and what becomes of them when programs die.

use std::os::unix::fs::PermissionsExt;

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::{ALICE, BOB, ROOT};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::processes::{named, ssh_servers};
use crate::shared::{self, SMALL};

fn answers(cluster: &Cluster) {
    cluster.ready("the broker answers", |this| {
        this.carrel(ROOT, ["ps"]).run().code == 0
    });
}

#[test]
fn a_script_runs_as_its_user_where_it_was_submitted() {
    let cluster = shared::cluster();
    let script = "#!/bin/bash\n\
        #SBATCH --job-name=hello --output=out-%x-%4j.txt # where it goes\n\
        #SBATCH -n 4 --ntasks-per-node=4\n\
        \n\
        echo \"$(id -un) $PWD $# $2\"\n\
        echo \"$SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_NTASKS $SLURM_RESTART_COUNT $SLURM_SUBMIT_DIR $SEED [$SSH_CLIENT]\"\n\
        echo error >&2\n\
        #SBATCH --nonsense\n";
    cluster.write(ALICE, "hello.sh", script);
    let args = ["submit", "--mem", "64M", "hello.sh", "a", "b c"];
    let cmd = cluster.cmd_with(ALICE, &[("SEED", "7")], cluster.sandbox().program("carrel"));
    let submitted = cmd.args(args).run();
    assert_eq!(submitted.code, 0, "{submitted}");
    assert!(
        submitted.stderr.contains("hello.sh:8: this line is ignored"),
        "{submitted}"
    );
    let id = submitted
        .stdout
        .trim()
        .strip_prefix("Submitted batch job ")
        .expect("its id")
        .to_owned();
    let job = cluster.until(&id, "COMPLETED");
    let here = cluster.sandbox().home(ALICE).display().to_string();
    let wanted = format!("alice {here} 2 b c\n{id} hello 4 0 {here} 7 []\nerror\n");
    let file = format!("out-hello-{id:0>4}.txt");
    assert_eq!(cluster.read(ALICE, &file), wanted, "{job}");
    let owner = std::fs::metadata(cluster.home(ALICE, &file)).expect("its file");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), ALICE.uid);
    assert_eq!(cluster.carrel(ALICE, ["logs", &id]).run().stdout, wanted);
    assert_eq!(cluster.carrel(ALICE, ["logs", "-n", "1", &id]).ok(), "error");
    assert_eq!(
        (&job["exit_code"], &job["kind"]),
        (&Value::from(0), &Value::from("batch")),
        "{job}"
    );
    assert_eq!(job["batch"]["stdout"], file, "{job}");
    // It is seen by all, and what it says by its user.
    let refused = cluster.carrel(BOB, ["logs", &id]).run();
    refused.fails(5, &["oneself"]);
}

/// Each end is its own state, whatever number a command chooses.
#[test]
fn ends_have_their_states() {
    let cluster = shared::cluster();
    let lines = [
        ("exit 3", "FAILED", 3),
        // carrel-init's own word for the end of a lease.
        ("exit 75", "FAILED", 75),
        ("kill -SEGV $$", "FAILED", 139),
        ("true", "COMPLETED", 0),
        ("nonsense", "FAILED", 127),
    ];
    let jobs = lines.map(|(line, ..)| cluster.submit_small(ALICE, &["--wrap", line]));
    for ((line, state, code), id) in lines.iter().zip(&jobs) {
        let job = cluster.until(id, state);
        assert_eq!(job["exit_code"], *code, "{line}: {job}");
    }
    let memory = cluster.submit_small(
        ALICE,
        &[
            "--mem",
            "64M",
            "--wrap",
            "x=$(head -c 300M /dev/zero | tr '\\0' x); echo ${#x}",
        ],
    );
    let trap = "trap 'echo told; exit 9' TERM; echo up; while :; do sleep 0.1; done";
    let late = cluster.submit_small(ALICE, &["-t", "0:10", "--wrap", trap]);
    let unwanted = cluster.submit_small(ALICE, &["--wrap", trap]);
    cluster.says(ALICE, &unwanted, "up");
    cluster.carrel(BOB, ["cancel", &unwanted]).run().fails(5, &[]);
    cluster.carrel(ALICE, ["cancel", &unwanted]).ok();
    cluster.until(&unwanted, "CANCELLED");
    cluster.until(&late, "TIMEOUT");
    for id in [&late, &unwanted] {
        let said = cluster.carrel(ALICE, ["logs", id]).ok();
        // Shells tell of children that were ended.
        let own: Vec<&str> = said.lines().filter(|line| *line != "Terminated").collect();
        assert_eq!(own, ["up", "told"], "it is asked to end, and heard");
    }
    cluster.until(&memory, "OUT_OF_MEMORY");
    // Of what is over nothing is left to do, but to do it again.
    cluster.carrel(ALICE, ["cancel", &unwanted]).ok();
    cluster.carrel(ALICE, ["requeue", &unwanted]).ok();
    cluster.until(&unwanted, "RUNNING");
    cluster.carrel(ALICE, ["cancel", &unwanted]).ok();
    cluster.until(&unwanted, "CANCELLED");
}

#[test]
fn what_is_submitted_is_waited_for_and_depended_on() {
    let cluster = shared::cluster();
    let wait = |args: &[&str]| {
        cluster
            .carrel(ALICE, [&["submit", "-W"][..], &SMALL, args].concat())
            .run()
    };
    let failed = wait(&["--wrap", "exit 4"]);
    assert_eq!(failed.code, 4, "{failed}");
    assert!(failed.stderr.contains("exit code 4"), "{failed}");
    assert_eq!(wait(&["--", "sh", "-c", "exit 0"]).code, 0);
    let from_stdin = cluster.carrel(ALICE, [&["submit", "-W", "-o", "stdin.out"][..], &SMALL].concat());
    assert_eq!(from_stdin.stdin("#!/bin/sh\necho heard\n").run().code, 0);
    assert_eq!(cluster.read(ALICE, "stdin.out"), "heard\n");
    let first = cluster.submit_small(ALICE, &["--hold", "--wrap", "exit 1"]);
    let ok = cluster.submit_small(ALICE, &["-d", &format!("afterok:{first}"), "--wrap", "true"]);
    let not_ok = cluster.submit_small(ALICE, &["-d", &format!("afternotok:{first}"), "--wrap", "true"]);
    assert!(
        cluster.show(&ok)["reason"]
            .as_str()
            .is_some_and(|why| why.starts_with("Dependency"))
    );
    let waits = cluster.carrel(ALICE, ["logs", &first]).run();
    waits.fails(1, &["has written nothing yet"]);
    cluster.carrel(ALICE, ["release", &first]).ok();
    cluster.until(&not_ok, "COMPLETED");
    assert!(
        cluster.show(&ok)["reason"]
            .as_str()
            .is_some_and(|why| why.contains("NeverSatisfied"))
    );
    cluster.carrel(ALICE, ["cancel", &ok]).ok();
    let plan = cluster
        .carrel(
            ALICE,
            [&["submit", "--test-only"][..], &SMALL, &["--", "true"]].concat(),
        )
        .ok();
    assert!(plan.contains("now"), "{plan}");
}

/// Output is followed from anywhere, without a byte lost, while programs on the way die.
#[test]
fn logs_are_followed_over_deaths() {
    let mut cluster = Cluster::start(&Options::default());
    let script = "#!/bin/sh\n\
        n=0; while [ $n -lt 200 ]; do n=$((n+1)); echo line $n; [ -e go ] || sleep 0.1; done\n";
    cluster.write(ALICE, "count.sh", script);
    let id = cluster.submit_small(ALICE, &["-o", "count.out", "count.sh"]);
    let reader = cluster.carrel(ALICE, ["logs", "-f", &id]).spawn();
    cluster.says(ALICE, &id, "line 5\n");
    cluster.gateway.kill9();
    cluster.gateway.restart();
    cluster.says(ALICE, &id, "line 15\n");
    cluster.agents[0].kill9();
    cluster.agents[0].restart();
    // The logger dies, and the server that asked for the command.
    for pid in named(&cluster, "carrel-log")
        .into_iter()
        .chain(ssh_servers(&cluster))
    {
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
    }
    cluster.says(ALICE, &id, "line 25\n");
    cluster.write(ALICE, "go", "");
    let all: String = (1..=200).map(|n| format!("line {n}\n")).collect();
    let followed = reader.wait();
    assert_eq!(followed.stdout, all, "{followed}");
    cluster.until(&id, "COMPLETED");
    assert_eq!(cluster.read(ALICE, "count.out"), all);
    assert_eq!(cluster.carrel(ALICE, ["logs", &id]).run().stdout, all);
}

/// More than the node keeps: the file has all of it, the logs the newest, and who was slow is told of the gap.
#[test]
fn of_much_output_the_newest_is_kept() {
    let cluster = shared::cluster();
    let line = "seq 1 6000000; echo over >&2";
    let id = cluster.submit_small(ALICE, &["-o", "much.out", "-e", "much.err", "--wrap", line]);
    cluster.until(&id, "COMPLETED");
    let file = cluster.read(ALICE, "much.out");
    assert!(
        file.len() > 40 << 20 && file.ends_with("\n6000000\n"),
        "{} bytes",
        file.len()
    );
    assert_eq!(cluster.read(ALICE, "much.err"), "over\n");
    let kept = cluster.carrel(ALICE, ["logs", &id]).run();
    assert!(
        (16 << 20..=32 << 20).contains(&kept.bytes.len()),
        "{} bytes",
        kept.bytes.len()
    );
    assert!(kept.stdout.ends_with("6000000\nover\n") || kept.stdout.contains("over\n"));
    assert!(
        kept.stderr.contains("bytes are no longer kept here"),
        "{}",
        kept.stderr
    );
    std::fs::remove_file(cluster.home(ALICE, "much.out")).expect("its file");
}

/// A run goes on while agent and broker are away, and how it ended is not lost.
#[test]
fn an_end_that_nobody_sees_is_known_later() {
    let mut cluster = Cluster::start(&Options::default());
    let line = "echo up; until [ -e go ]; do sleep 0.1; done; exit 7";
    let id = cluster.submit_small(ALICE, &["--gpus", "1", "--wrap", line]);
    cluster.says(ALICE, &id, "up");
    cluster.agents[0].kill9();
    cluster.write(ALICE, "go", "");
    cluster.ready("its container has ended", |this| ssh_servers(this).is_empty());
    cluster.broker.kill9();
    cluster.broker.restart();
    cluster.agents[0].restart();
    answers(&cluster);
    let job = cluster.until(&id, "FAILED");
    assert_eq!(job["exit_code"], 7, "{job}");
    assert_eq!(cluster.carrel(ALICE, ["logs", &id]).ok(), "up");
    cluster.ready("its GPU is free", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 8
    });
}

/// The broker dies while a job waits, and while it runs; neither is lost, and neither runs twice.
#[test]
fn the_broker_dies_in_each_phase() {
    let mut cluster = Cluster::start(&Options::default());
    let line = "echo run >> runs; until [ -e go ]; do sleep 0.1; done";
    let first = cluster.submit_small(ALICE, &["--gpus", "8", "--wrap", line]);
    let second = cluster.submit_small(ALICE, &["--gpus", "8", "--wrap", line]);
    let waiter = cluster.carrel(ALICE, ["logs", "-f", &second]).spawn();
    for state in ["RUNNING", "RUNNING"] {
        cluster.until(&first, state);
        assert_eq!(cluster.show(&second)["state"], "PENDING");
        cluster.broker.kill9();
        cluster.broker.restart();
        answers(&cluster);
    }
    cluster.write(ALICE, "go", "");
    cluster.until(&first, "COMPLETED");
    cluster.until(&second, "COMPLETED");
    assert_eq!(waiter.wait().code, 0);
    assert_eq!(cluster.read(ALICE, "runs"), "run\nrun\n");
}

#[test]
fn a_job_that_is_queued_again_runs_anew() {
    let cluster = shared::cluster();
    let line = "echo run $SLURM_RESTART_COUNT; [ $SLURM_RESTART_COUNT = 1 ] || sleep 1000";
    let id = cluster.submit_small(ALICE, &["-o", "again.out", "--wrap", line]);
    cluster.says(ALICE, &id, "run 0");
    cluster.carrel(ALICE, ["requeue", &id]).ok();
    let job = cluster.until(&id, "COMPLETED");
    assert_eq!(
        (&job["restarts"], &job["exit_code"]),
        (&Value::from(1), &Value::from(0)),
        "{job}"
    );
    assert_eq!(
        cluster.read(ALICE, "again.out"),
        "run 0\nrun 1\n",
        "nothing that was written is lost"
    );
    assert_eq!(cluster.carrel(ALICE, ["logs", &id]).ok(), "run 1");
}

/// What fails at once on one node waits for another one, and says so.
#[test]
fn what_failed_at_once_runs_on_another_node() {
    let cluster = Cluster::start(&Options {
        hosts: vec![None, None],
        ..Options::default()
    });
    let line = "echo $SLURMD_NODENAME; [ $SLURM_RESTART_COUNT = 1 ]";
    let id = cluster.submit_small(ALICE, &["-o", "where.out", "--wrap", line]);
    cluster.until(&id, "FAILED");
    let first = cluster.read(ALICE, "where.out").trim().to_owned();
    let other = if first == "n0" { "n1" } else { "n0" };
    // The other one is taken as a whole.
    let nodes = cluster.json(ROOT, ["nodes"]);
    let nodes = nodes.as_array().expect("nodes");
    let node = nodes
        .iter()
        .find(|node| node["name"] == other)
        .expect("it is there");
    let cpus = node["cpus"].to_string();
    let all = [
        "submit",
        "--parsable",
        "-w",
        other,
        "-c",
        &cpus,
        "--mem",
        "64M",
        "--wrap",
        "sleep 1000",
    ];
    let blocker = cluster.carrel(BOB, all).ok().trim().to_owned();
    cluster.until(&blocker, "RUNNING");
    cluster.carrel(ALICE, ["requeue", &id]).ok();
    let job = cluster.until(&id, "PENDING");
    assert_eq!(job["keeps_off"][0]["node"], first.as_str(), "{job}");
    let shown = cluster.carrel(ALICE, ["show", &id]).ok();
    assert!(shown.contains("it failed there at once"), "{shown}");
    let why = cluster.carrel(ALICE, ["explain", &id]).ok();
    assert!(why.contains(&format!("keeps off {first} until")), "{why}");
    cluster.carrel(BOB, ["cancel", &blocker]).ok();
    cluster.until(&id, "COMPLETED");
    assert_eq!(cluster.read(ALICE, "where.out"), format!("{first}\n{other}\n"));
}

/// What is no notebook is refused before it is submitted, and what its image lacks is said in one line.
#[test]
fn a_notebook_says_what_it_lacks() {
    let cluster = shared::cluster();
    cluster.write(ALICE, "broken.ipynb", "{\"nbformat\": 4,");
    let refused = cluster.carrel(ALICE, ["submit", "broken.ipynb"]).run();
    refused.fails(2, &["broken.ipynb is no Jupyter notebook"]);
    let cells = r##"[{"cell_type": "code", "metadata": {}, "outputs": [], "source": ["#SBATCH -J lab -o lab.out\n", "1 + 1"]}]"##;
    let text = format!(r#"{{"nbformat": 4, "nbformat_minor": 2, "metadata": {{}}, "cells": {cells}}}"#);
    cluster.write(ALICE, "lab.ipynb", &text);
    let id = cluster.submit_small(ALICE, &["--image", "local/busybox-only", "lab.ipynb"]);
    let job = cluster.until(&id, "FAILED");
    // Not even a shell is there.
    assert_eq!(job["name"], "lab", "{job}");
    let id = cluster.submit_small(ALICE, &["lab.ipynb"]);
    let job = cluster.until(&id, "FAILED");
    assert_eq!(job["exit_code"], 1, "{job}");
    let said = cluster.read(ALICE, "lab.out");
    assert!(
        said.starts_with("carrel: a notebook needs") && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(
        cluster.read(ALICE, "lab.ipynb"),
        text,
        "what did not run is as it was"
    );
    let refused = cluster
        .carrel(ALICE, ["submit", "--notebook-output", "x", "--wrap", "true"])
        .run();
    refused.fails(2, &["--notebook-output is for notebooks"]);
}

/// A gang's command runs on its first node, once every container of it is ready, and its end is the gang's.
#[test]
fn a_gang_runs_on_its_first_node() {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("hgx-h100"), Some("hgx-h100")],
        ..Options::default()
    });
    let line = "echo $SLURMD_NODENAME $SLURM_NODEID $SLURM_NNODES $SLURM_JOB_NODELIST $CARREL_GO; exit 2";
    let args = ["-N2", "--gpus-per-node", "8", "-o", "gang.out", "--wrap", line];
    let id = cluster.submit_small(ALICE, &args);
    let job = cluster.until(&id, "FAILED");
    assert_eq!(job["exit_code"], 2, "{job}");
    assert_eq!(cluster.read(ALICE, "gang.out"), "n0 0 2 n[0-1] 1\n");
    cluster.ready("all GPUs are free", |this| {
        let nodes = this.json(ROOT, ["nodes"]);
        nodes
            .as_array()
            .is_some_and(|all| all.iter().all(|node| node["gpus_free"] == 8))
    });
}

/// GPUs that are lent to a job that gives way come back to a session within the grace of its QOS, which is longer than the
/// cluster's and than it takes; the job waits again, and ends well.
#[test]
fn a_session_recalls_what_is_lent() {
    let cluster = Cluster::start(&Options {
        broker_config: "grace = \"1s\"\n[queue.preemption]\nmin_runtime = \"0s\"\n".to_owned(),
        ..Options::default()
    });
    let qos = [
        "admin",
        "qos",
        "add",
        "lent",
        "--preemptible",
        "requeue",
        "--grace",
        "25",
    ];
    cluster.carrel(ROOT, qos).ok();
    let line = "trap 'sleep 3; echo saved; exit 1' TERM; echo run $SLURM_RESTART_COUNT; \
        until [ -e done ]; do sleep 0.1; done";
    let id = cluster.submit_small(
        BOB,
        &["-q", "lent", "--gpus", "8", "-o", "lent.out", "--wrap", line],
    );
    cluster.says(BOB, &id, "run 0");
    // It is granted at once, though all is held: within the time of grace.
    let recall = [
        "alloc",
        "--gpus",
        "2",
        "-c",
        "1",
        "--mem",
        "64M",
        "--immediate=30",
        "--",
        "sh",
        "-c",
    ];
    let explain = format!(
        "until [ -e /tmp/x ]; do sleep 0.1; [ -e {} ] && break; done",
        cluster.home(ALICE, "leave").display()
    );
    let session = cluster.carrel(ALICE, [&recall[..], &[&explain]].concat()).spawn();
    let job = cluster.until(&id, "PENDING");
    assert_eq!(job["restarts"], 1, "{job}");
    let why = cluster.carrel(BOB, ["explain", &id]).ok();
    assert!(why.contains("gave way"), "{why}");
    cluster.write(ALICE, "leave", "");
    assert_eq!(session.wait().code, 0);
    cluster.says(BOB, &id, "run 1");
    cluster.write(BOB, "done", "");
    cluster.until(&id, "COMPLETED");
    let said = cluster.read(BOB, "lent.out");
    let own: Vec<&str> = said.lines().filter(|line| *line != "Terminated").collect();
    assert_eq!(own, ["run 0", "saved", "run 1"], "{said}");
}

#[test]
fn what_cannot_be_run_is_refused_in_one_sentence() {
    let cluster = shared::cluster();
    for (name, text, part) in [
        ("binary", &b"\x7fELF\0\x01"[..], "binary is a binary file"),
        ("dos.sh", b"#!/bin/sh\r\necho\r\n", "dos.sh has DOS line breaks"),
        ("plain.sh", b"echo\n", "plain.sh does not begin with #!"),
        ("empty.sh", b"", "empty.sh does not begin with #!"),
        (
            "option.sh",
            b"#!/bin/sh\n#SBATCH --frobnicate=7\n",
            "option.sh:2: there is no option --frobnicate",
        ),
        (
            "tasks.sh",
            b"#!/bin/sh\n#SBATCH -N 2 -n 5\n#SBATCH --ntasks-per-node=2\n",
            "5 tasks on 2 nodes are 3 on each, and --ntasks-per-node 2 allows fewer",
        ),
    ] {
        cluster.write(ALICE, name, text);
        let refused = cluster.carrel(ALICE, ["submit", name]).run();
        refused.fails(2, &[part]);
    }
    // A file that seems to have a gigabyte is not read to its end.
    cluster.write(ALICE, "huge.sh", "#!/bin/sh\n");
    let huge = std::fs::OpenOptions::new()
        .append(true)
        .open(cluster.home(ALICE, "huge.sh"))
        .expect("a file");
    std::io::Write::write_all(&mut &huge, &vec![b'x'; 300_000]).expect("written");
    cluster
        .carrel(ALICE, ["submit", "huge.sh"])
        .run()
        .fails(2, &["longer than a script may be"]);
    cluster
        .carrel(ALICE, ["submit", "nowhere.sh"])
        .run()
        .fails(3, &["nowhere.sh"]);
    cluster
        .carrel(ALICE, ["cancel", "4711"])
        .run()
        .fails(3, &["there is no job 4711"]);
    // Where it may not write, it does not begin.
    let closed = cluster.submit_small(ALICE, &["-o", "/nowhere/x.out", "--wrap", "true"]);
    let job = cluster.until(&closed, "FAILED");
    assert!(
        job["reason"]
            .as_str()
            .is_some_and(|why| why.contains("cannot write its output to /nowhere/x.out")),
        "{job}"
    );
    let image = cluster.submit_small(ALICE, &["--image", "local/busybox-only", "--", "busybox", "true"]);
    cluster.until(&image, "COMPLETED");
    cluster.write(ALICE, "zsh.sh", "#!/bin/zsh\ntrue\n");
    let shell = cluster.submit_small(ALICE, &["zsh.sh"]);
    let job = cluster.until(&shell, "FAILED");
    assert!(
        job["reason"]
            .as_str()
            .is_some_and(|why| why.contains("has no /bin/zsh")),
        "{job}"
    );
    let mode = std::fs::metadata(cluster.home(ALICE, "zsh.sh"))
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o111, 0, "a script need not be executable");
}
