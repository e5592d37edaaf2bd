//! `carrel up`: the programs beside it, in order, and nothing left of them. They are scripts here,
//! and the broker is the test's own.

use std::path::PathBuf;
use std::process::Command;

use carrel_proto::v1::JobState;
use nix::sys::signal::Signal;

use crate::fake::Fake;
use crate::run::{Done, Running, carrel, run, script, until};

/// Says what it is run with; lives, where it should, until it is told to end.
const PROGRAM: &str = r#"
said=$HOME/said
say() { echo "$*" >> "$said"; }
lives() {
  trap 'say "$1 ends"; exit 0' TERM
  say "$name $verb"
  while :; do sleep 0.02; done
}
name=$(basename "$0") verb=$1
case $verb in
  serve)
    [ ! -e "$HOME/broken-broker" ] || { echo "no such disk" >&2; exit 1; }
    while [ "$1" != --socket ]; do shift; done
    ln -s "$HOME/broker.sock" "$2"
    lives broker ;;
  gateway) lives gateway ;;
  join) mkdir "$HOME/up/node"; say "$name join" ;;
  run) lives agent ;;
  *) say "$name $verb" ;;
esac
"#;

/// `carrel up` among programs that are scripts.
fn up(fake: &Fake, args: &[&str]) -> Command {
    let mut command = carrel(fake, &["up", "--state"]);
    command.arg(state(fake)).args(args);
    command.env("CARREL_PROGRAMS", fake.dir.path().join("bin"));
    command
}

fn state(fake: &Fake) -> PathBuf {
    fake.dir.path().join("up")
}

fn fake_with_node() -> Fake {
    let fake = Fake::start(JobState::Running);
    script(&fake, "carrel-broker", PROGRAM);
    script(&fake, "carrel-node", PROGRAM);
    fake.change(|world| {
        world.ssh_gateway = "127.0.0.1:22".into();
        world.nodes = vec![carrel_proto::v1::Node {
            name: nix::unistd::gethostname()
                .expect("a name")
                .to_string_lossy()
                .into_owned(),
            state: "IDLE".into(),
            last_contact_ms: i64::MAX,
            ..Default::default()
        }];
    });
    fake
}

fn said(fake: &Fake) -> Vec<String> {
    let text = std::fs::read_to_string(fake.dir.path().join("said")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Only root may start containers; the rest is for root to test.
fn may() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn a_command_runs_once_it_is_up_and_all_ends_with_it() {
    let fake = fake_with_node();
    let command = "while ! grep -q 'node run' ~/said; do sleep 0.01; done; echo $CARREL_BROKER; exit 6";
    let done = run(up(&fake, &["--", "sh", "-c", command]));
    if !may() {
        assert_eq!(done.code, Some(5), "{done:?}");
        return;
    }
    assert_eq!(done.code, Some(6), "{done:?}");
    assert_eq!(
        done.stdout,
        format!("unix:{}/broker.sock\n", state(&fake).display())
    );
    let mut said = said(&fake);
    // The gateway is started first, and not waited for before the node joins.
    said[1..3].sort_unstable();
    let started = [
        "carrel-broker serve",
        "carrel-broker gateway",
        "carrel-node join",
        "carrel-node run",
    ];
    assert_eq!(said[..4], started, "{said:?}");
    assert_eq!(
        said[4..],
        ["agent ends", "carrel-node down", "gateway ends", "broker ends"],
        "{said:?}"
    );
}

#[test]
fn ctrl_c_stops_the_sessions_and_ends_it() {
    if !may() {
        return;
    }
    let fake = fake_with_node();
    assert_eq!(
        run(carrel(&fake, &["alloc", "--name", "dev", "--no-shell"])).code,
        Some(0)
    );
    let running = Running::start(up(&fake, &[]));
    running.until_said("Ctrl-C ends it");
    until(
        || said(&fake).iter().any(|line| line == "carrel-node run"),
        || "the agent runs".into(),
    );
    let second: Done = run(up(&fake, &[]));
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(
        second.stderr.contains("another `carrel up` (process "),
        "{second:?}"
    );
    running.signal(Signal::SIGINT);
    let done = running.end();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(fake.world().calls.iter().any(|call| call == "stop dev job 17"));
    assert_eq!(said(&fake).last().map(String::as_str), Some("broker ends"));
}

#[test]
fn a_program_that_dies_is_shown_with_its_last_words() {
    if !may() {
        return;
    }
    let fake = fake_with_node();
    std::fs::write(fake.dir.path().join("broken-broker"), "").unwrap();
    let done = run(up(&fake, &["--", "true"]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.stderr
            .contains("the broker has ended (exit status: 1):\n  no such disk"),
        "{done:?}"
    );
    assert!(done.stderr.contains("broker.log"), "{done:?}");
}
