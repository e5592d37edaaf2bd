//! Requests that make no sense, and bytes that are no requests.

use carrel_proto::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request};

use crate::agent::join;
use crate::daemon::{Daemon, open};

#[tokio::test]
async fn impossible_requests_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut client = broker.client().await;
    let nothing = client.open_session(open("dev", 1)).await.expect_err("no nodes");
    assert!(nothing.message().contains("no nodes"), "{nothing:?}");
    let mut agent = join(&broker, "n1").await.link(&broker).await.expect("linked");
    agent.exchange().await;

    type Change = fn(&mut v1::OpenSessionRequest);
    fn resources(request: &mut v1::OpenSessionRequest) -> &mut v1::ResourceRequest {
        spec(request).resources.as_mut().expect("resources")
    }
    fn spec(request: &mut v1::OpenSessionRequest) -> &mut v1::SessionSpec {
        request.spec.as_mut().expect("a spec")
    }
    let cases: [(&str, Change); 17] = [
        ("fewer than 9 GPUs", |r| resources(r).gpus_per_node = 9),
        ("abacus", |r| resources(r).gpu_model = "abacus".into()),
        ("at least 1", |r| resources(r).nodes = 0),
        ("node", |r| resources(r).nodes = 2),
        ("more than any host has", |r| resources(r).nodes = u32::MAX),
        ("more than any host has", |r| {
            resources(r).gpus_per_node = u32::MAX;
        }),
        ("more than any host has", |r| {
            resources(r).cpus_per_node = u32::MAX;
        }),
        ("more than any host has", |r| {
            resources(r).memory_bytes_per_node = u64::MAX;
        }),
        ("time limit", |r| spec(r).time_limit_s = u64::MAX),
        ("session name", |r| r.name = "No Name".into()),
        ("session name", |r| r.name = "a".repeat(64)),
        ("image reference", |r| spec(r).image = "a b".into()),
        ("absolute path", |r| spec(r).workdir = "here".into()),
        ("name of a variable", |r| {
            spec(r).env = vec![v1::EnvVar {
                name: "A B".into(),
                value: String::new(),
            }];
        }),
        ("variables", |r| {
            spec(r).env = vec![v1::EnvVar {
                name: "A".into(),
                value: "x".repeat(100 << 10),
            }];
        }),
        ("request key", |r| r.request_key = "x".repeat(65)),
        ("resources", |r| spec(r).resources = None),
    ];
    for (part, change) in cases {
        let mut request = open("dev", 1);
        change(&mut request);
        let refused = client.open_session(request).await.expect_err(part);
        assert_eq!(refused.code(), Code::InvalidArgument, "{part}: {refused:?}");
        assert!(refused.message().contains(part), "{part}: {refused:?}");
    }
    let unknown = v1::OpenSessionRequest {
        name: "dev".into(),
        ..v1::OpenSessionRequest::default()
    };
    assert_eq!(
        client.open_session(unknown).await.expect_err("new").code(),
        Code::NotFound
    );

    client.open_session(open("dev", 1)).await.expect("opened");
    let taken = v1::OpenSessionRequest {
        must_start: true,
        ..open("dev", 1)
    };
    assert_eq!(
        client.open_session(taken).await.expect_err("taken").code(),
        Code::AlreadyExists
    );
    let extend = |add_s| v1::ExtendSessionRequest {
        name: "dev".into(),
        add_s,
    };
    for add_s in [0, u64::MAX] {
        let refused = client.extend_session(extend(add_s)).await.expect_err("absurd");
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    client.extend_session(extend(60)).await.expect("extended");
}

#[tokio::test]
async fn oversized_and_malformed_messages_harm_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut big = open("dev", 1);
    big.request_key = "x".repeat(2 << 20);
    let mut client = broker.client().await;
    let refused = client.open_session(big.clone()).await.expect_err("too big");
    assert!(
        matches!(refused.code(), Code::OutOfRange | Code::ResourceExhausted),
        "{refused:?}"
    );
    let mut alice = broker.user("alice", 70_001).await;
    let refused = alice.open_session(big).await.expect_err("too big");
    assert!(
        matches!(refused.code(), Code::OutOfRange | Code::ResourceExhausted),
        "{refused:?}"
    );

    // Bytes where text is to be.
    let malformed = v1::StreamTicket {
        id: vec![0xff; 8],
        ..v1::StreamTicket::default()
    };
    for channel in [broker.channel().await, broker.tls(None).await.expect("TLS")] {
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.expect("ready");
        let codec = tonic_prost::ProstCodec::<v1::StreamTicket, v1::Session>::default();
        let path = PathAndQuery::from_static("/carrel.v1.Broker/GetSession");
        let refused = grpc
            .unary(Request::new(malformed.clone()), path, codec)
            .await
            .expect_err("malformed");
        assert!(
            matches!(
                refused.code(),
                Code::Internal | Code::InvalidArgument | Code::Unauthenticated
            ),
            "{refused:?}"
        );
    }

    // No HTTP/2, no TLS.
    for noise in [
        &b"GET / HTTP/1.0\r\n\r\n"[..],
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut unix = tokio::net::UnixStream::connect(broker.socket())
            .await
            .expect("connected");
        talk(&mut unix, noise).await;
        let mut tcp = tokio::net::TcpStream::connect(broker.address())
            .await
            .expect("connected");
        talk(&mut tcp, noise).await;
    }
    broker
        .client()
        .await
        .get_cluster(v1::GetClusterRequest {})
        .await
        .expect("still there");
    alice
        .get_cluster(v1::GetClusterRequest {})
        .await
        .expect("still there");
}

/// Sends noise until the broker hangs up.
async fn talk(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin), noise: &[u8]) {
    // The broker may hang up at any time.
    stream.write_all(noise).await.ok();
    stream.shutdown().await.ok();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(crate::daemon::PATIENCE, stream.read_to_end(&mut answer)).await;
    read.expect("the broker hangs up").ok();
}
