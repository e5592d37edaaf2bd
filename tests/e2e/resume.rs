//! `carrel proxy`'s stream outlives every program on its way and every cut; who did not begin it does
//! not get it.

use std::io::{Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use carrel_core::stream::claim::{CHALLENGE_BYTES, CLAIM_MAGIC, Challenge, Claim};
use carrel_core::stream::{CloseReason, Endpoint, Limits, Read as Got, SILENCE_MS, StreamError, StreamId};
use carrel_proto::claim::{StreamKey, claim_proof};
use carrel_proto::socket::{OpenError, Socket, open_with_ticket};
use carrel_proto::stream::{Secret, Ticket};
use carrel_proto::v1::broker_client::BrokerClient;
use carrel_proto::v1::{OpenStreamRequest, StreamRefusal};
use carrel_tests::cluster::{Cluster, Options, STREAM_PORT};
use carrel_tests::terminal::Terminal;
use carrel_tests::user::{ALICE, ROOT};
use carrel_tests::wait;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const GPUS: [&str; 6] = ["--gpus", "2", "-c", "1", "--mem", "256M"];

/// Bytes there and back. `CARREL_TEST_TRANSFER` sets it, in MiB.
fn transfer_bytes() -> u64 {
    let mib = std::env::var("CARREL_TEST_TRANSFER").ok();
    mib.and_then(|mib| mib.parse().ok()).unwrap_or(512_u64) << 20
}

/// Bytes that never repeat at a distance that a buffer has (xorshift64).
struct Noise(u64);

impl Noise {
    fn fill(&mut self, buffer: &mut [u8]) {
        for word in buffer.chunks_exact_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes());
        }
    }
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const CHUNK: usize = 64 * 1024;

/// Noise on its way through a command that gives back what it is given.
struct Echo {
    back: Arc<AtomicU64>,
    writer: JoinHandle<()>,
    reader: JoinHandle<()>,
}

impl Echo {
    fn start(input: ChildStdin, output: ChildStdout, length: u64) -> Self {
        let back = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&back);
        Self {
            back,
            writer: std::thread::spawn(move || send(input, length)),
            reader: std::thread::spawn(move || check(output, length, &count)),
        }
    }

    fn back(&self) -> u64 {
        self.back.load(Ordering::Relaxed)
    }

    fn is_done(&self) -> bool {
        self.reader.is_finished()
    }
}

fn send(mut input: ChildStdin, length: u64) {
    let (mut noise, mut buffer) = (Noise(SEED), vec![0; CHUNK]);
    for _ in 0..length / CHUNK as u64 {
        noise.fill(&mut buffer);
        input.write_all(&buffer).expect("the command takes it");
    }
}

fn check(mut output: ChildStdout, length: u64, count: &AtomicU64) {
    let (mut noise, mut expected, mut got) = (Noise(SEED), vec![0; CHUNK], vec![0; CHUNK]);
    for at in 0..length / CHUNK as u64 {
        noise.fill(&mut expected);
        output.read_exact(&mut got).expect("as much comes back");
        assert!(got == expected, "the bytes from {} on differ", at * CHUNK as u64);
        count.store((at + 1) * CHUNK as u64, Ordering::Relaxed);
    }
    assert_eq!(
        output.read(&mut got).expect("an end"),
        0,
        "more came back than was sent"
    );
}

/// What happens to the way.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Gateway,
    Broker,
    Agent,
    /// Packets of streams vanish, until both sides have noticed.
    Cut,
    /// Gateway and broker die; the gateway comes back alone.
    GatewayWithoutBroker,
    /// Agent and broker die; the agent comes back alone.
    AgentWithoutBroker,
    All,
}

impl Fault {
    const EVERY: [Self; 7] = [
        Self::Gateway,
        Self::Broker,
        Self::Agent,
        Self::Cut,
        Self::GatewayWithoutBroker,
        Self::AgentWithoutBroker,
        Self::All,
    ];

