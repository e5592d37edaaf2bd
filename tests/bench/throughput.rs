//! SSH bulk transfer: carrel-init against OpenSSH's server, reached alike.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use carrel_tests::cluster::Cluster;
use carrel_tests::process::Cmd;
use carrel_tests::user::{ALICE, ROOT};

use crate::relay;
use crate::report::{figure, quantile};

/// The cipher of every transfer: what both ends do fastest.
const CIPHER: &str = "aes128-gcm@openssh.com";

/// One way to a server.
struct Way {
    name: &'static str,
    /// `ssh` with everything but the command.
    ssh: Cmd,
    seconds: [Vec<f64>; 2],
}

/// The two directions of a transfer.
const DIRECTIONS: [&str; 2] = ["download", "upload"];

/// Measures all ways in turns, so that a change of the machine's pace meets each.
pub fn measure(cluster: &Cluster, bytes: u64, rounds: usize) -> anyhow::Result<()> {
    let session = cluster.open(ROOT, "bulk", &["-c", "2", "--mem", "2G"]);
    let mut ways = ways(cluster, &session.alias())?;
    for round in 0..=rounds {
        for way in &mut ways {
            for (direction, name) in DIRECTIONS.iter().enumerate() {
                let size = if round == 0 { bytes / 32 } else { bytes };
                let taken = transfer(&way.ssh, name, size)?;
                if round > 0 {
                    eprintln!("{} {name}: {:.2} s", way.name, taken.as_secs_f64());
                    way.seconds[direction].push(taken.as_secs_f64());
                }
            }
        }
    }
    let [init, sshd, carrel, relays] = &ways[..] else {
        bail!("four ways")
    };
    for (direction, name) in DIRECTIONS.iter().enumerate() {
        let median = |way: &Way| quantile(&way.seconds[direction], 0.5);
        for way in &ways {
            let rate = bytes as f64 / 1e6 / median(way);
            figure(&format!("session.ssh.{name}.{}", way.name), rate, "MB/s", "");
        }
        let ratio = |way: &Way, than: &Way| median(than) / median(way);
        figure(
            &format!("session.ssh.{name}.init_to_sshd"),
            ratio(init, sshd),
            "ratio",
            ">= 1",
        );
        figure(
            &format!("session.ssh.{name}.gateway_and_agent_to_relays"),
            ratio(carrel, relays),
            "ratio",
            ">= 0.9",
        );
    }
    Ok(())
}

/// Zeros one way or the other, through `ssh`.
fn transfer(ssh: &Cmd, direction: &str, bytes: u64) -> anyhow::Result<Duration> {
    let script = match direction {
        "download" => format!("\"$@\" 'head -c {bytes} /dev/zero' >/dev/null"),
        _ => format!("head -c {bytes} /dev/zero | \"$@\" 'cat >/dev/null'"),
    };
    let start = Instant::now();
    let output = Cmd::new(["bash", "-c", &script, "bash"].map(Into::into).to_vec())
        .args(ssh.argv())
        .run();
    if output.code != 0 {
        bail!("{output}");
    }
    Ok(start.elapsed())
}

fn ways(cluster: &Cluster, alias: &str) -> anyhow::Result<[Way; 4]> {
    let root = cluster.root();
    let bench = cluster.sandbox().program("bench");
    let sshd = root.join("sshd.sock");
    let (relay_a, relay_b) = (root.join("relay-a.sock"), root.join("relay-b.sock"));
    relay::serve(sshd.clone(), openssh_server(cluster)?)?;
    relay::relay(relay_b.clone(), sshd.clone())?;
    relay::relay(relay_a.clone(), relay_b)?;

    let ssh = |options: &[String]| {
        let options = options.iter().flat_map(|option| ["-o", option]);
        cluster
            .ssh(ROOT, ["-o", &format!("Ciphers={CIPHER}"), "-o", "Compression=no"])
            .args(options)
    };
    let passed = |socket: &Path| {
        [
            format!(
                "ProxyCommand={} pass-socket {}",
                bench.display(),
                socket.display()
            ),
            "ProxyUseFdpass=yes".into(),
        ]
    };
    let piped = |socket: &Path| {
        [format!(
            "ProxyCommand={} pipe {}",
            bench.display(),
            socket.display()
        )]
    };
    let plain = [
        format!("IdentityFile={}", root.join("sshd/client").display()),
        "StrictHostKeyChecking=no".into(),
        "UserKnownHostsFile=/dev/null".into(),
        "LogLevel=ERROR".into(),
        format!("User={}", ALICE.name),
    ];
    // Root's session: only root may read the job's socket, and OpenSSH reads no one else's configuration.
    let config = cluster.sandbox().home(ROOT).join(".ssh/config");
    let config = config.to_str().context("a path in UTF-8")?;
    let own = |options: &[String]| ssh(options).args(["-F", config, alias]);
    let theirs = |options: &[String]| {
        ssh(options)
            .args(["-F", "none"])
            .args(plain.iter().flat_map(|o| ["-o", o]))
            .arg("sshd")
    };
    let way = |name, ssh| Way {
        name,
        ssh,
        seconds: Default::default(),
    };
    Ok([
        way("init", own(&passed(&session_socket(cluster)?))),
        way("sshd", theirs(&passed(&sshd))),
        way("gateway_and_agent", own(&[])),
        way("relays", theirs(&piped(&relay_a))),
    ])
}

/// The socket of the only session's SSH server.
fn session_socket(cluster: &Cluster) -> anyhow::Result<PathBuf> {
    let jobs = cluster.node_state(0).join("jobs");
    let found = fs::read_dir(&jobs).with_context(|| format!("reading {}", jobs.display()))?;
    let sockets = found
        .flatten()
        .map(|entry| entry.path().join("run/ssh.sock"))
        .filter(|path| path.exists());
    sockets.last().context("no session runs")
}

/// OpenSSH's server for one connection on its standard streams, inside the sandbox.
fn openssh_server(cluster: &Cluster) -> anyhow::Result<Cmd> {
    let dir = cluster.root().join("sshd");
    fs::create_dir(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    let key = |name: &str| {
        let path = dir.join(name);
        cluster
            .cmd(ROOT, "ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(&path)
            .ok();
        path
    };
    let (host, client) = (key("host"), key("client"));
    let authorized = dir.join("authorized_keys");
    fs::copy(client.with_extension("pub"), &authorized)?;
    chown(&authorized, Some(ALICE.uid), Some(ALICE.uid))?;
    let config = dir.join("config");
    let text = format!(
        "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nUseDNS no\nLogLevel ERROR\n",
        host.display(),
        authorized.display()
    );
    fs::write(&config, text)?;
    // Where its privilege separation lives; the sandbox's /run is empty.
    cluster.cmd(ROOT, "mkdir").args(["-p", "/run/sshd"]).ok();
    Ok(cluster
        .cmd(ROOT, "/usr/sbin/sshd")
        .args(["-i", "-e", "-f"])
        .arg(config))
}
