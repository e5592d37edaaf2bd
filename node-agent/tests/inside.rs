//! The relay behind a job's socket, between a program that may say anything and a broker that notes
//! what arrives.

mod broker;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use broker::{Broker, HINT, REFUSAL, TOKEN};
use carrel_core::model::ids::{Generation, JobId, JobKey};
use carrel_node::identity::{JoinOptions, Membership};
use carrel_node::inside::{Upstream, serve};
use carrel_proto::inside::{HEADER, SOCKET_NAME};
use carrel_proto::v1;
use carrel_proto::v1::broker_client::BrokerClient;
use carrel_proto::v1::node_join_client::NodeJoinClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

fn key() -> JobKey {
    JobKey {
        job: JobId(17),
        generation: Generation(3),
    }
}

struct World {
    broker: Broker,
    upstream: Arc<Upstream>,
    dir: tempfile::TempDir,
    relay: Option<JoinHandle<()>>,
}

impl World {
    /// A job of this user's on a node that has joined.
    async fn start(uid: u32) -> Self {
        let broker = Broker::start().await;
        let options = JoinOptions {
            broker: broker.uri.clone(),
            token: TOKEN.into(),
            node: "n1".parse().expect("a name"),
            ca_fingerprint: broker.fingerprint.clone(),
        };
        let membership = Membership::join(&options).await.expect("joined");
        let (_, tls) = watch::channel(membership.tls());
        let mut world = Self {
            upstream: Arc::new(Upstream::new(broker.uri.clone(), tls)),
            broker,
            dir: tempfile::tempdir().expect("a directory"),
            relay: None,
        };
        world.serve(uid);
        world
    }

    /// Serves the socket, in place of whoever did.
    fn serve(&mut self, uid: u32) {
        if let Some(relay) = self.relay.take() {
            relay.abort();
        }
        let (dir, upstream) = (self.dir.path().to_owned(), Arc::clone(&self.upstream));
        self.relay = Some(tokio::spawn(async move {
            let Err(error) = serve(&dir, key(), uid, upstream).await;
            panic!("not served: {error:#}");
        }));
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET_NAME)
    }

    async fn channel(&self) -> Channel {
        connect(&self.socket()).await
    }
}

