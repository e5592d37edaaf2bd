//! Starting it wrongly, and ending it.

use std::fs;

use carrel_proto::v1;

use crate::agent::join;
use crate::daemon::{Daemon, by_name, command, open};

#[tokio::test]
async fn an_unknown_key_is_named_with_file_and_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("broker.toml");
    fs::write(&file, "cluster = \"lab\"\nmax_tiem = \"1d\"\n").expect("written");
    let config = file.to_str().expect("text");
    let output = command(&dir.path().join("s"), &["--config", config])
        .output()
        .expect("run");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&format!("{config}:2:")) && said.contains("`max_tiem`"),
        "{said}"
    );
    assert!(!dir.path().join("s").exists(), "nothing was touched");

    fs::write(&file, "cluster = \"lab\"\nlease = \"90s\"\n").expect("written");
    let output = command(&dir.path().join("s"), &["--config", config, "--print-config"])
        .output()
        .expect("run");
    let printed = String::from_utf8(output.stdout).expect("text");
    assert!(
        printed.contains("lease = \"1m30s\"") && printed.contains("cluster = \"lab\""),
        "{printed}"
    );
}

#[tokio::test]
async fn a_second_broker_is_told_who_holds_the_state() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("s");
    let broker = Daemon::start(&state, &[]).await;
    let output = command(&state, &["--listen", "none"]).output().expect("run");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&format!("process {}", broker.pid())) && said.contains("--state"),
        "{said}"
    );

    // Another state directory, but the first one's socket.
    let socket = broker.socket();
    let socket = socket.to_str().expect("text");
    let output = command(&dir.path().join("t"), &["--listen", "none", "--socket", socket])
        .output()
        .expect("run");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another program listens"));
    broker
        .client()
        .await
        .get_cluster(v1::GetClusterRequest {})
        .await
        .expect("unharmed");
}

#[tokio::test]
async fn it_ends_when_asked_with_streams_open_and_keeps_its_secrets() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut agent = join(&broker, "n1").await.link(&broker).await.expect("linked");
    agent.exchange().await;
    let mut client = broker.client().await;
    client.open_session(open("dev", 1)).await.expect("opened");
    let mut watch = client
        .watch_session(by_name("dev"))
        .await
        .expect("watched")
        .into_inner();
    for entry in fs::read_dir(&broker.state).expect("a directory") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
        let expected = match entry.file_name().to_str().expect("text") {
            "broker.sock" => 0o666,
            "listen" => 0o644,
            _ => 0o600,
        };
        assert_eq!(mode, expected, "{:?}", entry.file_name());
    }
    let socket = broker.socket();
    let status = broker.terminate().await;
    assert_eq!(status.code(), Some(0));
    assert!(!socket.exists());
    let end = loop {
        match watch.message().await {
            Ok(Some(_)) => {}
            Ok(None) => break None,
            Err(status) => break Some(status.code()),
        }
    };
    assert_eq!(end, Some(tonic::Code::Unavailable));
    assert_eq!(agent.end().await.code(), tonic::Code::Unavailable);
}
