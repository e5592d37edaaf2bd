//! Who may enter, and what the host proves of itself.

mod support;

use std::fs;

use carrel_proto::v1::InitRequest;
use support::World;

fn enters(world: &World, arguments: &[&str]) -> bool {
    let output = world
        .client("ssh")
        .args(arguments)
        .args(["s", "echo in"])
        .output()
        .unwrap();
    output.stdout == b"in\n"
}

#[test]
fn certificates_enter_only_if_all_about_them_is_right() {
    let world = World::start();
    assert!(enters(&world, &[]), "{}", world.log());
    assert!(!enters(&world, &["-l", "bob"]), "another user");
    let other = world.path("other-ca");
    let cases: [(&str, Vec<&str>); 7] = [
        ("expired", vec!["-n", "alice", "-V", "-2h:-1h"]),
        ("not yet valid", vec!["-n", "alice", "-V", "+1h:+2h"]),
        ("wrong principal", vec!["-n", "bob"]),
        ("no principal", vec![]),
        ("wrong CA", vec!["-n", "alice", "-s", other.to_str().unwrap()]),
        (
            "unknown critical option",
            vec!["-n", "alice", "-O", "critical:x@example.com=1"],
        ),
        (
            "source address",
            vec!["-n", "alice", "-O", "source-address=127.0.0.1/32"],
        ),
    ];
    for (what, arguments) in cases {
        world.certify("user", &arguments);
        assert!(!enters(&world, &[]), "{what}\n{}", world.log());
    }
    world.certify("user", &["-n", "bob,alice", "-V", "-1m:+5m"]);
    assert!(enters(&world, &[]));
}

/// Somebody the session is shared with enters as its user, and is cut off when that is taken back;
/// others stay.
#[test]
fn a_share_that_is_taken_back_ends_what_came_by_it() {
    let world = World::start();
    let mut control = world.control();
    let share = |control: &mut support::Control, full: &[&str], looks_on: &[&str]| {
        let mut config = world.config();
        let ssh = config.ssh.as_mut().unwrap();
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        ssh.principals.extend(names(full));
        ssh.read_only_principals = names(looks_on);
        control.send(&InitRequest {
            config: Some(config),
            ..InitRequest::default()
        });
    };
    // Who has entered, is in: until then its client reads the certificate that is there.
    let stays = |world: &World| {
        let entered = || world.log().matches("entered by certificate").count();
        let before = entered();
        let mut client = world.client("ssh");
        client.args(["s", "echo in; exec cat"]);
        client
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let client = client.spawn().unwrap();
        support::wait_for("it is in", || entered() > before);
        client
    };
    let mut alice = stays(&world);
    share(&mut control, &["bob"], &["carol"]);
    world.certify("user", &["-n", "bob"]);
    support::wait_for("bob may enter", || enters(&world, &[]));
    let mut bob = stays(&world);
    control.until(|status| status.connections == 2);

    // Looking on: nothing runs, nothing is forwarded, no files.
    world.certify("user", &["-n", "carol"]);
    let output = world.ssh(&["s", "echo in"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.stdout.is_empty() && said.contains("read-only"),
        "{said}\n{}",
        world.log()
    );
    assert!(!world.ssh(&["-W", "127.0.0.1:1", "s"]).status.success());
    assert!(!world.ssh(&["-s", "s", "sftp"]).status.success());
    assert!(
        !world
            .ssh(&["-N", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1", "s"])
            .status
            .success()
    );

    share(&mut control, &[], &["carol"]);
    // Waiting would close it, and his command end by itself.
    let open = bob.stdin.take();
    assert_eq!(bob.wait().unwrap().code(), Some(255), "cut off");
    drop(open);
    world.certify("user", &["-n", "bob"]);
    assert!(!enters(&world, &[]));
    control.until(|status| status.connections == 1);
    assert!(alice.try_wait().unwrap().is_none(), "she stays");
    drop(alice.stdin.take());
    assert!(alice.wait().unwrap().success());
    control.finish();
}

#[test]
fn plain_keys_enter_if_registered() {
    let world = World::start();
    let plain = world.path("plain");
    let none = world.path("other-ca");
    let with = |key: &std::path::Path| format!("IdentityFile={}", key.display());
    fs::remove_file(world.path("user-cert.pub")).unwrap();
    assert!(!enters(&world, &[]), "its key without the certificate");
    assert!(!enters(&world, &["-o", &with(&none)]));
    assert!(enters(&world, &["-o", &with(&plain)]), "{}", world.log());
}

#[test]
fn a_forced_command_replaces_what_was_asked() {
    let world = World::start();
    world.certify(
        "user",
        &[
            "-n",
            "alice",
            "-O",
            "force-command=echo forced: $SSH_ORIGINAL_COMMAND",
        ],
    );
    let output = world.ssh(&["s", "echo wished"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "forced: echo wished\n",
        "{}",
        world.log()
    );
}

#[test]
fn a_certificate_may_forbid_terminals_and_forwards() {
    let world = World::start();
    world.certify("user", &["-n", "alice", "-O", "clear"]);
    assert_eq!(world.say("echo still"), "still\n");
    let output = world.ssh(&["-W", "127.0.0.1:1", "s"]);
    assert!(!output.status.success());
    let output = world.ssh(&["-tt", "s", "tty"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("PTY allocation request failed"),
        "{output:?}"
    );
}

#[test]
fn the_host_is_known_by_its_certificate_once_it_has_one() {
    let world = World::start();
    let mut control = world.control();
    let key = control.next().host_public_key;
    fs::write(world.path("host.pub"), &key).unwrap();
    let host_ca = world.path("host-ca");
    world.certify(
        "host",
        &["-s", host_ca.to_str().unwrap(), "-h", "-n", "dev.alice.carrel"],
    );
    let mut config = world.config();
    config.ssh.as_mut().unwrap().host_certificate = fs::read_to_string(world.path("host-cert.pub")).unwrap();
    control.send(&InitRequest {
        config: Some(config),
        ..InitRequest::default()
    });
    control.finish();

    // known_hosts as the command line writes it, but with the CA's line alone.
    let authority = fs::read_to_string(world.path("host-ca.pub")).unwrap();
    fs::write(
        world.path("known_hosts"),
        format!("@cert-authority *.carrel {authority}"),
    )
    .unwrap();
    assert!(enters(&world, &[]), "{}", world.log());
    assert!(
        !enters(&world, &["-o", "HostKeyAlias=other.bob.carrel"]),
        "its certificate is not for that name"
    );
    // Both lines: no prompt, whichever key is offered.
    fs::write(
        world.path("known_hosts"),
        format!("@cert-authority *.carrel {authority}\ndev.alice.carrel {key}\n"),
    )
    .unwrap();
    assert!(enters(&world, &[]));
    assert!(enters(&world, &["-o", "HostKeyAlgorithms=ssh-ed25519"]));
}

#[test]
fn every_offered_cipher_and_key_exchange_works() {
    let world = World::start();
    for cipher in [
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "chacha20-poly1305@openssh.com",
        "aes256-ctr",
    ] {
        assert!(enters(&world, &["-c", cipher]), "{cipher}\n{}", world.log());
    }
    assert!(enters(&world, &["-C"]), "compression");
    assert!(enters(&world, &["-o", "KexAlgorithms=curve25519-sha256"]));
    // A key exchange every megabyte, while bytes flow.
    let output = world.ssh(&[
        "-o",
        "RekeyLimit=1M",
        "s",
        "head -c 20M /dev/zero | tee /dev/null",
    ]);
    assert_eq!(output.stdout.len(), 20 << 20, "{}", world.log());
}
