//! `bench queue`, as small as it goes: that every figure is there, that a peer is measured and compared, and that nothing is
//! left when it is ended in the middle. How fast anything is counts for nothing here.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use carrel_tests::programs::{Profile, Programs, repository};
use carrel_tests::wait;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// A directory of its own for clusters, short enough for the names of their sockets.
fn place() -> TempDir {
    let place = tempfile::Builder::new()
        .prefix("b")
        .tempdir()
        .expect("a directory");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711)).expect("own directory");
    place
}

/// As small as it goes.
const SIZES: [[&str; 2]; 9] = [
    ["--kills", "1"],
    ["--grants", "4"],
    ["--handovers", "2"],
    ["--commands", "2"],
    ["--accepts", "16"],
    ["--pending", "9"],
    ["--behind", "9"],
    ["--memory", "9,18"],
    ["--restart", "9"],
];

fn bench(place: &Path, args: &[&str]) -> Command {
    let programs = Programs::find(Profile::Debug);
    let mut command = Command::new(programs.target().join(programs.below_target("bench")));
    let sizes = SIZES.iter().filter(|[name, _]| !args.contains(name));
    command
        .arg("queue")
        .args(sizes.flatten())
        .args(args)
        .env("TMPDIR", place)
        .stdin(Stdio::null());
    command
}

/// The figures that a run printed, by name.
fn figures(output: &Output) -> BTreeMap<String, f64> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    let lines = text.lines().map(|line| {
        let figure: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for field in ["unit", "budget"] {
            assert!(figure[field].is_string(), "{line}");
        }
        let name = figure["name"].as_str().expect("a name").to_owned();
        (name, figure["value"].as_f64().expect("a number"))
    });
    lines.collect()
}

/// Runs one part; its figures, without those of a peer.
fn run(part: &str, expected: &[&str]) -> BTreeMap<String, f64> {
    let place = place();
    let output = bench(place.path(), &["--only", part]).output().expect("it runs");
    let figures = figures(&output);
    let names: Vec<&str> = figures
        .keys()
        .filter_map(|name| name.strip_prefix("queue."))
        .collect();
    let mut wanted = expected.to_vec();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    figures
}

#[test]
fn accepts_and_handovers_are_measured() {
    let accepted = run(
        "accept",
        &[
            "accept.disk_sync.p50_ms",
            "accept.disk_sync.p99_ms",
            "accept.command.c1",
            "accept.command.c16",
            "accept.api.c1",
            "accept.api.c16",
        ],
    );
    assert!(accepted.values().all(|value| *value > 0.0), "{accepted:?}");
    let names: Vec<String> = [0, 9]
        .iter()
        .flat_map(|pending| ["", ".from_cancel"].map(|from| format!("handover.pending{pending}{from}")))
        .flat_map(|name| ["p50_ms", "p99_ms"].map(|share| format!("{name}.{share}")))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let handed = run("handover", &names);
    // The end of a container takes its time, and comes before the GPU is free.
    for pending in [0, 9] {
        let time = |name: &str| handed[&format!("queue.handover.pending{pending}{name}.p50_ms")];
        assert!(0.0 < time("") && time("") < time(".from_cancel"), "{handed:?}");
    }
}

#[test]
fn grants_and_memory_are_measured() {
    let names: Vec<String> = ["grant.behind9", "grant.behind9.command", "grant.storm.behind9"]
        .iter()
        .flat_map(|name| ["p50_ms", "p99_ms"].map(|share| format!("{name}.{share}")))
        .collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.push("grant.storm.submits");
    let granted = run("grant", &names);
    assert!(granted.values().all(|value| *value > 0.0), "{granted:?}");
    let grown = run(
        "memory",
        &[
            "memory.pending0.mib",
            "memory.pending9.mib",
            "memory.pending9.bytes_per_job",
            "memory.pending18.mib",
            "memory.pending18.bytes_per_job",
        ],
    );
    assert!(grown["queue.memory.pending0.mib"] > 1.0, "{grown:?}");
}

