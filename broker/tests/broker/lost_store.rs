//! The store is gone, or another cluster's: nodes are answered, nothing of theirs is ended, and the broker says
//! what it found.

use std::fs;
use std::path::Path;

use carrel_proto::v1;
use tonic::Code;

use crate::agent::{Agent, Host, join};
use crate::daemon::{Daemon, hint};

const STORE: [&str; 3] = ["broker.db", "broker.db-wal", "broker.db-shm"];

fn remove_store(state: &Path) {
    for file in STORE {
        fs::remove_file(state.join(file)).ok();
    }
}

async fn found(broker: &Daemon) -> v1::ListFoundResponse {
    let found = broker.client().await.list_found(v1::ListFoundRequest {}).await;
    found.expect("listed").into_inner()
}

async fn node(broker: &Daemon) -> v1::Node {
    let nodes = broker.client().await.list_nodes(v1::ListNodesRequest {}).await;
    nodes.expect("listed").into_inner().nodes.remove(0)
}

/// What the node runs: a session that this broker has never heard of.
fn runs(agent: &mut Agent, cluster: &str, user: &str) {
    agent.observed.jobs = vec![v1::ObservedJob {
        job: 41,
        generation: 9 << 40 | 1,
        session: 7,
        phase: v1::ObservedPhase::Ready.into(),
        host_public_key: "ssh-ed25519 AAAA".into(),
        gpus: vec!["GPU-n1-0".into()],
        cpus: 2,
        memory_bytes: 1 << 30,
        user: user.into(),
        name: "dev".into(),
        deadline_ms: 4_000_000_000_000,
        cluster: cluster.into(),
        nodes: 1,
        image: "busybox".into(),
        ..v1::ObservedJob::default()
    }];
}

/// A node that has obeyed the broker's ninth start.
async fn link(host: &Host, broker: &Daemon, cluster: &str) -> Agent {
    let mut agent = host.link(broker).await.expect("linked");
    agent.observed.cluster = cluster.into();
    agent.observed.incarnation = Some(v1::Incarnation { number: 9, nonce: 1 });
    runs(&mut agent, cluster, "root");
    agent
}

#[tokio::test]
async fn a_lost_store_is_explained_and_made_good() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("s");
    let broker = Daemon::start(&state, &[]).await;
    assert_eq!(found(&broker).await, v1::ListFoundResponse::default());
    let host = join(&broker, "n1").await;
    let removed = join(&broker, "n2").await;
    let remove = v1::UpdateNodeRequest {
        name: "n2".into(),
        action: v1::NodeAction::Remove.into(),
        ..v1::UpdateNodeRequest::default()
    };
    broker.client().await.update_node(remove).await.expect("removed");
    let cluster = host.link(&broker).await.expect("linked").exchange().await.cluster;
    broker.kill();
    remove_store(&state);

    let broker = Daemon::start(&state, &[]).await;
    let mut agent = link(&host, &broker, &cluster).await;
    let answer = agent.exchange().await;
    assert_eq!(answer.cluster, cluster, "the authority is the cluster");
    assert_eq!(answer.incarnation.expect("one").number, 10);
    assert!(answer.jobs.is_empty() && answer.tombstones.is_empty() && answer.lease_ms > 0);
    assert!(broker.log_text().contains("it was lost"), "{}", broker.log_text());
    assert!(
        broker.log_text().contains("does not know"),
        "{}",
        broker.log_text()
    );
    let refused = removed.link(&broker).await.err().expect("it was removed before");
    assert_eq!(refused.code(), Code::Unauthenticated);

    let listed = found(&broker).await;
    assert!(listed.store.contains("it was lost"), "{listed:?}");
    assert_eq!(listed.nodes, ["n1"]);
    assert_eq!(node(&broker).await.state, "FOUND");
    let mut client = broker.client().await;
    let adopt = || v1::AdoptFoundRequest { key: "41".into() };
    let early = client
        .adopt_found(adopt())
        .await
        .expect_err("its node is not adopted");
    assert!(hint(&early).contains("carrel node adopt n1"), "{early:?}");
    let take = v1::UpdateNodeRequest {
        name: "n1".into(),
        action: v1::NodeAction::Adopt.into(),
        ..v1::UpdateNodeRequest::default()
    };
    client.update_node(take).await.expect("adopted");
    // root is in this machine's name service.
    let session = client.adopt_found(adopt()).await.expect("adopted").into_inner();
    assert_eq!((session.name.as_str(), session.user.as_str()), ("dev", "root"));
    agent
        .hear_until("the adopted job", |desired| {
            desired.jobs.iter().any(|job| job.job == 41 && job.ready)
        })
        .await;
    assert!(found(&broker).await.jobs.is_empty());
}

#[tokio::test]
async fn a_foreign_store_rules_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (state, theirs) = (dir.path().join("s"), dir.path().join("t"));
    let other = Daemon::start(&theirs, &[]).await;
    let other_host = join(&other, "n1").await;
    let foreign = other_host
        .link(&other)
        .await
        .expect("linked")
        .exchange()
        .await
        .cluster;
    other.kill();
    let broker = Daemon::start(&state, &[]).await;
    let host = join(&broker, "n1").await;
    let cluster = host.link(&broker).await.expect("linked").exchange().await.cluster;
    assert_ne!(cluster, foreign);
    broker.kill();
    remove_store(&state);
    for file in STORE {
        if theirs.join(file).exists() {
            fs::copy(theirs.join(file), state.join(file)).expect("copied");
        }
    }

    let broker = Daemon::start(&state, &[]).await;
    let mut agent = link(&host, &broker, &cluster).await;
    let seq = agent.say().await;
    let answer = agent.hear().await.expect("it is answered, for its lease's sake");
    assert_eq!((answer.cluster, answer.renews), (foreign, seq));
    assert!(answer.jobs.is_empty() && answer.tombstones.is_empty());
    let listed = found(&broker).await;
    assert!(listed.store.contains("of another cluster"), "{listed:?}");
    assert!(
        listed.jobs[0].obstacle.contains("of another cluster"),
        "{listed:?}"
    );
    let node = node(&broker).await;
    assert!(node.reason.contains(&cluster), "{node:?}");
    assert!(
        broker.log_text().contains("obeys another cluster"),
        "{}",
        broker.log_text()
    );
}
