//! Forwards: local ports and sockets, SOCKS, the agent, shared connections, the jump host.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use carrel_tests::cluster::{Cluster, JUMP_PORT, Session};
use carrel_tests::process::{Cmd, Running};
use carrel_tests::user::ALICE;
use carrel_tests::wait;
use nix::sys::signal::Signal;

use crate::shared::{self, SMALL};

/// Says "echo:" and then sends back what comes, on 127.0.0.1:4000 or on a Unix socket.
const ECHO: &str = r#"
import socket, sys, threading
where = sys.argv[1]
server = socket.socket(socket.AF_UNIX if "/" in where else socket.AF_INET)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(where if "/" in where else ("127.0.0.1", int(where)))
server.listen()
print("listening", flush=True)
def serve(peer):
    peer.sendall(b"echo:")
    while data := peer.recv(65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
while True:
    threading.Thread(target=serve, args=[server.accept()[0]], daemon=True).start()
"#;

/// An echo server inside a session, listening when this returns.
fn echo(session: &Session<'_>, at: &str) -> Running {
    let code = ECHO.replace('\'', "'\\''");
    let running = session.ssh([format!("exec python3 -c '{code}' {at}")]).spawn();
    let listens = if at.contains('/') {
        format!("test -S {at}")
    } else {
        format!("echo </dev/tcp/127.0.0.1/{at}")
    };
    wait::until("the echo server listens", || {
        session.ssh([format!("bash -c '{listens}'")]).run().code == 0
    });
    running
}

/// Sends bytes, closes its side, and wants them back after "echo:".
fn round_trip(mut stream: &TcpStream) {
    stream.write_all(b"ping").expect("an open stream");
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"echo:ping");
    stream.shutdown(Shutdown::Write).expect("an open stream");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("an end");
    assert_eq!(rest, b"");
}

fn stop(running: Running) {
    running.signal(Signal::SIGTERM);
    running.wait();
}

fn connect(cluster: &Cluster, port: u16) -> TcpStream {
    wait::poll(wait::PATIENCE, || cluster.sandbox().connect(port).ok()).expect("the forward listens")
}

/// `-L` to a port and to a socket: both ends' closes pass, and a refused target is not the end.
#[test]
fn local_forwards() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "forward-l", &SMALL);
    let servers = [echo(&session, "4000"), echo(&session, "/tmp/echo.sock")];
    let forward = cluster
        .ssh(
            ALICE,
            [
                "-N",
                "-L",
                "4100:127.0.0.1:4000",
                "-L",
                "4101:/tmp/echo.sock",
                "-L",
                "4102:127.0.0.1:1",
            ],
        )
        .arg(session.alias())
        .spawn();
    for port in [4100, 4101, 4100] {
        round_trip(&connect(cluster, port));
    }
    let mut nothing = Vec::new();
    // A refused target: the client closes at once, with or without a reset.
    connect(cluster, 4102).read_to_end(&mut nothing).ok();
    assert_eq!(nothing, b"");
    round_trip(&connect(cluster, 4100));
    stop(forward);
    servers.into_iter().for_each(stop);
}

/// `-D`: SOCKS 5, with a name that only the session resolves.
#[test]
fn dynamic_forwards() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "forward-d", &SMALL);
    let server = echo(&session, "4000");
    let forward = cluster
        .ssh(ALICE, ["-N", "-D", "4200"])
        .arg(session.alias())
        .spawn();
    let mut stream = connect(cluster, 4200);
    stream.write_all(&[5, 1, 0]).expect("an open stream");
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, [5, 0]);
    let name = b"localhost";
    let mut request = vec![5, 1, 0, 3, name.len() as u8];
    request.extend_from_slice(name);
    request.extend_from_slice(&4000_u16.to_be_bytes());
    stream.write_all(&request).expect("an open stream");
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[..2], [5, 0]);
    round_trip(&stream);
    stop(forward);
    stop(server);
}

