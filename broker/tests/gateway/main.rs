//! The gateway as a whole: a broker, agents and clients around it, all real
//! sockets; OpenSSH at both ends where it speaks SSH.

mod agent;
mod jump;
mod world;

use std::time::{Duration, Instant};

use carrel_core::stream::StreamId;
use carrel_core::stream::claim::Claim;
use carrel_proto::relay::relay;
use carrel_proto::socket::{OpenError, Socket, open_with_ticket};
use carrel_proto::stream::{Endpoint, Ticket};
use carrel_proto::v1::StreamRefusal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::agent::{Agent, Behind, Node};
use crate::world::{Running, World, eventually, port_of, show};

/// A gateway with node n1 behind it.
async fn with_node(behind: Behind) -> (World, Running, Node, Agent) {
    let mut world = World::new();
    world.start_broker();
    let gateway = world.start_gateway().await;
    let node = Node::new(&world, "n1");
    let agent = Agent::start(&world, &gateway, &node, behind).await;
    (world, gateway, node, agent)
}

fn reason<T: std::fmt::Debug>(refused: Result<T, OpenError>) -> String {
    match refused {
        Err(OpenError::Refused(_, reason)) => reason,
        other => panic!("not refused, but {other:?}"),
    }
}

/// A stream that echoes.
async fn echoes(mut stream: Socket) {
    stream.write_all(b"hello").await.expect("room");
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.expect("an echo");
    assert_eq!(&answer, b"hello");
}

/// One ticket, one stream; and none from another hand or another time.
#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_opens_one_stream() {
    let (world, gateway, _node, _agent) = with_node(Behind::Echo).await;
    for endpoint in [gateway.unix(), gateway.tcp()] {
        let ticket = world.ticket("n1", 60_000);
        echoes(show(&endpoint, &ticket).await.expect("a stream")).await;
        let again = reason(show(&endpoint, &ticket).await);
        assert!(again.contains("was used already"), "{again}");

        let refused = reason(show(&endpoint, &world.ticket("n1", -1)).await);
        assert!(refused.contains("has expired"), "{refused}");

        let mut forged = world.ticket("n1", 60_000);
        forged.content[5] ^= 1;
        let refused = reason(show(&endpoint, &forged).await);
        assert!(refused.contains("is not valid"), "{refused}");
    }
    eventually("streams are given back", || gateway.handle.streams() == 0).await;
    gateway.stop().await;
}

/// A ticket that could not be used, because its node was away, is still good
/// when the node is back: with the broker down there would be no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_node_is_named_and_costs_no_ticket() {
    let mut world = World::new();
    world.start_broker();
    let gateway = world.start_gateway().await;
    let ticket = world.ticket("n1", 60_000);
    let refused = reason(show(&gateway.unix(), &ticket).await);
    assert!(
        refused.starts_with("node n1 is not connected to the gateway"),
        "{refused}"
    );

    let node = Node::new(&world, "n1");
    let _agent = Agent::start(&world, &gateway, &node, Behind::Echo).await;
    echoes(show(&gateway.unix(), &ticket).await.expect("a stream")).await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_refusal_reaches_the_client() {
    let (world, gateway, _node, _agent) = with_node(Behind::Refusal("job 17 has ended")).await;
    let refused = world.open(&gateway.tcp(), "n1").await;
    assert!(
        matches!(&refused, Err(OpenError::Refused(StreamRefusal::Gone, reason)) if reason == "node n1: job 17 has ended"),
        "{refused:?}"
    );
    gateway.stop().await;
}

/// Opens a stream with the broker's ticket; the gateway's ticket to come back with.
async fn begun(world: &World, gateway: &Running, id: StreamId) -> Ticket {
    let opened = open_with_ticket(&gateway.tcp(), &world.ticket("n1", 60_000), id).await;
    opened.expect("a stream").1.expect("a ticket")
}

/// Shows a ticket to go on with a stream, claims it, and wants the claim back from the echo behind
/// the gateway. The next ticket.
async fn resumes(gateway: &Running, ticket: &Ticket, id: StreamId) -> Ticket {
    let opened = open_with_ticket(&gateway.tcp(), ticket, id).await;
    let (mut stream, next) = opened.expect("a stream");
    let claim = Claim { id, nonce: [1; 32] }.encode();
    stream.write_all(&claim).await.expect("room");
    let mut answer = [0; carrel_core::stream::claim::CLAIM_BYTES];
    stream.read_exact(&mut answer).await.expect("an echo");
    assert_eq!(answer, claim);
    next.expect("a ticket")
}

