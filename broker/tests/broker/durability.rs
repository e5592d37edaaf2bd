//! What was acknowledged is never lost.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use carrel_proto::v1;
use tokio::task::JoinSet;
use tonic::Code;

use crate::daemon::{Daemon, hint};

const CLIENTS: u32 = 8;

fn user(name: String, uid: u32) -> v1::PutUserRequest {
    let home = format!("/home/{name}/{}", "x".repeat(200));
    v1::PutUserRequest {
        user: Some(v1::User {
            name,
            uid,
            gid: uid,
            home,
            ..v1::User::default()
        }),
    }
}

async fn users(broker: &Daemon) -> BTreeSet<String> {
    let listed = broker
        .client()
        .await
        .list_users(v1::ListUsersRequest {})
        .await
        .expect("listed");
    listed
        .into_inner()
        .users
        .into_iter()
        .map(|user| user.name)
        .collect()
}

/// Eight clients write as fast as they can; the broker is killed in their
/// midst, again and again.
#[tokio::test]
async fn nothing_acknowledged_is_lost_to_kill_9() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("s");
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    for round in 0..6u32 {
        let broker = Daemon::start(&state, &[]).await;
        let kept = users(&broker).await;
        let missing: Vec<String> = acknowledged
            .lock()
            .expect("it")
            .difference(&kept)
            .cloned()
            .collect();
        assert!(missing.is_empty(), "round {round} lost {missing:?}");
        let mut writers = JoinSet::new();
        for client in 0..CLIENTS {
            let mut api = broker.client().await;
            let acknowledged = Arc::clone(&acknowledged);
            writers.spawn(async move {
                for count in 0.. {
                    let number = 1_000_000 * (round + 1) + 100_000 * client + count;
                    let name = format!("u{number}");
                    if api.put_user(user(name.clone(), number)).await.is_err() {
                        return;
                    }
                    acknowledged.lock().expect("it").insert(name);
                }
            });
        }
        // Each round is cut at another number of acknowledgements.
        let enough = acknowledged.lock().expect("it").len() + 40 + 37 * round as usize;
        while acknowledged.lock().expect("it").len() < enough {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        broker.kill();
        while writers.join_next().await.is_some() {}
    }
    let broker = Daemon::start(&state, &[]).await;
    let kept = users(&broker).await;
    assert!(acknowledged.lock().expect("it").is_subset(&kept));
}

/// Without room, reads go on, writes are refused with the reason, and nothing
/// acknowledged is lost; with room again, writes go on.
#[tokio::test]
async fn a_full_disk_refuses_writes_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("s");
    // Room comes as the process's own limit of the size of a file, in blocks of 512 bytes.
    let mut limited = Command::new("sh");
    limited
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -S -f 600; exec \"$@\"")
        .arg("sh");
    limited.arg(env!("CARGO_BIN_EXE_carrel-broker"));
    limited
        .args(["--log", "warn", "serve", "--listen", "127.0.0.1:0", "--state"])
        .arg(&state);
    let broker = Daemon::run(limited, &state).await;
    let mut client = broker.client().await;
    let mut kept = BTreeSet::new();
    let refused = loop {
        let number = 1_000_000 + kept.len() as u32;
        let name = format!("u{number}");
        match client.put_user(user(name.clone(), number)).await {
            Ok(_) => assert!(kept.insert(name)),
            Err(status) => break status,
        }
        assert!(kept.len() < 100_000, "the limit holds");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(
        refused.message().contains("full") && !hint(&refused).is_empty(),
        "{refused:?}"
    );
    let again = client
        .put_user(user("another".into(), 5))
        .await
        .expect_err("still full");
    assert_eq!(again.code(), Code::ResourceExhausted);
    let listed = users(&broker).await;
    assert!(kept.is_subset(&listed) && !listed.contains("another"));

    let pid = broker.pid().to_string();
    let raised = Command::new("prlimit")
        .args(["--pid", &pid, "--fsize=unlimited"])
        .status()
        .expect("prlimit");
    assert!(raised.success());
    client
        .put_user(user("another".into(), 5))
        .await
        .expect("room again");
    kept.insert("another".into());
    broker.kill();
    let broker = Daemon::start(&state, &[]).await;
    assert!(kept.is_subset(&users(&broker).await));
}
