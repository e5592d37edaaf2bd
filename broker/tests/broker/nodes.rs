//! How hosts become nodes, and who is kept out.

use carrel_proto::v1;
use carrel_proto::v1::node_join_client::NodeJoinClient;
use tonic::Code;

use crate::agent::{inventory, join, join_with, request, token};
use crate::daemon::{Daemon, hint};

#[tokio::test]
async fn join_tokens_are_good_once_and_for_their_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let n1 = token(&broker, "n1").await;
    let other = join_with(&broker, "n2", &n1)
        .await
        .err()
        .expect("for another node");
    assert_eq!(other.code(), Code::PermissionDenied);
    assert!(join_with(&broker, "n1", &n1).await.is_ok());
    let again = join_with(&broker, "n1", &n1).await.err().expect("used");
    assert_eq!(again.code(), Code::PermissionDenied);
    assert!(hint(&again).contains("carrel node token"), "{again:?}");
    for wrong in [
        "",
        "nonsense",
        "carrelnode_0000000000000000000000000000000000000000000",
    ] {
        let refused = join_with(&broker, "n3", wrong).await.err().expect(wrong);
        assert_eq!(refused.code(), Code::PermissionDenied, "{wrong}");
    }
    let any = token(&broker, "").await;
    let refused = join_with(&broker, "no/name", &any).await.err().expect("no name");
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_certificate_is_renewed_and_a_removed_node_is_cut_off() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut client = broker.client().await;
    let host = join(&broker, "n1").await;
    let mut agent = host.link(&broker).await.expect("linked");
    agent.exchange().await;
    let nodes = client
        .list_nodes(v1::ListNodesRequest {})
        .await
        .expect("listed")
        .into_inner()
        .nodes;
    assert_eq!((nodes[0].state.as_str(), nodes[0].gpu_holders.len()), ("IDLE", 8));

    // The answer to a renewal may be lost: the old certificate is good until the new one is renewed.
    let (key, csr_der) = request();
    let mut joining = NodeJoinClient::new(broker.tls(Some(host.identity())).await.expect("connected"));
    let renewed = joining
        .renew(v1::RenewRequest { csr_der })
        .await
        .expect("renewed")
        .into_inner();
    let mut new = host.clone();
    new.key_pem = key.serialize_pem();
    new.certificate_pem = renewed.certificate_pem;
    assert!(host.link(&broker).await.is_ok());

    // The newest link of a node is the one that counts.
    let mut newer = new.link(&broker).await.expect("linked");
    newer.exchange().await;
    assert_eq!(agent.end().await.code(), Code::Aborted);
    assert!(!newer.exchange().await.cluster.is_empty());

    let update = |action: v1::NodeAction| v1::UpdateNodeRequest {
        name: "n1".into(),
        action: action.into(),
        reason: "a test".into(),
        ..v1::UpdateNodeRequest::default()
    };
    let drained = client
        .update_node(update(v1::NodeAction::Drain))
        .await
        .expect("drained")
        .into_inner();
    assert_eq!(
        (drained.state.as_str(), drained.reason.as_str()),
        ("DRAINED", "a test")
    );
    client
        .update_node(update(v1::NodeAction::Resume))
        .await
        .expect("resumed");
    client
        .update_node(update(v1::NodeAction::Remove))
        .await
        .expect("removed");
    assert_eq!(newer.end().await.code(), Code::Aborted);
    for host in [&host, &new] {
        let refused = host.link(&broker).await.err().expect("removed");
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert!(hint(&refused).contains("join"), "{refused:?}");
    }
    // Gateways hear of its certificates.
    let removed = std::fs::read_to_string(broker.state.join("removed-nodes.json")).expect("a list");
    assert_eq!(removed.matches(':').count(), 2, "{removed}");
}

#[tokio::test]
async fn nobody_links_without_a_nodes_certificate() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut link =
        carrel_proto::v1::agent_link_client::AgentLinkClient::new(broker.tls(None).await.expect("TLS"));
    let refused = link
        .connect(tokio_stream::empty())
        .await
        .expect_err("no certificate");
    assert_eq!(refused.code(), Code::Unauthenticated);

    // A certificate of another cluster ends in the handshake.
    let elsewhere = Daemon::start(&dir.path().join("e"), &[]).await;
    let foreign = join(&elsewhere, "n1").await;
    let channel = broker.tls(Some(foreign.identity())).await;
    if let Ok(channel) = channel {
        let mut link = carrel_proto::v1::agent_link_client::AgentLinkClient::new(channel);
        assert!(link.connect(tokio_stream::empty()).await.is_err());
    }

    // A node speaks for itself only, and makes sense; the broker outlives what does not.
    let host = join(&broker, "n1").await;
    let bad = |change: fn(&mut v1::Observed)| change;
    let changes = [
        bad(|observed| observed.node = "n2".into()),
        bad(|observed| observed.node = "no/name".into()),
        bad(|observed| observed.inventory = None),
        bad(|observed| observed.inventory.as_mut().expect("one").gpu_links.truncate(3)),
        bad(|observed| {
            let mut many = inventory("many");
            let gpu = many.gpus[0].clone();
            many.gpus = (0..65)
                .map(|n| v1::GpuInfo {
                    uuid: format!("GPU-{n}"),
                    ..gpu.clone()
                })
                .collect();
            many.gpu_links = vec![many.gpu_links[0]; 65 * 64 / 2];
            observed.inventory = Some(many);
        }),
        bad(|observed| {
            observed.jobs.push(v1::ObservedJob {
                phase: 77,
                ..v1::ObservedJob::default()
            });
        }),
        bad(|observed| observed.boot_id = "x".repeat(5 << 20)),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut agent = host.link(&broker).await.expect("linked");
        change(&mut agent.observed);
        agent.say().await;
        let end = agent.end().await;
        let expected = [Code::InvalidArgument, Code::OutOfRange, Code::ResourceExhausted];
        assert!(expected.contains(&end.code()), "{number}: {end:?}");
    }
    let mut agent = host.link(&broker).await.expect("linked");
    agent.exchange().await;
}