#[test]
fn kills_of_the_broker_lose_nothing() {
    let restarted = run(
        "restart",
        &[
            "restart.jobs9.ms",
            "restart.jobs9.max_ms",
            "restart.jobs9.accept_ms",
            "restart.jobs9.lost",
        ],
    );
    assert!(restarted["queue.restart.jobs9.ms"] > 0.0 && restarted["queue.restart.jobs9.lost"] == 0.0);
    let killed = run(
        "kill9",
        &[
            "kill9.acknowledged",
            "kill9.acknowledged_lost",
            "kill9.sessions",
            "kill9.sessions_lost",
        ],
    );
    assert!(killed["queue.kill9.acknowledged"] > 0.0, "{killed:?}");
    assert!(killed["queue.kill9.acknowledged_lost"] + killed["queue.kill9.sessions_lost"] == 0.0);
}

/// Scripts in place of those that start a Slurm: they note how they are called, and give what a real one gave.
fn peer(dir: &Path, measure: &str) {
    let given = repository().join("tests/bench/queue/testdata/measure-default-plain.json");
    let note = format!("echo \"$0 $*\" >>{}/called", dir.display());
    for (name, does) in [
        ("slurm-peer.sh", "true".to_owned()),
        (
            "measure.sh",
            measure.replace("GIVEN", &given.display().to_string()),
        ),
    ] {
        fs::write(dir.join(name), format!("{note}\n{does}\n")).expect("own file");
    }
}

#[test]
fn a_peer_is_measured_and_compared() {
    let (place, dir) = (place(), tempfile::tempdir().expect("a directory"));
    peer(dir.path(), "cp GIVEN \"$1\"");
    let args = ["--only", "accept", "--slurm", dir.path().to_str().expect("text")];
    let output = bench(place.path(), &args).output().expect("it runs");
    let figures = figures(&output);
    let ratio = figures["queue.accept.api.c1"] / figures["queue.slurm.accept.c1"];
    let printed = figures["queue.accept.api.c1.to_sbatch"];
    assert!((ratio - printed).abs() < 0.01, "{figures:?}");
    let called = fs::read_to_string(dir.path().join("called")).expect("they were called");
    let verbs: Vec<_> = called.lines().map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(verbs.len(), 3, "{called}");
    assert_eq!((verbs[0], verbs[2]), (Some("start"), Some("stop")), "{called}");
    wait::until("nothing is left", || is_empty(place.path()));
}

fn is_empty(place: &Path) -> bool {
    fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_none())
}

/// Ctrl-C of a terminal reaches the whole process group.
#[test]
fn what_it_started_ends_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    peer(dir.path(), "touch $(dirname \"$0\")/measures; sleep 1000000");
    let slurm = dir.path().to_str().expect("text");
    type Until<'a> = &'a dyn Fn(&Path) -> bool;
    let cases: [(&[&str], Until<'_>); 2] = [
        // In the middle of a cluster's life.
        (&["--only", "accept", "--commands", "1000000"], &|place| {
            let mut clusters = fs::read_dir(place).into_iter().flatten().flatten();
            clusters.any(|entry| entry.path().join("noop.sh").exists())
        }),
        // While a peer is measured.
        (&["--only", "restart", "--slurm", slurm], &|_| {
            dir.path().join("measures").exists()
        }),
    ];
    for (args, until) in cases {
        let place = place();
        let mut command = bench(place.path(), args);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("it runs");
        wait::until("it is in the middle of it", || until(place.path()));
        killpg(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it runs");
        let ended = wait::poll(wait::PATIENCE, || child.try_wait().expect("an own child"));
        assert_eq!(ended.expect("it ends").code(), Some(130), "{args:?}");
        wait::until("nothing is left", || is_empty(place.path()));
    }
    let called = fs::read_to_string(dir.path().join("called")).expect("they were called");
    assert!(
        called.lines().last().is_some_and(|line| line.contains(" stop ")),
        "{called}"
    );
}
