//! Coming back to a stream whose transport is lost.

use std::io;
use std::time::Duration;

use carrel_core::stream::claim::{CHALLENGE_BYTES, CLAIM_MAGIC, Challenge, Claim};
use carrel_core::stream::{CloseReason, Endpoint, KEY_BYTES, Limits, StreamError, StreamId};
use carrel_proto::claim::claim_proof;
use carrel_proto::socket::Socket;
use carrel_proto::stream::Secret;
use rand::RngExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

use crate::clock;

/// Wait after the first failure …
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// … doubling up to this: a way that is back is found soon, and thousands that look for it are no load.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How long it is tried, in milliseconds with sleep: a session keeps a connection for three days. An
/// attempt is made after that in any case: a laptop may have slept for longer.
const PATIENCE_MS: u64 = 3 * 24 * 60 * 60 * 1000;
/// The same for a stream of which nothing was heard yet: there is nothing to go on with.
const FIRST_PATIENCE_MS: u64 = 10_000;
/// Longest time for a claim, which the container answers at once.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(15);

/// Makes transports to the far side.
pub trait Dialler: Send + 'static {
    /// One for this stream.
    fn dial(&mut self, stream: StreamId) -> impl Future<Output = Result<Socket, Failure>> + Send;
}

/// Why there is no transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// To try again may help.
    Passing(String),
    /// The stream is lost.
    Final(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Passing(format!("the connection to the session broke: {error}"))
    }
}

/// What is sought.
pub struct Lost {
    /// The stream.
    pub id: StreamId,
    /// What proves that it is ours; none: it was never heard, and begins anew.
    pub secret: Option<Secret>,
    /// Told why the last attempt failed.
    pub why: watch::Sender<String>,
}

/// Dials until there is a transport, or it is clear that there will be none: then why.
pub async fn redial<D: Dialler>(mut dialler: D, lost: Lost) -> (D, Result<Socket, String>) {
    let begun = clock::now_ms();
    let patience = if lost.secret.is_some() {
        PATIENCE_MS
    } else {
        FIRST_PATIENCE_MS
    };
    let mut pause = FIRST_PAUSE;
    loop {
        match attempt(&mut dialler, &lost).await {
            Ok(socket) => return (dialler, Ok(socket)),
            Err(Failure::Passing(why)) if clock::now_ms().saturating_sub(begun) < patience => {
                lost.why.send_replace(why);
            }
            Err(Failure::Passing(why) | Failure::Final(why)) => {
                let why = format!("the connection was lost and cannot be resumed: {why}");
                return (dialler, Err(why));
            }
        }
        let part = rand::rng().random_range(0.5..1.0);
        tokio::time::sleep(pause.mul_f64(part)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn attempt<D: Dialler>(dialler: &mut D, lost: &Lost) -> Result<Socket, Failure> {
    let mut socket = dialler.dial(lost.id).await?;
    if let Some(secret) = &lost.secret {
        let claimed = tokio::time::timeout(CLAIM_TIMEOUT, claim(&mut socket, lost.id, secret));
        claimed
            .await
            .map_err(|_| Failure::Passing("the session does not answer".into()))??;
    }
    Ok(socket)
}

/// Shows that the stream is ours. The prefaces follow.
async fn claim(socket: &mut Socket, id: StreamId, secret: &Secret) -> Result<(), Failure> {
    let claim = Claim {
        id,
        nonce: rand::random(),
    };
    socket.write_all(&claim.encode()).await?;
    // A refusal is longer than a challenge.
    let mut answer = [0; CHALLENGE_BYTES];
    socket.read_exact(&mut answer).await?;
    if !answer.starts_with(&CLAIM_MAGIC) {
        return Err(refusal(socket, id, &answer).await);
    }
    let challenge = Challenge::decode(&answer).map_err(io::Error::other)?;
    socket.write_all(&claim_proof(secret, &claim, &challenge)).await?;
    Ok(())
}

/// Reads a refusal to its end.
async fn refusal(socket: &mut Socket, id: StreamId, begun: &[u8]) -> Failure {
    let mut end = Endpoint::new(id, [0; KEY_BYTES], Limits::default());
    end.attach();
    let mut result = end.handle_bytes(begun);
    while result.is_ok() {
        match socket.read_buf(end.receive_buffer()).await {
            Ok(1..) => result = end.handle_received(),
            Ok(0) => return io::Error::from(io::ErrorKind::UnexpectedEof).into(),
            Err(error) => return error.into(),
        }
    }
    match result {
        Err(StreamError::Closed {
            reason: CloseReason::Refused,
            text,
        }) => Failure::Passing(text),
        Err(StreamError::Closed { text, .. }) => Failure::Final(text),
        // Not an answer to a claim: one that came too late was taken for something else.
        Err(error) => Failure::Passing(error.to_string()),
        Ok(()) => Failure::Passing("the session does not answer".into()),
    }
}
