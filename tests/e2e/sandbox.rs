//! What the other tests stand on: a sandbox is its own world, and ends whole.

use std::fs;

use carrel_tests::process::{Cmd, Daemon};
use carrel_tests::programs::{Profile, Programs};
use carrel_tests::sandbox::Sandbox;
use carrel_tests::terminal::Terminal;
use carrel_tests::user::{ALICE, BOB, ROOT};
use carrel_tests::wait;

/// Users exist in it, its network and processes are its own, and nothing outlives it.
#[test]
fn a_sandbox_is_a_world_of_its_own() {
    let sandbox = Sandbox::start(&Programs::find(Profile::Debug), &[ALICE, BOB]);
    let run = |user, script: &str| Cmd::new(sandbox.argv(user, &[], "sh".as_ref())).args(["-c", script]);
    assert_eq!(
        run(ALICE, "id -un; pwd; echo $HOME").ok().lines().next(),
        Some("alice")
    );
    assert_eq!(run(ROOT, "busybox ip -o link | grep -c .").ok(), "1");
    assert_eq!(run(ROOT, "ps -e --no-headers | grep -c bash").ok(), "1");
    assert_ne!(
        run(BOB, &format!("ls {}", sandbox.home(ALICE).display()))
            .run()
            .code,
        0
    );
    assert_eq!(run(ALICE, "cat; exit 3").stdin("in").run().code, 3);
    assert_eq!(run(ALICE, "kill -9 $$").run().code, 137);

    let mut terminal = Terminal::start(&run(ALICE, "stty size; read line; echo got-$line"));
    terminal.expect("24 80");
    terminal.ask("it", "got-it");
    assert_eq!(terminal.wait(), 0, "{terminal}");

    let argv = sandbox.argv(ROOT, &[], "sleep".as_ref());
    let mut sleeper = Daemon::start(
        "sleeper",
        Cmd::new(argv).arg("100000").argv().to_vec(),
        &sandbox.root().join("logs"),
    );
    let first = sleeper.pid();
    sleeper.kill9();
    sleeper.restart();
    assert_ne!(sleeper.pid(), first);
    let (pid, root) = (sleeper.pid(), sandbox.root().to_owned());
    wait::until("it is in the sandbox's cgroup", || {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains("carrel-test-"))
    });
    run(
        ROOT,
        "mkdir -p /sys/fs/cgroup/memory/left /sys/fs/cgroup/unified/left; mount -t tmpfs none /mnt",
    )
    .ok();
    drop(sandbox);
    wait::until("its processes are gone", || {
        !fs::exists(format!("/proc/{pid}")).unwrap_or(true)
    });
    assert!(!root.exists());
    let name = root.file_name().expect("a name");
    for hierarchy in fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten() {
        assert!(
            !hierarchy.path().join(name).exists(),
            "{}",
            hierarchy.path().display()
        );
    }
}