    /// Does it, and sees that bytes come back again.
    fn happen(self, cluster: &mut Cluster, echo: &Echo) {
        match self {
            Self::Gateway => {
                cluster.gateway.kill9();
                cluster.gateway.restart();
            }
            Self::Broker => {
                cluster.broker.kill9();
                cluster.broker.restart();
            }
            Self::Agent => {
                cluster.agents[0].kill9();
                cluster.agents[0].restart();
            }
            Self::Cut => {
                streams_vanish(cluster, true);
                stands_still(echo);
                // As long as it takes to be noticed on both sides.
                let cut = Instant::now();
                wait::until("the silence is noticed", || {
                    cut.elapsed() > Duration::from_millis(SILENCE_MS + 2_000)
                });
                streams_vanish(cluster, false);
            }
            Self::GatewayWithoutBroker => {
                cluster.gateway.kill9();
                cluster.broker.kill9();
                cluster.gateway.restart();
            }
            Self::AgentWithoutBroker => {
                cluster.agents[0].kill9();
                cluster.broker.kill9();
                cluster.agents[0].restart();
            }
            Self::All => {
                cluster.gateway.kill9();
                cluster.agents[0].kill9();
                cluster.broker.kill9();
                cluster.agents[0].restart();
                cluster.broker.restart();
                cluster.gateway.restart();
            }
        }
        goes_on(cluster, echo, self);
        if matches!(self, Self::GatewayWithoutBroker | Self::AgentWithoutBroker) {
            cluster.broker.restart();
        }
    }
}

/// Drops every packet of byte streams, as a network does that has changed, or lets them through again.
fn streams_vanish(cluster: &Cluster, vanish: bool) {
    for port in ["--dport", "--sport"] {
        let change = if vanish { "-I" } else { "-D" };
        let number = STREAM_PORT.to_string();
        cluster
            .cmd(ROOT, "iptables")
            .args(["-w", change, "INPUT", "-p", "tcp", port, &number, "-j", "DROP"])
            .ok();
    }
}

/// Waits until no byte comes back any more.
fn stands_still(echo: &Echo) {
    let (mut last, mut since) = (echo.back(), Instant::now());
    wait::until("the transfer stands still", || {
        if echo.back() != last {
            (last, since) = (echo.back(), Instant::now());
        }
        since.elapsed() > Duration::from_millis(500)
    });
}

/// Waits until more bytes come back than can have been on their way.
#[track_caller]
fn goes_on(cluster: &Cluster, echo: &Echo, after: Fault) {
    const UNDER_WAY: u64 = 16 << 20;
    let before = echo.back();
    cluster.ready(&format!("the transfer goes on after {after:?}"), |_| {
        echo.is_done() || echo.back() > before + UNDER_WAY
    });
}

