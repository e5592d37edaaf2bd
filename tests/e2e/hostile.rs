//! Strangers at every door: whoever belongs there is served meanwhile, and memory stays bounded.

use std::path::PathBuf;

use carrel_tests::cluster::{BROKER_PORT, Cluster, JUMP_PORT, LINK_PORT, Options, STREAM_PORT};
use carrel_tests::process::{Cmd, Daemon};
use carrel_tests::user::{ALICE, ROOT};
use carrel_tests::wait;

use crate::forward::jump;

/// What a program may grow by while strangers come: a thousand handshakes of some ten KiB, and what
/// an allocator keeps of 10,000 connections.
const GROWTH: u64 = 192 << 20;

/// A field of `/proc/PID/status`, bytes.
fn memory(program: &Daemon, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or_else(|| panic!("no {field} of {program:?}")) << 10
}

fn open_files(program: &Daemon) -> usize {
    let files = PathBuf::from(format!("/proc/{}/fd", program.pid()));
    std::fs::read_dir(files).map(Iterator::count).unwrap_or_default()
}

/// `carrel ps` over TLS, with a token.
fn elsewhere(cluster: &Cluster) -> impl Fn(&[&str]) -> Cmd {
    let url = cluster.tls_address();
    move |args| {
        let env = [
            ("CARREL_CONFIG_DIR", "elsewhere"),
            ("CARREL_BROKER", url.as_str()),
        ];
        cluster
            .cmd_with(ALICE, &env, cluster.sandbox().program("carrel"))
            .args(args)
    }
}

/// Ten thousand connections from one address to broker, jump host, agents' link and streams: silent,
/// slow, noisy, with absurd lengths.
#[test]
fn ten_thousand_strangers() {
    let cluster = Cluster::start(&Options::default());
    let remote = elsewhere(&cluster);
    let ca = cluster.json(ROOT, ["node", "token"]);
    let token = cluster.json(ALICE, ["token", "create"]);
    let text = |of: &serde_json::Value, field: &str| of[field].as_str().expect("a text").to_owned();
    let (fingerprint, token) = (text(&ca, "ca_fingerprint"), text(&token, "token"));
    let url = cluster.tls_address();
    remote(&["login", &url, "--fingerprint", &fingerprint, "--token", &token]).ok();
    let session = cluster.open(ALICE, "dev", &["-c", "1", "--mem", "64M"]);
    assert_eq!(jump(&cluster, "alice", "dev").arg("true").run().code, 0);

    let programs = [&cluster.broker, &cluster.gateway, &cluster.agents[0]];
    let before = programs.map(|program| (memory(program, "VmRSS:"), open_files(program)));
    let doors = [BROKER_PORT, JUMP_PORT, LINK_PORT, STREAM_PORT].map(|port| format!("127.0.0.1:{port}"));
    let mut flood = cluster
        .cmd(ROOT, cluster.sandbox().program("bench"))
        .args(["flood", "--from", "127.0.0.9", "--connections", "10000"])
        .args(&doors)
        .spawn();
    let mut served = 0;
    while flood.is_running() || served < 3 {
        remote(&["ps"]).ok();
        session.ssh(["true"]).ok();
        let jumped = jump(&cluster, "alice", "dev").arg("true").run();
        assert_eq!(jumped.code, 0, "{jumped}{}", cluster.last_logs());
        served += 1;
    }
    let report = flood.wait().ok();
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let connected = report["connected"].as_u64().unwrap_or_default();
    assert!(connected >= 9_000, "they were to connect: {report}");

    for (program, (resident, files)) in programs.into_iter().zip(before) {
        let most = memory(program, "VmHWM:");
        assert!(
            most < resident + GROWTH,
            "{program:?} grew from {resident} to {most} bytes"
        );
        wait::until("their connections are closed", || {
            open_files(program) < files + 64
        });
    }
}
