//! What the proxy's side protects: bytes in order over any number of transports, an end that is told
//! to both sides, and a reason where there is no way on.

use std::sync::{Arc, Mutex};

use carrel_core::stream::claim::{CLAIM_BYTES, Challenge, Claim, PROOF_BYTES};
use carrel_core::stream::{PREFACE_BYTES, Preface};
use carrel_proto::claim::verify_claim;
use carrel_proto::stream::Secret;
use tokio::io::DuplexStream;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;

const ID: StreamId = StreamId([7; 16]);

/// Hands out what a test prepares, and fails when there is nothing more.
struct Ways(Arc<Mutex<Vec<Result<UnixStream, Failure>>>>);

impl Ways {
    fn new(ways: impl IntoIterator<Item = Result<UnixStream, Failure>>) -> Self {
        let mut ways: Vec<_> = ways.into_iter().collect();
        ways.reverse();
        Self(Arc::new(Mutex::new(ways)))
    }
}

impl Dialler for Ways {
    async fn dial(&mut self, _: StreamId) -> Result<Socket, Failure> {
        let next = self.0.lock().expect("a lock").pop();
        let next = next.unwrap_or_else(|| Err(Failure::Final("no way on".into())));
        Ok(next?.into())
    }
}

/// The far side, as carrel-init is: echoes, on one transport after another.
struct Far {
    endpoint: Endpoint,
    secret: Secret,
    echoed: usize,
    /// Ends its direction after so many bytes.
    end_after: usize,
}

impl Far {
    /// Accepts a new stream.
    async fn accept(socket: &mut UnixStream, end_after: usize) -> Self {
        let mut preface = [0; PREFACE_BYTES];
        socket.read_exact(&mut preface).await.expect("a preface");
        let heard = Preface::decode(&preface).expect("a preface");
        let key = StreamKey::new([2; 32]);
        let mut endpoint = Endpoint::new(heard.id, key.public(), Limits::default());
        endpoint.attach();
        endpoint.handle_bytes(&preface).expect("a preface");
        Self {
            secret: key.accepted(heard.id, &heard.key).expect("a secret"),
            endpoint,
            echoed: 0,
            end_after,
        }
    }

    /// Accepts a claim on it.
    async fn resume(&mut self, socket: &mut UnixStream) {
        let mut claim = [0; CLAIM_BYTES];
        socket.read_exact(&mut claim).await.expect("a claim");
        let claim = Claim::decode(&claim).expect("a claim");
        assert_eq!(claim.id, self.endpoint.id());
        let challenge = Challenge { nonce: [6; 32] };
        socket.write_all(&challenge.encode()).await.expect("room");
        let mut proof = [0; PROOF_BYTES];
        socket.read_exact(&mut proof).await.expect("a proof");
        assert!(verify_claim(&self.secret, &claim, &challenge, &proof));
        self.endpoint.attach();
    }

    /// Echoes until the stream or the transport ends, or `limit` bytes are echoed in all.
    async fn echo(&mut self, socket: &mut UnixStream, limit: usize) {
        loop {
            loop {
                match self.endpoint.read() {
                    Read::Data(bytes) => {
                        self.echoed += bytes.len();
                        self.endpoint.write(bytes);
                        if self.echoed >= self.end_after {
                            self.endpoint.finish();
                        }
                    }
                    Read::Pending => break,
                    Read::End => {
                        self.endpoint.finish();
                        break;
                    }
                }
            }
            if self.echoed >= limit {
                self.endpoint.detach();
                return;
            }
            while let Some(transmit) = self.endpoint.poll_transmit() {
                let sent = socket.write_all(transmit.head()).await;
                if sent.is_err() || socket.write_all(&transmit.body).await.is_err() {
                    return;
                }
            }
            if self.endpoint.is_finished()
                || socket.read_buf(self.endpoint.receive_buffer()).await.unwrap_or(0) == 0
            {
                return;
            }
            self.endpoint.handle_received().expect("frames");
        }
    }
}

fn begin<I, O>(socket: UnixStream, dialler: Ways, input: I, output: O) -> Begin<Ways, I, O> {
    Begin {
        id: ID,
        socket: socket.into(),
        dialler,
        input,
        output,
        session: "dev".into(),
    }
}

