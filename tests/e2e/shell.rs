//! `carrel alloc`: a shell in a terminal, or one command.

use carrel_tests::cluster::Cluster;
use carrel_tests::user::{ALICE, ROOT};

use crate::shared::{self, SMALL};

fn alloc(args: &[&'static str]) -> Vec<&'static str> {
    [&["alloc"][..], args, &SMALL].concat()
}

fn exists(cluster: &Cluster, name: &str) -> bool {
    cluster
        .json(ALICE, ["ps", "--sessions"])
        .to_string()
        .contains(&format!("\"{name}\""))
}

/// The first thing that anybody does: four joined GPUs, a prompt, the code of the
/// shell's `exit`, and nothing left.
#[test]
fn a_shell_with_four_joined_gpus() {
    let cluster = shared::cluster();
    let mut terminal = cluster.terminal(ALICE, alloc(&["--gpus", "4", "--nvlink", "--name", "first"]));
    terminal.expect("Granted job allocation");
    terminal.ask(
        "echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | grep -c . | sed s/^/gpus=/",
        "gpus=4",
    );
    terminal.ask("echo on-$SLURM_JOB_NUM_NODES-node", "on-1-node");
    terminal.line("exit 7");
    assert_eq!(terminal.wait(), 7, "{terminal}");
    cluster.ready("its job is over", |this| {
        this.json(ALICE, ["ps"])
            .as_array()
            .is_some_and(|jobs| jobs.iter().all(|job| job["name"] != "first"))
    });
    cluster.carrel(ALICE, ["rm", "-f", "first"]).ok();
    assert!(!exists(cluster, "first"));
}

/// The terminal's size is the session's, at the start and when it changes.
#[test]
fn the_terminal_s_size() {
    let cluster = shared::cluster();
    let mut terminal = cluster.terminal(ALICE, alloc(&[]));
    terminal.expect("Granted job allocation");
    terminal.ask("stty size | sed s/^/size:/", "size:24 80");
    terminal.resize(132, 43);
    terminal.ask("stty size | sed s/^/size:/", "size:43 132");
    terminal.line("exit");
    assert_eq!(terminal.wait(), 0, "{terminal}");
}

/// Ctrl-C reaches the command in the foreground and not the shell.
#[test]
fn ctrl_c_interrupts_the_command() {
    let cluster = shared::cluster();
    let mut terminal = cluster.terminal(ALICE, alloc(&[]));
    terminal.expect("Granted job allocation");
    terminal.ask("echo $((40 + 2))", "42");
    // Said by the command itself: the shell has then made it the foreground, and the signal is its own.
    terminal.ask("sh -c 'echo rea\"\"dy; exec sleep 1000'", "ready");
    terminal.write("\x03");
    terminal.ask("echo code=$?", "code=130");
    terminal.line("exit 0");
    assert_eq!(terminal.wait(), 0, "{terminal}");
}

/// A command's exit code, its signal, its output and its input pass through unchanged.
#[test]
fn one_command() {
    let cluster = shared::cluster();
    let run = |script: &'static str| cluster.carrel(ALICE, alloc(&[])).args(["--", "sh", "-c", script]);
    assert_eq!(run("exit 42").run().code, 42);
    assert_eq!(run("kill -TERM $$").run().code, 143);
    let output = run("cat; echo out; echo err >&2").stdin("in\n").run();
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (0, "in\nout\n"),
        "{output}"
    );
    assert!(output.stderr.contains("err"), "{output}");
}

/// Arguments arrive as they are, whatever a shell would make of them.
#[test]
fn arguments_are_not_read_by_a_shell_again() {
    let cluster = shared::cluster();
    let words = ["a b", "$HOME", "*", "'", "\"", "\\", "", ";", "ü"];
    let printed = cluster
        .carrel(ALICE, alloc(&[]))
        .args(["--", "printf", "<%s>"])
        .args(words)
        .ok();
    assert_eq!(printed, "<a b><$HOME><*><'><\"><\\><><;><ü>");
}

/// Who one is in a container: oneself, with a home that is the host's, and no powers.
#[test]
fn the_user_is_oneself() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "self", &SMALL);
    assert_eq!(session.ssh(["id", "-un"]).ok(), "alice");
    assert_eq!(session.ssh(["id", "-u"]).ok(), ALICE.uid.to_string());
    assert_eq!(session.ssh(["id", "-g"]).ok(), ALICE.uid.to_string());
    let home = cluster.sandbox().home(ALICE);
    assert_eq!(session.ssh(["pwd"]).ok(), home.to_str().expect("UTF-8"));
    session.ssh(["touch made-inside"]).ok();
    let made = std::fs::metadata(home.join("made-inside")).expect("the home is the host's");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), ALICE.uid);
    let status = session
        .ssh(["grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs)' /proc/self/status"])
        .ok();
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    assert!(status.contains("CapPrm:\t0000000000000000"), "{status}");
}

/// Limits that were asked for hold.
#[test]
fn memory_is_limited() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "limits", &["-c", "1", "--mem", "256M"]);
    let limit = session
        .ssh(["cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null"])
        .run();
    if !limit.stdout.is_empty() {
        assert_eq!(limit.stdout.trim(), (256 << 20).to_string(), "{limit}");
    }
    let eaten = session.ssh(["python3 -c 'x = b\"a\" * (600 << 20)'"]).run();
    assert_ne!(eaten.code, 0, "{eaten}");
    // The session outlives one process's death.
    assert_eq!(session.ssh(["echo", "alive"]).ok(), "alive");
}

/// The administrator's view names who holds what.
#[test]
fn held_gpus_are_shown() {
    let cluster = shared::cluster();
    let args = [&["--gpus", "2"][..], &SMALL].concat();
    let session = cluster.open(ALICE, "holder", &args);
    let record = session.record();
    let job = record["job"]["id"].as_u64().expect("a job");
    let held: Vec<_> = record["job"]["nodes"][0]["gpus"]
        .as_array()
        .expect("GPUs")
        .clone();
    assert_eq!(held.len(), 2);
    let nodes = cluster.json(ROOT, ["nodes"]);
    let of_job = nodes
        .as_array()
        .expect("nodes")
        .iter()
        .flat_map(|node| node["gpus"].as_array().expect("GPUs"))
        .filter(|gpu| gpu["job"] == job && gpu["holders"][0]["isolation"] == "exclusive")
        .count();
    assert_eq!(of_job, 2);
}
