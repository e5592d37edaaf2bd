//! `ssh -J` with the real client through the gateway to a real sshd.

use std::fmt::Write;
use std::time::SystemTime;

use carrel_broker::ca::ssh::{USER_VALIDITY, canonical, parse_public_key};

use crate::agent::{Agent, Behind, Node};
use crate::world::{Running, World, port_of, run};

/// A user's machine with its keys, and a session "dev" whose SSH server is a real sshd.
struct Desk {
    world: World,
    gateway: Running,
    _agent: Agent,
}

async fn desk() -> Desk {
    let mut world = World::new();
    world.start_broker();
    let gateway = world.start_gateway().await;
    for name in ["id", "other", "host"] {
        let (code, _, error) = run(
            "ssh-keygen",
            &["-q", "-N", "", "-t", "ed25519", "-f", name],
            world.dir.path(),
        )
        .await;
        assert_eq!(code, Some(0), "{error}");
    }
    let read = |name: &str| std::fs::read_to_string(world.path(name)).expect(name);
    let write = |name: &str, text: &str| std::fs::write(world.path(name), text).expect(name);
    let home = world.dir.path().display();
    write("authorized_keys", &read("id.pub"));
    write(
        "sshd_config",
        &format!(
            "HostKey {home}/host\nAuthorizedKeysFile {home}/authorized_keys\nStrictModes no\nUsePAM no\n\
             PidFile none\nPermitRootLogin yes\nPasswordAuthentication no\n"
        ),
    );
    // sshd as root wants its directory for the unprivileged child.
    std::fs::create_dir_all("/run/sshd").expect("/run/sshd");

    let port = port_of(&gateway.handle.endpoints().ssh);
    // The gateway is known by the host CA alone: it must show a certificate.
    let mut known_hosts = format!("@cert-authority [127.0.0.1]:{port} {}\n", world.ssh.host_ca());
    write!(known_hosts, "dev {}", read("host.pub")).expect("text");
    write("known_hosts", &known_hosts);
    write(
        "config",
        &format!(
            "Host *\n  BatchMode yes\n  IdentitiesOnly yes\n  IdentityFile {home}/id\n  \
             UserKnownHostsFile {home}/known_hosts\n  GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n\
             Host gw\n  HostName 127.0.0.1\n  Port {port}\n  User alice\n"
        ),
    );
    world
        .known
        .lock()
        .expect("a lock")
        .targets
        .insert("dev".into(), "n1".into());
    let node = Node::new(&world, "n1");
    let agent = Agent::start(&world, &gateway, &node, Behind::Sshd(world.path("sshd_config"))).await;
    Desk {
        world,
        gateway,
        _agent: agent,
    }
}

impl Desk {
    /// Gives the user a certificate for logging in as `principal`.
    fn certify(&self, principal: &str) {
        let text = std::fs::read_to_string(self.world.path("id.pub")).expect("a key");
        let key = parse_public_key(&text).expect("a key");
        let user = principal.parse().expect("a name");
        let signed = self
            .world
            .ssh
            .sign_user(
                &key,
                &user,
                &[principal.to_owned()],
                SystemTime::now(),
                USER_VALIDITY,
            )
            .expect("signed");
        std::fs::write(self.world.path("id-cert.pub"), signed.text).expect("written");
    }