/// Whoever began a stream comes back to it, also through the next gateway while there is no broker;
/// the ticket for that is good once, for that stream, and for nothing but a claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_resumption_ticket_leads_back_to_its_stream_only() {
    let (mut world, gateway, node, agent) = with_node(Behind::Echo).await;
    let (id, other) = (StreamId([1; 16]), StreamId([2; 16]));
    let first = begun(&world, &gateway, id).await;
    let kind = |refused| match refused {
        Err(OpenError::Refused(kind, _)) => kind,
        other => panic!("not refused, but {other:?}"),
    };

    let refused = open_with_ticket(&gateway.tcp(), &first, other).await;
    assert_eq!(kind(refused), StreamRefusal::Ticket);
    // What is not a claim on that stream ends the connection, and has not used the ticket up.
    for wrong in [
        Claim {
            id: other,
            nonce: [1; 32],
        }
        .encode(),
        [b'S'; 56],
    ] {
        let opened = open_with_ticket(&gateway.tcp(), &first, id).await;
        let mut stream = opened.expect("a stream").0;
        stream.write_all(&wrong).await.expect("room");
        let mut byte = [0];
        assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)));
    }
    let second = resumes(&gateway, &first, id).await;
    assert_eq!(
        kind(open_with_ticket(&gateway.tcp(), &first, id).await),
        StreamRefusal::Ticket
    );

    world.stop_broker().await;
    let late = world.ticket("n1", 60_000);
    // Tickets count in milliseconds: one of the gateway's first is not older than it.
    let made = Instant::now();
    eventually("some milliseconds have passed", || {
        made.elapsed() > Duration::from_millis(5)
    })
    .await;
    gateway.stop().await;
    eventually("the agent sees the end of its link", || agent.has_ended()).await;
    let gateway = world.start_gateway().await;
    let _agent = Agent::start(&world, &gateway, &node, Behind::Echo).await;
    resumes(&gateway, &second, id).await;
    // One of the broker's that the gateway before may have seen.
    assert_eq!(
        kind(open_with_ticket(&gateway.tcp(), &late, other).await),
        StreamRefusal::Ticket
    );
    gateway.stop().await;
}

/// 64 MiB up and down at once, a half-close in between: every byte, in order.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_pass_unchanged_with_half_close() {
    const LEN: usize = 64 << 20;
    let (world, gateway, _node, _agent) = with_node(Behind::Echo).await;
    let chunk: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
    for endpoint in [gateway.unix(), gateway.tcp()] {
        // A local pair, relayed to the stream, gives two halves for two tasks.
        let stream = world.open(&endpoint, "n1").await.expect("a stream");
        let (near, far) = UnixStream::pair().expect("a pair");
        let relayed = tokio::spawn(async move { relay(&Socket::from(far), &stream).await });
        let (mut reader, mut writer) = near.into_split();
        let sent = chunk.clone();
        let sending = tokio::spawn(async move {
            for _ in 0..LEN / sent.len() {
                writer.write_all(&sent).await.expect("room");
            }
            // Dropping the writer is the half-close.
        });
        let mut got = 0;
        let mut buffer = vec![0; chunk.len()];
        while got < LEN {
            reader.read_exact(&mut buffer).await.expect("bytes");
            assert!(buffer == chunk, "bytes differ after {got}");
            got += buffer.len();
        }
        assert_eq!(reader.read(&mut buffer).await.expect("an end"), 0);
        sending.await.expect("sent");
        let relayed = relayed.await.expect("no panic").expect("no error");
        assert_eq!((relayed.forth, relayed.back), (LEN as u64, LEN as u64));
    }
    gateway.stop().await;
}