/// Connects as soon as somebody listens.
async fn connect(socket: &Path) -> Channel {
    let attempt = || {
        let socket = socket.to_owned();
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        async move {
            Endpoint::from_static("http://evil.example")
                .connect_with_connector(connector)
                .await
        }
    };
    let connected = tokio::time::timeout(broker::PATIENCE, async {
        loop {
            if let Ok(channel) = attempt().await {
                return channel;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    connected.await.expect("somebody listens")
}

fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn dev() -> v1::GetSessionRequest {
    v1::GetSessionRequest { name: "dev".into() }
}

/// Headers of the inside stay inside; the job is the one whose socket it is. The broker's refusal comes
/// back with its hint, and with nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_message_goes_to_the_broker() {
    let world = World::start(own_uid()).await;
    let forge = |mut request: Request<()>| -> Result<Request<()>, Status> {
        for (name, value) in [
            (HEADER, "1@1.1"),
            ("authorization", "Bearer carrel_stolen"),
            ("x-forwarded-for", "10.0.0.1"),
            ("grpc-timeout", "1H"),
        ] {
            let value = value.parse().expect("a header");
            request.metadata_mut().append(name, value);
        }
        Ok(request)
    };
    let mut client = BrokerClient::with_interceptor(world.channel().await, forge);
    let refused = client.get_session(dev()).await.expect_err("refused");
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::FailedPrecondition, REFUSAL)
    );
    let metadata = refused.metadata();
    assert_eq!(metadata.get("carrel-hint").expect("a hint"), HINT);
    assert!(metadata.get("x-more").is_none(), "{metadata:?}");

    let calls = world.broker.calls();
    assert_eq!(calls.len(), 1);
    let heard = &calls[0];
    assert!(heard.certified, "with the node's certificate");
    assert_eq!(
        heard.uri.path_and_query().expect("a path"),
        "/carrel.v1.Broker/GetSession"
    );
    assert_ne!(heard.uri.host(), Some("evil.example"));
    let jobs: Vec<_> = heard.headers.get_all(HEADER).iter().collect();
    assert_eq!(jobs, [key().to_string().as_str()]);
    for name in ["authorization", "x-forwarded-for", "grpc-timeout"] {
        assert!(heard.headers.get(name).is_none(), "{heard:?}");
    }
    // Five bytes of gRPC, and field 1: "dev".
    assert_eq!(heard.body, b"\0\0\0\0\x05\x0a\x03dev");
}

/// No other service, no path that is not a call's, no message that is none of a job's.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_calls_of_the_table_passes() {
    let world = World::start(own_uid()).await;
    let channel = world.channel().await;
    let join = NodeJoinClient::new(channel.clone())
        .join(v1::JoinRequest::default())
        .await;
    assert_eq!(join.expect_err("refused").code(), Code::Unimplemented);
    for path in [
        "/carrel.v1.Broker/getSession",
        "/carrel.v1.Broker/GetSession/",
        "/carrel.v1.Broker/../carrel.v1.AgentLink/Connect",
        "/carrel.v1.Broker//GetSession",
        "/carrel.v1.AgentLink/Connect",
        "/",
    ] {
        // What is asked for is looked at before what is said.
        let request = tonic::codegen::http::Request::post(format!("http://x{path}"))
            .body(tonic::body::Body::empty())
            .expect("a request");
        let mut raw = channel.clone();
        std::future::poll_fn(|context| tonic::codegen::Service::poll_ready(&mut raw, context))
            .await
            .expect("connected");
        let answer = tonic::codegen::Service::call(&mut raw, request)
            .await
            .expect("answered");
        assert_eq!(
            answer.headers().get("grpc-status").expect("a status"),
            "12",
            "{path}"
        );
    }
    let long = v1::GetSessionRequest {
        name: "x".repeat(1 << 20),
    };
    let refused = BrokerClient::new(channel)
        .get_session(long)
        .await
        .expect_err("refused");
    assert!(
        matches!(refused.code(), Code::OutOfRange | Code::ResourceExhausted),
        "{refused:?}"
    );
    assert!(world.broker.calls().is_empty(), "{:?}", world.broker.calls());
}

/// Whoever finds the socket and is not the job's user: the kernel says who connects.
#[tokio::test(flavor = "multi_thread")]
async fn another_user_is_refused() {
    let world = World::start(own_uid() + 1).await;
    let mut client = BrokerClient::new(world.channel().await);
    let refused = client.get_session(dev()).await.expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("user of job 17"), "{refused}");
    assert!(world.broker.calls().is_empty());
}

/// A broker that is away is told of, and found when it is back; an agent that comes after takes the
/// socket over.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_and_an_agent_come_back() {
    let mut world = World::start(own_uid()).await;
    let mut client = BrokerClient::new(world.channel().await);
    world.broker.stop().await;
    let away = client.get_session(dev()).await.expect_err("nobody is there");
    assert_eq!(away.code(), Code::Unavailable);
    assert!(away.message().contains("the broker cannot be reached"), "{away}");
    assert!(away.metadata().get("carrel-hint").is_some(), "{away:?}");
    world.broker.again().await;
    let answered = client.get_session(dev()).await.expect_err("refused");
    assert_eq!(answered.message(), REFUSAL);

    world.serve(own_uid());
    let taken_over = tokio::time::timeout(broker::PATIENCE, async {
        loop {
            let mut client = BrokerClient::new(world.channel().await);
            match client.get_session(dev()).await {
                Err(status) if status.message() == REFUSAL => return,
                // It was still the former agent's.
                _ => tokio::task::yield_now().await,
            }
        }
    });
    taken_over.await.expect("the socket is served again");
}