    async fn ssh(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let args = [&["-F", "config"], args].concat();
        run("ssh", &args, self.world.dir.path()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_reaches_a_session_with_a_certificate() {
    let desk = desk().await;
    desk.certify("alice");
    let (code, out, error) = desk.ssh(&["-J", "gw", "root@dev", "echo through; exit 7"]).await;
    assert_eq!((code, out.as_str()), (Some(7), "through\n"), "{error}");

    // Bulk, both ways at once, through one channel.
    let copy = "head -c 20000000 /dev/zero | ssh -F config -J gw root@dev cat | wc -c";
    let (_, out, error) = run("sh", &["-c", copy], desk.world.dir.path()).await;
    assert_eq!(out.trim(), "20000000", "{error}");

    // Without the broker the way is not known, and the user is told.
    let (code, _, error) = desk.ssh(&["-J", "gw", "root@nowhere", "true"]).await;
    assert_eq!(code, Some(255));
    assert!(error.contains("alice has no session \"nowhere\""), "{error}");
    desk.gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_reaches_a_session_with_a_registered_key() {
    let desk = desk().await;
    let text = std::fs::read_to_string(desk.world.path("id.pub")).expect("a key");
    let key = canonical(parse_public_key(&text).expect("a key").key_data());
    let (code, _, _) = desk.ssh(&["-J", "gw", "root@dev", "true"]).await;
    assert_eq!(code, Some(255), "a key that nobody has registered");

    desk.world
        .known
        .lock()
        .expect("a lock")
        .keys
        .insert(key, "alice".into());
    // The client offers a key that nobody knows first.
    let other = desk.world.path("other").display().to_string();
    let (code, out, error) = desk
        .ssh(&["-i", &other, "-J", "gw", "root@dev", "echo through"])
        .await;
    assert_eq!((code, out.as_str()), (Some(0), "through\n"), "{error}");
    // It is alice's, so that bob does not get in with it.
    let (code, _, _) = desk.ssh(&["-l", "bob", "gw", "true"]).await;
    assert_eq!(code, Some(255));
    desk.gateway.stop().await;
}

/// The gateway has no shell and opens no way but to sessions.
#[tokio::test(flavor = "multi_thread")]
async fn the_jump_host_is_a_jump_host_only() {
    let desk = desk().await;
    desk.certify("alice");
    for args in [&["gw"][..], &["-tt", "gw"], &["gw", "id"], &["-s", "gw", "sftp"]] {
        let (code, out, error) = desk.ssh(args).await;
        assert_eq!(code, Some(1), "{args:?}: {out} {error}");
        assert!(
            error.contains("there is no shell here") && out.is_empty(),
            "{args:?}: {out} {error}"
        );
    }
    let (code, _, error) = desk.ssh(&["-W", "/etc/passwd:22", "gw"]).await;
    assert!(code == Some(255) && error.contains("has no session"), "{error}");

    desk.certify("mallory");
    let (code, _, error) = desk.ssh(&["gw"]).await;
    assert_eq!(code, Some(255), "another user's certificate: {error}");
    desk.gateway.stop().await;
}

/// Certificates as `ssh-keygen` makes them, each wrong in one thing.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_enter_only_if_all_about_them_is_right() {
    let desk = desk().await;
    let ca = |name: &str| desk.world.path("broker").join(name).display().to_string();
    let (user_ca, host_ca) = (ca("ssh-user-ca"), ca("ssh-host-ca"));
    let alice = &["-n", "alice"][..];
    let cases: [(&str, &str, &[&str]); 10] = [
        ("a host's", &user_ca, &["-h", "-n", "alice"]),
        ("a host's, by the hosts' CA", &host_ca, &["-h", "-n", "alice"]),
        ("by the hosts' CA", &host_ca, alice),
        ("by a stranger", "other", alice),
        ("by itself", "id", alice),
        ("another's", &user_ca, &["-n", "bob"]),
        ("for everybody", &user_ca, &[]),
        ("expired", &user_ca, &["-n", "alice", "-V", "-2h:-1h"]),
        (
            "an unknown critical option",
            &user_ca,
            &["-n", "alice", "-O", "critical:x@example.com=1"],
        ),
        (
            "from elsewhere",
            &user_ca,
            &["-n", "alice", "-O", "source-address=192.0.2.0/24"],
        ),
    ];
    let right = ("alice's own", user_ca.as_str(), alice);
    for (what, signer, options) in cases.into_iter().chain([right]) {
        let args = [&["-q", "-s", signer, "-I", what], options, &["id.pub"]].concat();
        let (code, _, error) = run("ssh-keygen", &args, desk.world.dir.path()).await;
        assert_eq!(code, Some(0), "{what}: {error}");
        let (code, out, error) = desk.ssh(&["-J", "gw", "root@dev", "echo through"]).await;
        let entered = (code, out.as_str()) == (Some(0), "through\n");
        assert_eq!(entered, what == right.0, "{what}: {error}");
        if !entered {
            assert!(error.contains("Permission denied"), "{what}: {error}");
        }
    }
    desk.gateway.stop().await;
}
