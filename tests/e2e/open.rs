//! `carrel open`: finds or creates, writes the alias, starts the editor.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use carrel_tests::user::{ALICE, BOB};

use crate::shared::{self, SMALL};

/// The same name is the same session, running or stopped and started again, with its files.
#[test]
fn the_same_name_is_the_same_session() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "again", &SMALL);
    let first = session.record();
    session.ssh(["echo kept > /var/tmp/kept"]).ok();
    cluster.carrel(ALICE, ["open", "again", "--editor", "none"]).ok();
    let second = session.record();
    assert_eq!(
        (&second["id"], &second["job"]["id"]),
        (&first["id"], &first["job"]["id"])
    );

    cluster.carrel(ALICE, ["stop", "again"]).ok();
    cluster.ready("it is stopped", |_| session.record()["state"] == "STOPPED");
    cluster.carrel(ALICE, ["open", "again", "--editor", "none"]).ok();
    let third = session.record();
    assert_eq!(third["id"], first["id"]);
    assert_ne!(third["job"]["id"], first["job"]["id"]);
    assert_eq!(session.ssh(["cat /var/tmp/kept"]).ok(), "kept");
}

/// The user's SSH config keeps every byte it had, and gets one line, once.
#[test]
fn the_ssh_config_is_not_damaged() {
    let cluster = shared::cluster();
    let ssh = cluster.sandbox().home(BOB).join(".ssh");
    fs::create_dir_all(&ssh).expect("own directory");
    let path = ssh.join("config");
    let own = "# mine\nHost build\n  User b\n\nMatch all\n  Compression yes";
    fs::write(&path, own).expect("own file");
    for path in [&ssh, &path] {
        std::os::unix::fs::chown(path, Some(BOB.uid), Some(BOB.uid)).expect("root may give away");
    }
    let session = cluster.open(BOB, "config", &SMALL);
    let once = fs::read_to_string(&path).expect("a file");
    assert!(once.ends_with(own), "{once}");
    assert_eq!(
        once.lines()
            .filter(|line| line.to_lowercase().contains("include"))
            .count(),
        1,
        "{once}"
    );
    cluster.carrel(BOB, ["open", "config", "--editor", "none"]).ok();
    assert_eq!(fs::read_to_string(&path).expect("a file"), once);
    assert_eq!(session.ssh(["echo", "through"]).ok(), "through");
    let read = cluster.cmd(BOB, "ssh").args(["-G", "build"]).ok();
    assert!(read.lines().any(|line| line == "user b"), "{read}");
}

/// The editor is started with its remote arguments; without one, the link is printed.
#[test]
fn editors() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "edited", &SMALL);
    let bin = cluster.root().join("editors");
    fs::create_dir_all(&bin).expect("own directory");
    let called = cluster.sandbox().home(ALICE).join("called");
    let code = bin.join("code");
    fs::write(
        &code,
        format!("#!/bin/sh\nprintf '%s\\n' \"$@\" > {}\n", called.display()),
    )
    .expect("own file");
    fs::set_permissions(&code, fs::Permissions::from_mode(0o755)).expect("own file");
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let carrel = cluster.sandbox().program("carrel");
    let open = |editor: &str| {
        let open = cluster.cmd_with(ALICE, &[("PATH", path.as_str())], &carrel);
        open.args(["open", "edited", "--editor", editor, "--path", "/tmp"])
    };
    open("code").ok();
    let arguments = carrel_tests::wait::poll(carrel_tests::wait::PATIENCE, || {
        fs::read_to_string(&called)
            .ok()
            .filter(|text| text.contains("/tmp"))
    });
    let arguments = arguments.expect("the editor was started");
    assert!(
        arguments.contains(&format!("ssh-remote+{}", session.alias())),
        "{arguments}"
    );

    let output = open("cursor").run();
    let said = format!("{}{}", output.stdout, output.stderr);
    assert!(
        said.contains("cursor://") && said.contains(&session.alias()),
        "{output}"
    );
}