/// The gateway starts without its broker and serves tickets made before.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_the_broker_disturbs_nobody() {
    let (mut world, gateway, node, agent) = with_node(Behind::Echo).await;
    world.stop_broker().await;
    echoes(world.open(&gateway.tcp(), "n1").await.expect("a stream")).await;
    gateway.stop().await;
    eventually("the agent sees the end of its link", || agent.has_ended()).await;

    let gateway = world.start_gateway().await;
    let _agent = Agent::start(&world, &gateway, &node, Behind::Echo).await;
    echoes(world.open(&gateway.tcp(), "n1").await.expect("a stream")).await;

    // A broker that is back is found at once, not at the next enrolment.
    let before = world.known.lock().expect("a lock").enrolments;
    world.start_broker();
    eventually("enrolled again", || {
        world.known.lock().expect("a lock").enrolments > before
    })
    .await;
    gateway.stop().await;
}

/// A node is who its certificate says, and as long as it is not revoked.
#[tokio::test(flavor = "multi_thread")]
async fn links_are_for_nodes_of_this_cluster() {
    let (mut world, gateway, node, agent) = with_node(Behind::Echo).await;

    let channel = node.dial(&world, &gateway, true).await.expect("connected");
    let status = node.link(channel, "n2").await.expect_err("an impostor");
    assert!(status.message().contains("of node n1, not of \"n2\""), "{status}");

    // TLS 1.3 tells a client without a certificate only after its handshake.
    let refused = match node.dial(&world, &gateway, false).await {
        Ok(channel) => node.link(channel, "n1").await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
    let stranger = Node::new(&World::new(), "n1");
    let refused = match stranger.dial(&world, &gateway, true).await {
        Ok(channel) => stranger.link(channel, "n1").await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
    assert!(!agent.has_ended());

    world
        .known
        .lock()
        .expect("a lock")
        .revoked
        .push(node.serial.clone());
    world.stop_broker().await;
    world.start_broker();
    eventually("the revoked node's link is ended", || agent.has_ended()).await;
    let channel = node.dial(&world, &gateway, true).await.expect("connected");
    let status = node.link(channel, "n1").await.expect_err("revoked");
    assert!(status.message().contains("was revoked"), "{status}");
    gateway.stop().await;
}

/// A node that connects again, from a restart that the gateway has not noticed, is served there.
#[tokio::test(flavor = "multi_thread")]
async fn a_nodes_second_link_takes_over() {
    let (world, gateway, node, first) = with_node(Behind::Refusal("old")).await;
    let _second = Agent::start(&world, &gateway, &node, Behind::Echo).await;
    eventually("the first link is ended", || first.has_ended()).await;
    echoes(world.open(&gateway.unix(), "n1").await.expect("a stream")).await;
    gateway.stop().await;
}

/// An end cuts streams and leaves no socket behind.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_the_end() {
    let (world, gateway, _node, agent) = with_node(Behind::Echo).await;
    let mut stream = world.open(&gateway.unix(), "n1").await.expect("a stream");
    gateway.stop().await;
    let mut byte = [0];
    assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)));
    eventually("the link is ended", || agent.has_ended()).await;
    assert!(!world.path("streams.sock").exists());
}

/// Whatever strangers send, at any door, the gateway answers with an end and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_bytes_harm_nobody() {
    let (world, gateway, _node, agent) = with_node(Behind::Echo).await;
    let endpoints = gateway.handle.endpoints().clone();
    let mut doors = vec![gateway.unix(), gateway.tcp()];
    for address in [&endpoints.ssh, endpoints.link.trim_start_matches("https://")] {
        doors.push(Endpoint::Tcp(address.to_owned()));
    }
    let noise: [u8; 4096] = rand::random();
    let ssh_noise = [b"SSH-2.0-noise\r\n", &noise[..]].concat();
    let attacks: [&[u8]; 7] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x10\x00short",
        &ssh_noise,
        &noise,
    ];
    for door in &doors {
        for attack in attacks {
            let mut stream = Socket::dial(door).await.expect("a door");
            // It may be closed under the write, and reset under the read.
            stream.write_all(attack).await.ok();
            stream.finish().ok();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.ok();
        }
    }
    // Many who say nothing at all.
    let port = port_of(&endpoints.ssh);
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(("127.0.0.1", port)).await.expect("a door"));
        silent.push(match Socket::dial(&gateway.tcp()).await.expect("a door") {
            Socket::Tcp(stream) => stream,
            Socket::Unix(_) => panic!("a TCP endpoint"),
        });
    }
    echoes(world.open(&gateway.tcp(), "n1").await.expect("a stream")).await;
    assert!(!agent.has_ended());
    gateway.stop().await;
}
