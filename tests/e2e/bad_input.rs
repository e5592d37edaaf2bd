//! Bad input: a clear message, and nothing lost.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use carrel_proto::v1::broker_client::BrokerClient;
use carrel_proto::v1::{AddSshKeyRequest, GetClusterRequest, GetSessionRequest};
use carrel_tests::cluster::{BROKER_PORT, Cluster, JUMP_PORT, LINK_PORT, Options, STREAM_PORT};
use carrel_tests::image::Image;
use carrel_tests::programs::repository;
use carrel_tests::user::{ALICE, ROOT};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tonic::transport::Endpoint;

use crate::shared::{self, SMALL};

/// Exit code of a mistake on the command line.
const USAGE: i32 = 2;

/// Numbers that make no sense are refused before anything is asked of the broker.
#[test]
fn numbers() {
    let cluster = shared::cluster();
    let requests = [
        "--gpus-per-task 0",
        "--gpus -1",
        "--gpus 1.5",
        "--gpus 1e9",
        "--gpus 99999999999999999999",
        "-N 0",
        "-N -3",
        "-c 0",
        "-c -1",
        "--mem-per-cpu 0",
        "--mem -1G",
        "--mem 99999999999999999999T",
        "--mem 12Q",
        "-t 0",
        "-t -5",
        "-t banana",
    ];
    for request in requests {
        let output = cluster
            .carrel(ALICE, ["alloc"])
            .args(request.split(' '))
            .args(["--", "true"])
            .run();
        assert_eq!(output.code, USAGE, "{request}: {output}");
        assert!(
            output
                .stderr
                .contains(request.split(' ').nth(1).unwrap_or_default()),
            "{request}: {output}"
        );
    }
}

/// What no node could ever give is refused at once, with what there is.
#[test]
fn more_than_there_is() {
    let cluster = shared::cluster();
    let refused = |request: &str, words: &[&str]| {
        let output = cluster
            .carrel(ALICE, ["alloc"])
            .args(request.split(' '))
            .args(["--", "true"])
            .run();
        assert_ne!(output.code, 0, "{request}: {output}");
        let said = output.stderr.to_lowercase();
        for word in words {
            assert!(said.contains(word), "{request}: nothing about {word:?}: {output}");
        }
    };
    refused("--gpus 9", &["9", "8"]);
    refused(
        "--gpus 4 --gpu-model voodoo",
        &["voodoo", "nearest", "(nvidia h100 80gb hbm3)"],
    );
    refused("-N 400 --gpus-per-node 1", &["400"]);
    refused("-c 100000", &["cpu"]);
    refused("--mem 900T", &["memory"]);
    assert!(!cluster.json(ALICE, ["ps"]).to_string().contains("PENDING"));
}

/// A name that is taken by a live session, and names that are none.
#[test]
fn names() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "taken", &SMALL);
    let before = session.record();
    let output = cluster
        .carrel(ALICE, ["alloc", "--name", "taken"])
        .args(SMALL)
        .args(["--", "true"])
        .run();
    assert_ne!(output.code, 0, "{output}");
    assert!(output.stderr.contains("taken"), "{output}");
    assert_eq!(session.record()["job"]["id"], before["job"]["id"]);
    let long = "a".repeat(64);
    for name in ["Dev", "a b", "-a", "a.b", "../x", "ü", long.as_str()] {
        let output = cluster
            .carrel(ALICE, ["alloc", &format!("--name={name}")])
            .args(SMALL)
            .args(["--", "true"])
            .run();
        assert_eq!(output.code, USAGE, "{name}: {output}");
    }
    cluster
        .carrel(ALICE, ["ssh", "nobody-has-this"])
        .run()
        .fails(3, &["nobody-has-this"]);
    cluster
        .carrel(ALICE, ["show", "nobody-has-this"])
        .run()
        .fails(3, &["nobody-has-this"]);
}

