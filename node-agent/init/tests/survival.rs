//! What outlives what, and what ends everything.

mod support;

use std::path::Path;
use std::process::Stdio;

use carrel_proto::v1::InitRequest;
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use support::{Way, World, wait_for};

#[test]
fn a_killed_server_comes_back_with_its_key_and_config_and_costs_no_process() {
    let world = World::start();
    let mut config = world.config();
    config.env[0].value = "8".into();
    let mut control = world.control();
    let before = control.next();
    control.send(&InitRequest {
        config: Some(config),
        ..InitRequest::default()
    });
    control.finish();
    let pid = world.say("nohup sleep 1000 < /dev/null > /dev/null 2>&1 & echo $!");
    for restarts in 1..=2 {
        kill(Pid::from_raw(world.server_pid()), Signal::SIGKILL).unwrap();
        wait_for("the next server", || {
            let status = world.control().try_next();
            status.is_ok_and(|status| {
                status.restarts == restarts
                    && status.ready
                    && status.host_public_key == before.host_public_key
            })
        });
    }
    assert!(Path::new(&format!("/proc/{}", pid.trim())).exists());
    // The same host key, or the client would refuse; and the newest configuration.
    assert_eq!(world.say("echo $SLURM_JOB_ID"), "8\n");
}

#[test]
fn the_lease_ends_everything_even_without_a_server() {
    let mut world = World::start();
    let pid = world.say("nohup sleep 1000 < /dev/null > /dev/null 2>&1 & echo $!");
    let mut control = world.control();
    // Renewed, it does not end; cut short, it does.
    control.send(&InitRequest {
        lease_remaining_ms: Some(600_000),
        ..InitRequest::default()
    });
    control.send(&InitRequest {
        lease_remaining_ms: Some(700),
        ..InitRequest::default()
    });
    control.finish();
    kill(Pid::from_raw(world.server_pid()), Signal::SIGKILL).unwrap();
    assert_eq!(world.wait_exit().code(), Some(75), "{}", world.log());
    assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists());
}

/// An agent that dies between the start and its first contact leaves nothing running.
#[test]
fn the_first_lease_is_in_the_configuration() {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap();
    let now = now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000;
    let mut world = World::start_with(Way::Raw, |config| config.first_lease_end_ms = now + 8_000);
    world.say("nohup sleep 1000 < /dev/null > /dev/null 2>&1 &");
    assert_eq!(world.wait_exit().code(), Some(75), "{}", world.log());
}

#[test]
fn a_stop_asks_first_and_kills_what_does_not_go() {
    let mut world = World::start();
    let stubborn = world.say("(trap '' TERM HUP; exec sleep 1000 < /dev/null > /dev/null 2>&1) & echo $!");
    let polite = "trap '' HUP; trap 'echo asked > asked; exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let mut client = world
        .client("ssh")
        .args(["s", polite])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = [0; 3];
    std::io::Read::read_exact(client.stdout.as_mut().unwrap(), &mut up).unwrap();
    world.control().send(&InitRequest {
        stop_grace_ms: Some(1500),
        ..InitRequest::default()
    });
    assert_eq!(world.wait_exit().code(), Some(0), "{}", world.log());
    // Its client heard how it ended: the server goes last.
    assert_eq!(client.wait().unwrap().code(), Some(0));
    assert!(world.path("home/asked").exists());
    assert!(!Path::new(&format!("/proc/{}", stubborn.trim())).exists());
}

#[test]
fn sigterm_ends_process_one_gracefully() {
    let mut world = World::start();
    kill(Pid::from_raw(world.init_pid()), Signal::SIGTERM).unwrap();
    assert_eq!(world.wait_exit().code(), Some(0));
}

#[test]
fn the_server_cannot_be_traced_and_has_no_rights() {
    let world = World::start();
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.server_pid())).unwrap();
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    assert_eq!(field("NoNewPrivs:"), "1");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    let user = world.say("grep -E 'NoNewPrivs|CapEff' /proc/self/status");
    assert!(
        user.contains("NoNewPrivs:\t1") && user.contains("CapEff:\t0000000000000000"),
        "{user}"
    );
}

/// Root becomes the user for good: identity, groups, and no capability in any set.
#[test]
fn started_as_root_it_becomes_the_user() {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let world = World::start_with(support::Way::Raw, |config| {
        let identity = config.identity.as_mut().unwrap();
        (identity.uid, identity.gid, identity.groups) = (20_123, 20_124, vec![20_125]);
        let home = Path::new(&identity.home);
        chown(home, Some(20_123), Some(20_124)).unwrap();
        std::fs::set_permissions(home.parent().unwrap(), std::fs::Permissions::from_mode(0o711)).unwrap();
    });
    assert_eq!(
        world.say("id -u; id -g; id -G; touch mine; stat -c %u mine"),
        "20123\n20124\n20124 20125\n20123\n"
    );
    for pid in [world.init_pid(), world.server_pid()] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for line in [
            "Uid:\t20123\t20123\t20123\t20123",
            "CapPrm:\t0000000000000000",
            "CapBnd:\t0000000000000000",
        ] {
            assert!(status.contains(line), "{line} of {pid}: {status}");
        }
    }
    // Neither is the user's to look into.
    let looked = world.say(&format!("cat /proc/{}/environ; echo $?", world.init_pid()));
    assert_eq!(looked, "1\n");
}

#[test]
fn garbage_on_the_sockets_hurts_nobody() {
    use std::io::{Read, Write};
    let world = World::start();
    for bytes in [
        &b"GET / HTTP/1.0\r\n\r\n"[..],
        b"CARRELS1garbage",
        b"SSH-2.0-x\r\n\0\0\0\xff\xff\xff\xff\xff\xff",
        &[0xff; 300],
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(world.path("run/ssh.sock")).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // Whatever comes, it ends.
        let mut sink = Vec::new();
        let _ = stream.read_to_end(&mut sink);
        let mut stream = std::os::unix::net::UnixStream::connect(world.path("run/ctl.sock")).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut sink);
    }
    assert_eq!(world.say("echo fine"), "fine\n");
    assert_eq!(world.control().next().restarts, 0);
}