/// A pump between an SSH client, which is returned, and a socket.
fn start(socket: UnixStream, dialler: Ways) -> (DuplexStream, JoinHandle<Ending>) {
    let (ssh, ours) = tokio::io::duplex(64 * 1024);
    let (input, output) = tokio::io::split(ours);
    let pump = pump(begin(socket, dialler, input, output), std::future::pending());
    (ssh, tokio::spawn(pump))
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8).collect()
}

/// Sends bytes and wants them back.
async fn there_and_back(ssh: &mut DuplexStream, length: usize) {
    let sent = pattern(length);
    let mut got = vec![0; length];
    let (mut from, mut to) = tokio::io::split(ssh);
    let (written, read) = tokio::join!(to.write_all(&sent), from.read_exact(&mut got));
    written.expect("room");
    read.expect("as many bytes");
    assert!(got == sent, "the bytes differ");
}

#[tokio::test]
async fn bytes_come_back_and_the_near_end_ends_it() {
    const LENGTH: usize = 3_000_001;
    let (near, mut far) = UnixStream::pair().unwrap();
    let far_side = tokio::spawn(async move {
        let mut side = Far::accept(&mut far, usize::MAX).await;
        side.echo(&mut far, usize::MAX).await;
        side.echoed
    });
    let (mut ssh, pump) = start(near, Ways::new([]));
    there_and_back(&mut ssh, LENGTH).await;
    drop(ssh);
    assert_eq!(pump.await.unwrap(), Ending::NearEnd);
    assert_eq!(far_side.await.unwrap(), LENGTH);
}

/// Ten transports, cut wherever the far side happens to be, with failures between.
#[tokio::test]
async fn a_stream_outlives_its_transports() {
    const LENGTH: usize = 5_000_011;
    const CUTS: usize = 10;
    let (near, mut far) = UnixStream::pair().unwrap();
    let (mut ways, mut ends) = (Vec::new(), Vec::new());
    for cut in 0..CUTS {
        let (near, far) = UnixStream::pair().unwrap();
        if cut % 3 == 0 {
            ways.push(Err(Failure::Passing("the gateway restarts".into())));
        }
        ways.push(Ok(near));
        ends.push(far);
    }
    let far_side = tokio::spawn(async move {
        let mut side = Far::accept(&mut far, usize::MAX).await;
        side.echo(&mut far, 1).await;
        drop(far);
        for (at, mut far) in ends.into_iter().enumerate() {
            side.resume(&mut far).await;
            let limit = if at + 1 == CUTS {
                usize::MAX
            } else {
                (at + 1) * LENGTH / CUTS
            };
            side.echo(&mut far, limit).await;
        }
        side.echoed
    });
    let (mut ssh, pump) = start(near, Ways::new(ways));
    there_and_back(&mut ssh, LENGTH).await;
    drop(ssh);
    assert_eq!(pump.await.unwrap(), Ending::NearEnd);
    assert_eq!(far_side.await.unwrap(), LENGTH);
}

/// The gateway dies before the far side was heard: nothing is claimed, all is said anew.
#[tokio::test]
async fn a_stream_that_was_never_heard_begins_anew() {
    let (near, mut lost) = UnixStream::pair().unwrap();
    let (next, mut far) = UnixStream::pair().unwrap();
    let (mut ssh, pump) = start(near, Ways::new([Ok(next)]));
    let far_side = tokio::spawn(async move {
        let mut preface = [0; PREFACE_BYTES];
        lost.read_exact(&mut preface).await.expect("a preface");
        assert_eq!(Preface::decode(&preface).expect("a preface").id, ID);
        drop(lost);
        let mut side = Far::accept(&mut far, usize::MAX).await;
        assert_ne!(side.endpoint.id(), ID);
        side.echo(&mut far, usize::MAX).await;
    });
    there_and_back(&mut ssh, 1000).await;
    drop(ssh);
    assert_eq!(pump.await.unwrap(), Ending::NearEnd);
    far_side.await.unwrap();
}

