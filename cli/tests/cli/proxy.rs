//! `carrel proxy`: from pipes, through a gateway's handshake and frames, to a session.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use carrel_core::stream::{Endpoint, KEY_BYTES, Limits, PREFACE_BYTES, Preface, Read};
use carrel_proto::{stream, v1};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::fake::Fake;
use crate::run::{carrel, run};

const KEY: [u8; 32] = [3; 32];
const TICKET: &[u8] = b"a ticket";

fn way(fake: &Fake) -> v1::OpenStreamResponse {
    let gateway = fake.dir.path().join("streams.sock");
    v1::OpenStreamResponse {
        endpoints: vec![
            "unix:/nonexistent/streams.sock".into(),
            format!("unix:{}", gateway.display()),
        ],
        ticket: TICKET.to_vec(),
        secret: stream::ticket_secret(&KEY, TICKET).to_vec(),
        host_principal: String::new(),
        host_key: String::new(),
        nodes: Vec::new(),
    }
}

fn running_session(fake: &Fake) {
    assert_eq!(
        run(carrel(fake, &["alloc", "--name", "dev", "--no-shell"])).code,
        Some(0)
    );
}

/// The gateway's half of the handshake. Refuses with `error` unless it is empty.
async fn greet(mut socket: UnixStream, error: &str) -> UnixStream {
    let nonce = [9; stream::NONCE_LEN];
    socket.write_all(&nonce).await.expect("a client");
    let hello = carrel_proto::socket::read_frame(&mut socket)
        .await
        .expect("a hello");
    let hello = stream::parse_hello(&hello).expect("a hello");
    let stream::Caller::Client {
        ticket,
        stream: Some(id),
    } = hello.caller
    else {
        panic!("{hello:?}");
    };
    assert_eq!(ticket, TICKET);
    let secret = stream::ticket_secret(&KEY, TICKET);
    assert!(stream::verify_proof(&secret, &nonce, &id.0, &hello.proof));
    let answer = if error.is_empty() {
        stream::accept_frame(None, &secret, &nonce)
    } else {
        stream::refuse_frame(v1::StreamRefusal::Unspecified, error)
    };
    socket.write_all(&answer).await.expect("a client");
    socket
}

/// carrel-init's half of the stream: everything comes back.
async fn echo(mut socket: UnixStream) {
    let mut preface = [0; PREFACE_BYTES];
    socket.read_exact(&mut preface).await.expect("a preface");
    let mut end = Endpoint::new(
        Preface::decode(&preface).expect("a preface").id,
        [2; KEY_BYTES],
        Limits::default(),
    );
    end.attach();
    end.handle_bytes(&preface).expect("a preface");
    while !end.is_finished() {
        loop {
            match end.read() {
                Read::Data(bytes) => end.write(bytes),
                Read::Pending => break,
                Read::End => {
                    end.finish();
                    break;
                }
            }
        }
        while let Some(transmit) = end.poll_transmit() {
            socket.write_all(transmit.head()).await.expect("a client");
            socket.write_all(&transmit.body).await.expect("a client");
        }
        if end.is_finished() || socket.read_buf(end.receive_buffer()).await.unwrap_or(0) == 0 {
            return;
        }
        end.handle_received().expect("frames");
    }
}

fn gateway(fake: &Fake, error: &'static str) {
    let _guard = fake.runtime().enter();
    let listener = UnixListener::bind(fake.dir.path().join("streams.sock")).expect("a socket");
    fake.runtime().spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let socket = greet(socket, error).await;
            if error.is_empty() {
                tokio::spawn(echo(socket));
            }
        }
    });
}

#[test]
fn bytes_go_there_and_back() {
    let fake = Fake::start(v1::JobState::Running);
    running_session(&fake);
    fake.change(|world| world.way = Some(way(&fake)));
    gateway(&fake, "");
    let mut child = carrel(&fake, &["proxy", "dev"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (mut input, mut output) = (
        child.stdin.take().expect("a pipe"),
        child.stdout.take().expect("a pipe"),
    );
    let sent: Vec<u8> = (0..2_000_003_u32).map(|n| (n % 251) as u8).collect();
    let copy = sent.clone();
    let writer = std::thread::spawn(move || {
        input.write_all(&copy).expect("a pipe");
        input
    });
    let mut got = vec![0; sent.len()];
    output.read_exact(&mut got).expect("as much comes back");
    assert!(got == sent, "the bytes differ");
    drop(writer.join().expect("no panic"));
    assert_eq!(child.wait().expect("a child").code(), Some(0));
}

#[test]
fn a_stopped_session_is_started() {
    let fake = Fake::start(v1::JobState::Running);
    running_session(&fake);
    assert_eq!(run(carrel(&fake, &["stop", "dev"])).code, Some(0));
    fake.change(|world| world.way = Some(way(&fake)));
    gateway(&fake, "");
    let done = run(carrel(&fake, &["proxy", "dev"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(
        fake.world().calls.iter().filter(|call| *call == "open").count(),
        2
    );
}

#[test]
fn a_failure_is_ssh_s_255_with_the_reason() {
    let fake = Fake::start(v1::JobState::Running);
    let done = run(carrel(&fake, &["proxy", "nobody"]));
    assert_eq!(done.code, Some(255), "{done:?}");
    assert!(done.stderr.contains("there is no session nobody"), "{done:?}");
}

#[test]
fn renewal_reads_files_only_while_the_certificate_is_good() {
    let fake = Fake::start(v1::JobState::Running);
    assert_eq!(run(carrel(&fake, &["proxy", "--renew"])).code, Some(0));
    assert_eq!(fake.world().calls, ["sign"]);
    fake.stop();
    let done = run(carrel(
        &fake,
        &["proxy", "--renew", "c0ffee00c0ffee00c0ffee00c0ffee00"],
    ));
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
}