/// All of it comes back, and nothing twice, while every program on the way dies and the link is cut.
#[test]
fn a_transfer_outlives_everything() {
    let mut cluster = Cluster::start(&Options::default());
    std::mem::forget(cluster.open(ALICE, "dev", &GPUS));
    let ssh = cluster.ssh(ALICE, ["carrel-dev", "cat"]);
    let mut child = Command::new(&ssh.argv()[0])
        .args(&ssh.argv()[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (input, output) = (
        child.stdin.take().expect("piped"),
        child.stdout.take().expect("piped"),
    );
    let length = transfer_bytes();
    let echo = Echo::start(input, output, length);
    let step = length / (Fault::EVERY.len() as u64 + 1);
    for (at, fault) in (1..).zip(Fault::EVERY) {
        cluster.ready(&format!("the transfer has come to {fault:?}"), |_| {
            echo.is_done() || echo.back() >= at * step
        });
        assert!(!echo.is_done(), "it was over before {fault:?}");
        fault.happen(&mut cluster, &echo);
    }
    echo.writer.join().expect("all is sent");
    echo.reader.join().expect("all comes back");
    assert_eq!(
        child.wait().expect("an own child").code(),
        Some(0),
        "{}",
        cluster.last_logs()
    );
    cluster.ready("the broker answers", |this| {
        this.carrel(ALICE, ["ps"]).run().code == 0
    });
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
}

fn terminal(cluster: &Cluster, alias: &str) -> Terminal {
    let mut terminal = Terminal::start(&cluster.ssh(ALICE, ["-tt", alias]));
    terminal.ask("echo start-$((40 + 2))", "start-42");
    terminal
}

/// A shell goes on after gateway and broker were killed together, before there is a broker again;
/// after its agent was killed; and after its own client stood still for longer than anyone waits for
/// a sign of life.
#[test]
fn a_shell_outlives_everything() {
    let mut cluster = Cluster::start(&Options::default());
    std::mem::forget(cluster.open(ALICE, "dev", &GPUS));
    let mut shell = terminal(&cluster, "carrel-dev");
    shell.line("mine=kept");

    cluster.broker.kill9();
    cluster.gateway.kill9();
    shell.line("echo typed-$((40 + 2))");
    cluster.gateway.restart();
    shell.expect("typed-42");
    cluster.broker.restart();
    cluster.agents[0].kill9();
    cluster.agents[0].restart();
    shell.ask("echo $mine-$((40 + 2))", "kept-42");

    let proxy = cluster
        .cmd(ROOT, "pgrep")
        .args(["-f", "carrel .* proxy dev$"])
        .ok();
    let signal = |cluster: &Cluster, name: &str| cluster.cmd(ROOT, "kill").args([name, proxy.as_str()]).ok();
    signal(&cluster, "-STOP");
    let stopped = Instant::now();
    wait::until("the client was silent for longer than it may be", || {
        stopped.elapsed() > Duration::from_millis(SILENCE_MS + 2_000)
    });
    shell.line("echo $mine-after-$((40 + 2))");
    signal(&cluster, "-CONT");
    shell.expect("kept-after-42");
    shell.line("exit");
    assert_eq!(shell.wait(), 0, "{shell}");
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
}

/// A session that was left alone for longer than its ticket lives comes back through the broker, and
/// says what it waits for until there is one.
#[test]
fn a_shell_comes_back_after_its_ticket_has_expired() {
    const VALIDITY: Duration = Duration::from_secs(1);
    let mut cluster = Cluster::start(&Options {
        gateway_flags: vec!["--resumption-validity".into(), VALIDITY.as_secs().to_string()],
        ..Options::default()
    });
    std::mem::forget(cluster.open(ALICE, "dev", &GPUS));
    let mut shell = terminal(&cluster, "carrel-dev");
    let alone = Instant::now();
    wait::until("the ticket has expired", || alone.elapsed() > 2 * VALIDITY);
    cluster.gateway.kill9();
    cluster.gateway.restart();
    shell.ask("echo with-$((40 + 2))", "with-42");

    let alone = Instant::now();
    wait::until("the next ticket has expired", || alone.elapsed() > 2 * VALIDITY);
    cluster.broker.kill9();
    cluster.gateway.kill9();
    cluster.gateway.restart();
    shell.expect("waiting for the connection to dev");
    cluster.broker.restart();
    shell.expect("connected to dev again");
    shell.ask("echo again-$((40 + 2))", "again-42");
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
    // The session is over, and so is the connection.
    shell.wait();
}

/// A stream whose other end is gone says so once, and ends.
#[test]
fn a_stream_whose_server_was_killed_ends() {
    let cluster = Cluster::start(&Options::default());
    let session = cluster.open(ALICE, "killed", &GPUS);
    let mut shell = terminal(&cluster, &session.alias());
    shell.line("for p in /proc/[0-9]*; do grep -qx carrel-ssh $p/comm && kill -9 ${p#/proc/}; done");
    shell.expect("cannot be resumed: the session no longer keeps this connection");
    assert_eq!(shell.wait(), 255, "{shell}");
    assert_eq!(shell.screen().matches("cannot be resumed").count(), 1, "{shell}");
    assert_eq!(session.ssh(["echo", "anew"]).ok(), "anew");
}

/// A ticket and its secret, as the broker gives them to `carrel proxy`.
async fn ticket(cluster: &Cluster, session: &str) -> Ticket {
    let socket = cluster.root().join("broker/broker.sock");
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(socket).await?)) }
    });
    // The URI is never dialled; HTTP/2 wants one.
    let channel = tonic::transport::Endpoint::from_static("http://broker");
    let channel = channel.connect_with_connector(connect).await.expect("it listens");
    let request = OpenStreamRequest {
        name: session.to_owned(),
        rank: 0,
        job: 0,
    };
    let way = BrokerClient::new(channel).open_stream(request).await;
    let way = way.expect("a ticket").into_inner();
    Ticket {
        content: way.ticket,
        secret: way.secret.try_into().expect("a secret"),
    }
}

/// The dialler's end of a stream, over one transport after another.
struct Dialled {
    endpoint: Endpoint,
    key: StreamKey,
}

impl Dialled {
    fn new() -> Self {
        let key = StreamKey::new(rand::random());
        let mut endpoint = Endpoint::new(StreamId(rand::random()), key.public(), Limits::default());
        endpoint.attach();
        Self { endpoint, key }
    }