#[tokio::test]
async fn the_far_end_s_last_bytes_arrive_before_its_end() {
    let (near, mut far) = UnixStream::pair().unwrap();
    tokio::spawn(async move {
        let mut side = Far::accept(&mut far, 5).await;
        side.echo(&mut far, usize::MAX).await;
    });
    let mut output = Vec::new();
    // SSH says five bytes and waits.
    let begin = begin(near, Ways::new([]), silent_after(b"hello"), &mut output);
    assert_eq!(pump(begin, std::future::pending()).await, Ending::FarEnd);
    assert_eq!(output, b"hello");
}

#[tokio::test]
async fn a_stream_without_a_way_on_says_why() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let (mut ssh, pump) = start(
        near,
        Ways::new([Err(Failure::Final("session dev is stopped".into()))]),
    );
    let far_side = async {
        let mut side = Far::accept(&mut far, usize::MAX).await;
        side.echo(&mut far, 1).await;
        drop(far);
    };
    let client = async { ssh.write_all(b"x").await.expect("room") };
    tokio::join!(far_side, client);
    let Ending::Broken(why) = pump.await.unwrap() else {
        panic!("it goes on")
    };
    assert!(why.contains("cannot be resumed: session dev is stopped"), "{why}");
}

/// Whatever refuses, its words reach the user: at the start, and to a claim.
#[tokio::test]
async fn a_refusal_s_text_reaches_the_user() {
    let refusal = |id, reason| Endpoint::refuse(id, reason, "said why");
    let (near, mut far) = UnixStream::pair().unwrap();
    let far_side = async {
        let mut preface = [0; PREFACE_BYTES];
        far.read_exact(&mut preface).await.unwrap();
        far.write_all(&refusal(ID, CloseReason::Refused)).await.unwrap();
    };
    let begin = begin(near, Ways::new([]), silent_after(b""), Vec::new());
    let (ending, ()) = tokio::join!(pump(begin, std::future::pending()), far_side);
    assert_eq!(ending, Ending::Broken("said why".into()));

    let (near, mut far) = UnixStream::pair().unwrap();
    let (next, mut again) = UnixStream::pair().unwrap();
    let (mut ssh, pump) = start(near, Ways::new([Ok(next)]));
    let far_side = async {
        let mut side = Far::accept(&mut far, usize::MAX).await;
        side.echo(&mut far, 1).await;
        drop(far);
        let mut claim = [0; CLAIM_BYTES];
        again.read_exact(&mut claim).await.expect("a claim");
        again
            .write_all(&refusal(ID, CloseReason::UnknownStream))
            .await
            .unwrap();
    };
    let client = async { ssh.write_all(b"x").await.expect("room") };
    tokio::join!(far_side, client);
    let Ending::Broken(why) = pump.await.unwrap() else {
        panic!("it goes on")
    };
    assert!(why.contains("said why"), "{why}");
}

/// A signal is an end that the far side hears of: it keeps nothing for a client that has left.
#[tokio::test]
async fn who_leaves_says_so() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let (leave, mut left) = mpsc::channel(1);
    let begin = begin(near, Ways::new([]), silent_after(b"x"), tokio::io::sink());
    let pump = tokio::spawn(pump(begin, async move { left.recv().await.expect("a signal") }));
    let mut side = Far::accept(&mut far, usize::MAX).await;
    side.echo(&mut far, 1).await;
    leave.send(Signal::HangUp).await.expect("it listens");
    assert_eq!(pump.await.unwrap(), Ending::Left(Signal::HangUp));
    let mut rest = Vec::new();
    // What was on its way to who has left makes a reset of the end.
    if let Err(error) = far.read_to_end(&mut rest).await {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    let goodbye = b"the SSH client has gone";
    assert!(
        rest.windows(goodbye.len()).any(|part| part == goodbye),
        "no goodbye in {rest:?}"
    );
}

/// A reader that gives these bytes and then nothing, without an end.
fn silent_after(bytes: &'static [u8]) -> impl AsyncRead + Unpin {
    let (reader, mut writer) = tokio::io::duplex(1024);
    tokio::spawn(async move {
        writer.write_all(bytes).await.unwrap();
        std::future::pending::<()>().await;
    });
    reader
}