/// A host without a working NVML is a CPU node that says why.
#[test]
fn nvml_is_missing() {
    let cluster = shared::cluster();
    let nodes = cluster.json(ROOT, ["nodes"]);
    let node = nodes
        .as_array()
        .expect("nodes")
        .iter()
        .find(|node| node["name"] == "n1")
        .expect("n1");
    assert_eq!(node["gpus_total"], 0, "{node}");
    assert!(
        node["gpu_note"]
            .as_str()
            .is_some_and(|note| note.contains("/nonexistent/libnvidia-ml.so.1")),
        "{node}"
    );
    let note = |env: &[(&str, &str)], library: &Path| {
        let probe = cluster.cmd_with(ROOT, env, cluster.sandbox().program("carrel-node"));
        let probe = probe
            .args(["probe", "--output", "json", "--nvml-library"])
            .arg(library)
            .ok();
        let found: Value = serde_json::from_str(&probe).expect("JSON");
        found["gpu_note"].as_str().expect("a text").to_lowercase()
    };
    let missing = note(&[], Path::new("/nonexistent/libnvidia-ml.so.1"));
    assert!(missing.contains("/nonexistent/libnvidia-ml.so.1"), "{missing}");

    // Driver and library are of different versions.
    let host = fs::read_to_string(repository().join("tests/hosts/hgx-h100.toml")).expect("a host");
    let mismatch = cluster.root().join("mismatch.toml");
    fs::write(&mismatch, format!("init = \"lib-rm-version-mismatch\"\n{host}")).expect("own file");
    let env = [("CARREL_FAKE_NVML", mismatch.to_str().expect("UTF-8"))];
    let said = note(&env, &cluster.sandbox().program("libnvidia_ml.so"));
    assert!(said.contains("version mismatch"), "{said}");
}

/// A host without containerd is told what to install.
#[test]
fn containerd_is_missing() {
    let cluster = shared::cluster();
    // Hidden from this one command.
    let hide = "mount --bind /dev/null /usr/bin/containerd && exec \"$@\"";
    let init = cluster.sandbox().carrel_init();
    let env = [("CARREL_INIT", init.to_str().expect("UTF-8"))];
    let node = cluster
        .cmd_with(ROOT, &env, "unshare")
        .args(["--mount", "sh", "-c", hide, "sh"]);
    let import = node
        .arg(cluster.sandbox().program("carrel-node"))
        .args(["image", "import", "--state"]);
    let import = import
        .arg(cluster.root().join("no-containerd"))
        .args(["--name", "local/x"]);
    let output = import.arg(Image::Empty.archive()).run();
    output.fails(1, &["containerd", "apt-get install"]);
}

/// A second broker on a state directory is refused and does the first no harm.
#[test]
fn two_brokers_on_one_state_directory() {
    let cluster = shared::cluster();
    let state = cluster.root().join("broker");
    let second = cluster.cmd(ROOT, cluster.sandbox().program("carrel-broker"));
    let output = second
        .args(["serve", "--state"])
        .arg(&state)
        .args(["--listen", "127.0.0.1:7999"])
        .run();
    assert_ne!(output.code, 0, "{output}");
    assert!(output.stderr.contains(state.to_str().expect("UTF-8")), "{output}");
    assert_eq!(cluster.carrel(ALICE, ["ps"]).run().code, 0);
}

/// An unknown key in a config file is named with its place.
#[test]
fn unknown_config_keys() {
    let cluster = shared::cluster();
    let config = cluster.root().join("odd.toml");
    fs::write(&config, "\nno_such_key = 1\n").expect("own file");
    for program in ["carrel-broker", "carrel-node"] {
        let verb = if program == "carrel-broker" {
            "serve"
        } else {
            "run"
        };
        let output = cluster
            .cmd(ROOT, cluster.sandbox().program(program))
            .args([verb, "--config"])
            .arg(&config)
            .arg("--state")
            .arg(cluster.root().join("odd-state"))
            .run();
        assert_ne!(output.code, 0, "{output}");
        assert!(
            output.stderr.contains("no_such_key") && output.stderr.contains("odd.toml"),
            "{output}"
        );
    }
    let dir = cluster.root().join("odd-config");
    fs::create_dir_all(&dir).expect("own directory");
    fs::write(dir.join("config.toml"), "no_such_key = 1\n").expect("own file");
    let env = [("CARREL_CONFIG_DIR", dir.to_str().expect("UTF-8"))];
    let output = cluster
        .cmd_with(ALICE, &env, cluster.sandbox().program("carrel"))
        .arg("ps")
        .run();
    output.fails(USAGE, &["no_such_key", "config.toml"]);
}