    fn secret(&self) -> Secret {
        let peer = self.endpoint.peer_key().expect("it was heard");
        self.key
            .dialled(self.endpoint.id(), &peer)
            .expect("an honest key")
    }

    /// Reads until `length` bytes of the stream are there.
    async fn read(&mut self, socket: &mut Socket, length: usize) -> Result<Vec<u8>, StreamError> {
        let mut got = Vec::new();
        loop {
            while let Got::Data(bytes) = self.endpoint.read() {
                got.extend_from_slice(&bytes);
            }
            while let Some(transmit) = self.endpoint.poll_transmit() {
                socket.write_all(transmit.head()).await.expect("room");
                socket.write_all(&transmit.body).await.expect("room");
            }
            if got.len() >= length {
                return Ok(got);
            }
            let count = socket.read_buf(self.endpoint.receive_buffer()).await;
            assert_ne!(count.expect("bytes"), 0, "it was cut");
            self.endpoint.handle_received()?;
        }
    }
}

/// Claims a stream.
async fn claim(socket: &mut Socket, id: StreamId, secret: &Secret) {
    let claim = Claim {
        id,
        nonce: rand::random(),
    };
    socket.write_all(&claim.encode()).await.expect("room");
    let mut answer = [0; CHALLENGE_BYTES];
    socket.read_exact(&mut answer).await.expect("a challenge");
    assert!(answer.starts_with(&CLAIM_MAGIC));
    let challenge = Challenge::decode(&answer).expect("a challenge");
    let proof = claim_proof(secret, &claim, &challenge);
    socket.write_all(&proof).await.expect("room");
}

/// A ticket that was used opens nothing; whoever has even the ticket to come back with, but not the
/// stream's own secret, does not get the stream, and does not disturb it.
#[test]
fn a_replayed_ticket_and_a_stolen_stream() {
    let cluster = Cluster::start(&Options::default());
    // The test's own, who is root: a ticket is for whoever owns the session.
    let session = cluster.open(ROOT, "stolen", &GPUS);
    let id = session.name().to_owned();
    let gateway = carrel_proto::stream::Endpoint::Unix(cluster.root().join("gateway/streams.sock"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let shown = ticket(&cluster, &id).await;
        let mut owner = Dialled::new();
        let stream = owner.endpoint.id();
        let opened = open_with_ticket(&gateway, &shown, stream)
            .await
            .expect("a stream");
        let (mut first, resumption) = (opened.0, opened.1.expect("a ticket"));
        let line = owner.read(&mut first, 8).await.expect("SSH's first line");
        assert!(line.starts_with(b"SSH-2.0-"));

        let again = open_with_ticket(&gateway, &shown, stream).await;
        assert!(
            matches!(again, Err(OpenError::Refused(StreamRefusal::Ticket, _))),
            "{again:?}"
        );

        let opened = open_with_ticket(&gateway, &resumption, stream)
            .await
            .expect("a stream");
        let (mut stolen, next) = (opened.0, opened.1.expect("a ticket"));
        claim(&mut stolen, stream, &rand::random()).await;
        let mut told = Vec::new();
        stolen.read_to_end(&mut told).await.expect("an end");
        let mut thief = Endpoint::new(stream, [0; 32], Limits::default());
        thief.attach();
        let refused = thief.handle_bytes(&told);
        assert!(
            matches!(
                refused,
                Err(StreamError::Closed {
                    reason: CloseReason::UnknownStream,
                    ..
                })
            ),
            "{refused:?}"
        );

        owner.endpoint.write(Bytes::from_static(b"SSH-2.0-test\r\n"));
        owner
            .read(&mut first, 16)
            .await
            .expect("the first transport is as good as before");

        // Its owner comes back, and the first transport is cut.
        let opened = open_with_ticket(&gateway, &next, stream).await;
        let mut second = opened.expect("a stream").0;
        claim(&mut second, stream, &owner.secret()).await;
        let mut rest = Vec::new();
        first.read_to_end(&mut rest).await.expect("an end");
        owner.endpoint.attach();
        let heard = async {
            let count = second.read_buf(owner.endpoint.receive_buffer()).await;
            assert_ne!(count.expect("bytes"), 0, "it was cut");
            owner.endpoint.handle_received().expect("the stream goes on");
        };
        heard.await;
    });
}
