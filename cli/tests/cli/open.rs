//! `carrel open`: sessions found and made, aliases that OpenSSH understands, editors.

use std::process::Command;

use carrel_proto::v1::{JobState, SessionState};
use serde_json::Value;

use crate::fake::Fake;
use crate::run::{Done, carrel, run, script};

fn open(fake: &Fake, args: &[&str]) -> Done {
    run(carrel(fake, &[&["open", "dev"][..], args].concat()))
}

#[test]
fn a_session_is_made_then_found_and_its_alias_is_openssh_s() {
    let fake = Fake::start(JobState::Running);
    let home = fake.dir.path();
    std::fs::create_dir(home.join(".ssh")).unwrap();
    let own = "Host build\n  User me\n";
    std::fs::write(home.join(".ssh/config"), own).unwrap();

    let done = open(&fake, &["--gpus", "4", "--editor", "none"]);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (Some(0), "carrel-dev\n"),
        "{done:?}"
    );
    let once = std::fs::read_to_string(home.join(".ssh/config")).unwrap();
    assert_eq!(
        once,
        format!("Include {}/.ssh/carrel/config\n{own}", home.display())
    );
    assert!(fake.world().request.expect("a request").spec.is_some());

    let done = open(&fake, &["--editor", "none"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(std::fs::read_to_string(home.join(".ssh/config")).unwrap(), once);
    assert!(
        fake.world().request.expect("a request").spec.is_none(),
        "as it was last time"
    );
    assert_eq!(
        fake.world().calls,
        ["sign", "open", "open"],
        "one certificate is enough"
    );

    // OpenSSH itself reads it; the Match's exec renews nothing, quietly.
    let output = Command::new("ssh")
        .args(["-G", "-T", "-F"])
        .arg(home.join(".ssh/config"))
        .arg("carrel-dev")
        .env("HOME", home)
        .output()
        .expect("OpenSSH");
    let read = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    for line in [
        "user alice",
        "hostkeyalias dev.alice.carrel",
        "stricthostkeychecking true",
        "updatehostkeys false",
        "identitiesonly yes",
        "serveraliveinterval 0",
    ] {
        assert!(read.lines().any(|l| l == line), "no {line:?} in {read}");
    }
    let proxy = read
        .lines()
        .find(|line| line.starts_with("proxycommand "))
        .expect("a proxy command");
    assert!(
        proxy.ends_with(&format!("--broker unix:{} proxy dev", fake.socket().display())),
        "{proxy}"
    );
}

#[test]
fn flags_that_a_running_session_does_not_have_are_said_to_have_no_effect() {
    let fake = Fake::start(JobState::Running);
    open(&fake, &["--gpus", "4", "--editor", "none"]);
    let done = open(&fake, &["--gpus", "4", "--editor", "none"]);
    assert!(!done.stderr.contains("as it was started"), "{done:?}");
    let done = open(&fake, &["--gpus", "2", "--editor", "none"]);
    assert_eq!(done.code, Some(0));
    assert!(
        done.stderr.contains("session dev goes on as it was started"),
        "{done:?}"
    );
}

#[test]
fn an_editor_is_started_with_its_remote_arguments() {
    let fake = Fake::start(JobState::Running);
    script(&fake, "cursor", "printf '%s\\n' \"$@\" > \"$HOME/called\"");
    let done = open(&fake, &["--editor", "cursor", "--path", "/data/my run"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let called = std::fs::read_to_string(fake.dir.path().join("called")).unwrap();
    assert_eq!(
        called,
        "--folder-uri\nvscode-remote://ssh-remote+carrel-dev/data/my%20run\n"
    );
}

#[test]
fn the_link_is_printed_where_the_editor_is_missing() {
    let fake = Fake::start(JobState::Running);
    let done = open(&fake, &["--editor", "windsurf"]);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (
            Some(0),
            "windsurf://vscode-remote/ssh-remote+carrel-dev/home/alice\n"
        )
    );
    let done = open(&fake, &["--editor", "windsurf", "--output", "json"]);
    let json: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(
        (&json["opened"], &json["ssh_alias"], &json["session"]["state"]),
        (&false.into(), &"carrel-dev".into(), &"RUNNING".into())
    );
}

#[test]
fn a_failing_start_opens_no_editor() {
    let fake = Fake::start(JobState::Failed);
    fake.change(|world| world.reason = "image x: not found".into());
    script(&fake, "code", "touch \"$HOME/called\"");
    let done = open(&fake, &["--editor", "code"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("image x: not found"), "{done:?}");
    assert!(!fake.dir.path().join("called").exists());
}

#[test]
fn removal_takes_the_alias_along() {
    let fake = Fake::start(JobState::Running);
    open(&fake, &["--editor", "none"]);
    let config = fake.dir.path().join(".ssh/carrel/config");
    assert!(std::fs::read_to_string(&config).unwrap().contains("carrel-dev"));
    assert_eq!(run(carrel(&fake, &["rm", "dev"])).code, Some(0));
    assert!(!std::fs::read_to_string(&config).unwrap().contains("carrel-dev"));
    assert!(fake.world().session.is_none());
    assert_eq!(run(carrel(&fake, &["rm", "dev"])).code, Some(3));
    assert_eq!(run(carrel(&fake, &["rm", "-f", "dev"])).code, Some(0));
}

#[test]
fn ssh_is_told_the_way_and_the_rest_as_it_stands() {
    let fake = Fake::start(JobState::Running);
    open(&fake, &["--editor", "none"]);
    script(&fake, "ssh", "printf '%s\\n' \"$@\"; exit 9");
    let done = run(carrel(&fake, &["ssh", "dev.1", "-A", "ls -l"]));
    assert_eq!(done.code, Some(9), "{done:?}");
    assert!(
        done.stdout.contains("HostKeyAlias=1.dev.alice.carrel\n"),
        "{done:?}"
    );
    assert!(done.stdout.contains(" proxy dev --rank 1\n"), "{done:?}");
    assert!(done.stdout.ends_with("carrel-dev\n-A\nls -l\n"), "{done:?}");
    let done = run(carrel(&fake, &["ssh", "nobody-has-this"]));
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(done.stderr.contains("nobody-has-this"), "{done:?}");
}

#[test]
fn stopping_and_extending() {
    let fake = Fake::start(JobState::Running);
    open(&fake, &["--editor", "none"]);
    let done = run(carrel(&fake, &["extend", "dev", "+2h"]));
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (Some(0), "dev now ends at 2026-01-01T02:00:00Z\n"),
        "{done:?}"
    );
    assert_eq!(run(carrel(&fake, &["extend", "dev", "-2h"])).code, Some(2));
    let done = run(carrel(&fake, &["stop", "nobody", "dev"]));
    assert_eq!(done.code, Some(3), "one failed: {done:?}");
    assert_eq!(
        fake.world().session.expect("it stays").state(),
        SessionState::Stopped
    );
    let done = run(carrel(&fake, &["stop", "17"]));
    assert!(done.stderr.contains("job 17 was stopped"), "{done:?}");
}