/// Garbage on every port and socket ends that connection and nothing else.
#[test]
fn garbage_on_the_sockets() {
    let cluster = Cluster::start(&Options::default());
    let session = cluster.open(ALICE, "dev", &["-c", "1", "--mem", "64M"]);
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // A settings frame that claims 16 MiB, then a headers frame of nonsense.
    let frames = [
        &http2[..],
        &[0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0],
        &[0, 0, 9, 1, 4, 0, 0, 0, 1],
        &[0xff; 9],
    ]
    .concat();
    let noise: Vec<u8> = (0..1_000_000_u32)
        .map(|n| (n.wrapping_mul(2_246_822_519) >> 11) as u8)
        .collect();
    let payloads: [&[u8]; 5] = [b"\n", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 64], &frames, &noise];
    for payload in payloads {
        let socket = UnixStream::connect(cluster.root().join("broker/broker.sock")).expect("it listens");
        throw(&socket, payload);
        for port in [BROKER_PORT, JUMP_PORT, LINK_PORT, STREAM_PORT] {
            throw(&cluster.sandbox().connect(port).expect("it listens"), payload);
        }
    }
    assert_eq!(
        cluster.carrel(ALICE, ["ps"]).run().code,
        0,
        "{}",
        cluster.last_logs()
    );
    assert_eq!(session.ssh(["echo", "still"]).ok(), "still");
}

/// Messages larger than any that makes sense are refused, and the broker goes on.
#[test]
fn oversized_messages() {
    let cluster = shared::cluster();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let socket = cluster.root().join("broker/broker.sock");
    runtime.block_on(async {
        let connect = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(socket).await?)) }
        });
        // The URI is never dialled; HTTP/2 wants one.
        let channel = Endpoint::from_static("http://broker").connect_with_connector(connect).await;
        let mut client = BrokerClient::new(channel.expect("it listens"));
        for size in [1 << 20, 16 << 20, 256 << 20] {
            let request = AddSshKeyRequest { public_key: "A".repeat(size) };
            let refused = client.add_ssh_key(request).await.expect_err("no key is so long");
            assert!(!refused.message().is_empty(), "{size} bytes");
        }
        let request = GetSessionRequest { name: "\u{0}".repeat(60_000) };
        client.get_session(request).await.expect_err("no session has such a name");
        client.get_cluster(GetClusterRequest {}).await.expect("it goes on");
    });
}

/// Writes what the other side takes and reads what it says, until it has had enough or is silent.
fn throw<S>(stream: &S, payload: &[u8])
where
    for<'a> &'a S: Read + Write,
    S: Timeouts,
{
    stream.limit();
    let mut stream = stream;
    // The other side may hang up at any byte: that is what is wanted of it.
    stream.write_all(payload).ok();
    stream.read_exact(&mut [0; 4096]).ok();
}

trait Timeouts {
    fn limit(&self);
}

impl Timeouts for UnixStream {
    fn limit(&self) {
        self.set_read_timeout(Some(SILENCE)).expect("a socket");
        self.set_write_timeout(Some(SILENCE)).expect("a socket");
    }
}

impl Timeouts for std::net::TcpStream {
    fn limit(&self) {
        self.set_read_timeout(Some(SILENCE)).expect("a socket");
        self.set_write_timeout(Some(SILENCE)).expect("a socket");
    }
}

/// A server that waits for more is silent for longer than this.
const SILENCE: std::time::Duration = std::time::Duration::from_millis(200);