/// `-A`: the session sees the keys of the user's agent, and only while connected so.
#[test]
fn the_agent_is_forwarded() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "forward-a", &SMALL);
    let script = format!(
        "ssh-keygen -q -t ed25519 -N '' -C travelling-key -f ~/travelling && \
         ssh-add -q ~/travelling && ssh -o BatchMode=yes -A {alias} ssh-add -l; \
         ssh -o BatchMode=yes {alias} 'echo sock=$SSH_AUTH_SOCK'",
        alias = session.alias()
    );
    let listed = cluster.cmd(ALICE, "ssh-agent").args(["bash", "-c", &script]).ok();
    assert!(listed.contains("travelling-key"), "{listed}");
    assert!(listed.ends_with("sock="), "{listed}");
}

/// ControlMaster: many commands at once over one connection.
#[test]
fn a_shared_connection() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "master", &SMALL);
    let socket = cluster.root().join("home/alice/master");
    let socket = socket.to_str().expect("UTF-8");
    let ssh = |args: &[&str]| cluster.ssh(ALICE, ["-S", socket]).args(args).arg(session.alias());
    let master = ssh(&["-M", "-N"]).spawn();
    wait::until("the master is up", || ssh(&["-O", "check"]).run().code == 0);
    let many: Vec<_> = (0..8)
        .map(|n| {
            (
                n,
                ssh(&["-o", "ControlMaster=no"])
                    .arg(format!("echo {n}; exit {n}"))
                    .spawn(),
            )
        })
        .collect();
    for (n, running) in many {
        let output = running.wait();
        assert_eq!(
            (output.code, output.stdout.trim()),
            (n, n.to_string().as_str()),
            "{output}"
        );
    }
    ssh(&["-O", "exit"]).ok();
    master.wait();
}

/// `-J`: any SSH client, through the gateway as a plain jump host, with the user's certificate.
#[test]
fn the_jump_host() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "jumped", &SMALL);
    let output = jump(cluster, ALICE.name, "jumped")
        .arg("echo $CARREL_JOB_ID")
        .run();
    assert_eq!(
        output.clone().ok(),
        session.record()["job"]["id"].to_string(),
        "{output}"
    );
    let nowhere = jump(cluster, ALICE.name, "no-such-session").arg("true").run();
    assert_eq!(nowhere.code, 255, "{nowhere}");
    assert!(nowhere.stderr.contains("no-such-session"), "{nowhere}");
}

/// Alice's OpenSSH with nothing of Carrel's but the key, the certificate and the host CA, logging in
/// as `user` to `target` through the gateway.
pub fn jump(cluster: &Cluster, user: &str, target: &str) -> Cmd {
    let home = cluster.sandbox().home(ALICE);
    let files = home.join(".ssh/carrel");
    let entries = std::fs::read_dir(&files).expect("alice has signed in").flatten();
    let dir = entries
        .map(|entry| entry.path())
        .find(|path| path.is_dir())
        .expect("one cluster");
    let known = std::fs::read_to_string(dir.join("known_hosts")).expect("host CAs");
    let known = known.replace("@cert-authority *.carrel ", "@cert-authority * ");
    let key = files.join("id_ed25519");
    let config = format!(
        "Host *\n  IdentityFile {key}\n  CertificateFile {dir}/id_ed25519-cert.pub\n  IdentitiesOnly yes\n  \
         StrictHostKeyChecking yes\n  UserKnownHostsFile {home}/jump-hosts\n  User {user}\n  BatchMode yes\n\
         Host gateway\n  HostName 127.0.0.1\n  Port {JUMP_PORT}\n\
         Host {target}\n  ProxyJump gateway\n  HostKeyAlias {target}.{user}.carrel\n",
        key = key.display(),
        dir = dir.display(),
        home = home.display(),
    );
    let own = |name: &str, text: &str| {
        let path = home.join(name);
        std::fs::write(&path, text).expect("own file");
        std::os::unix::fs::chown(&path, Some(ALICE.uid), Some(ALICE.uid)).expect("root may give away");
        path
    };
    own("jump-hosts", &known);
    let config = own(&format!("jump-{target}-{user}"), &config);
    cluster.cmd(ALICE, "ssh").arg("-F").arg(config).arg(target)
}
