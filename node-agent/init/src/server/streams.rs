//! Streams that their clients may come back to: the SSH connection above goes on without a
//! transport, and with it all that it runs.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use carrel_core::stream::claim::{Challenge, Claim, PROOF_BYTES};
use carrel_core::stream::{CloseReason, Endpoint, StreamId};
use carrel_proto::claim::verify_claim;
use carrel_proto::stream::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tracing::{debug, info};

/// Streams without a transport, at one time. Each may hold what its client has not acknowledged,
/// at most 4 MiB, of the session's memory; the one that was cut first gives way to the next.
pub const MAX_DETACHED: usize = 32;

/// How long a stream waits for its client, in milliseconds on the clock that runs on through
/// suspension: three days, so that a laptop that was closed on Friday goes on on Monday.
pub const KEEP_MS: u64 = 3 * 24 * 60 * 60 * 1000;

/// Longest time for a claim's proof, and for the stream to take its new transport.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);

/// The streams of this server, which end with it.
#[derive(Default)]
pub struct Streams(Mutex<BTreeMap<StreamId, Entry>>);

struct Entry {
    secret: Secret,
    words: mpsc::Sender<Word>,
    /// Boot time in ms; `None`: it has a transport.
    detached_at: Option<u64>,
}

/// What a stream is told.
pub enum Word {
    /// Its client is back, on this transport.
    Transport(UnixStream),
    /// It has waited for long enough.
    GiveUp,
}

/// A stream's place among them, given back when dropped.
pub struct Place {
    id: StreamId,
    streams: Arc<Streams>,
    words: mpsc::Receiver<Word>,
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<StreamId, Entry>> {
        // No change panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a new stream. `None`: there is one of that id.
    pub fn add(self: &Arc<Self>, id: StreamId, secret: Secret) -> Option<Place> {
        let mut streams = self.lock();
        if streams.contains_key(&id) {
            return None;
        }
        // One transport at a time: the next claim waits until this one's was taken.
        let (sender, words) = mpsc::channel(1);
        let entry = Entry {
            secret,
            words: sender,
            detached_at: None,
        };
        streams.insert(id, entry);
        Some(Place {
            id,
            streams: Arc::clone(self),
            words,
        })
    }

    /// Gives a stream the transport on which it was claimed, once the claim is proven.
    pub async fn claimed(&self, claim: Claim, mut stream: UnixStream) -> io::Result<()> {
        let found = self
            .lock()
            .get(&claim.id)
            .map(|entry| (entry.secret, entry.words.clone()));
        let Some((secret, words)) = found else {
            info!("a stream was claimed that is not kept");
            return refuse(&mut stream, claim.id).await;
        };
        let challenge = Challenge {
            nonce: rand::random(),
        };
        let mut proof = [0; PROOF_BYTES];
        let proving = async {
            stream.write_all(&challenge.encode()).await?;
            stream.read_exact(&mut proof).await
        };
        tokio::time::timeout(CLAIM_TIMEOUT, proving).await??;
        if !verify_claim(&secret, &claim, &challenge, &proof) {
            info!("a stream was claimed by somebody else than its client");
            return refuse(&mut stream, claim.id).await;
        }
        // A stream that ends meanwhile, or is too busy to look, drops the transport: the client
        // comes again.
        let taken = words.send_timeout(Word::Transport(stream), CLAIM_TIMEOUT).await;
        debug!(taken = taken.is_ok(), "a stream's client is back");
        Ok(())
    }

    fn detach(&self, id: StreamId, now: u64) {
        let mut streams = self.lock();
        if let Some(entry) = streams.get_mut(&id) {
            entry.detached_at = Some(now);
        }
        let detached = || streams.values().filter(|entry| entry.detached_at.is_some());
        if detached().count() <= MAX_DETACHED {
            return;
        }
        if let Some(first) = detached().min_by_key(|entry| entry.detached_at) {
            // One whose client is coming back just now has no room for the word, and stays.
            let told = first.words.try_send(Word::GiveUp).is_ok();
            info!(
                told,
                "{MAX_DETACHED} connections wait for their clients: the first is given up"
            );
        }
    }

    fn attach(&self, id: StreamId) {
        if let Some(entry) = self.lock().get_mut(&id) {
            entry.detached_at = None;
        }
    }
}

async fn refuse(stream: &mut UnixStream, id: StreamId) -> io::Result<()> {
    let days = KEEP_MS / (24 * 60 * 60 * 1000);
    let text = format!(
        "the session no longer keeps this connection: its SSH server was restarted, or the connection was \
         cut for longer than {days} days, or {MAX_DETACHED} others were cut after it"
    );
    let refusal = Endpoint::refuse(id, CloseReason::UnknownStream, &text);
    stream.write_all(&refusal).await
}

impl Place {
    /// The next word. Pending when the stream has no place any more, as it always has.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Word> {
        match self.words.poll_recv(context) {
            Poll::Ready(Some(word)) => Poll::Ready(word),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// The transport is lost.
    pub fn detach(&self, now: u64) {
        self.streams.detach(self.id, now);
    }

    /// There is one again.
    pub fn attach(&self) {
        self.streams.attach(self.id);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.streams.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use carrel_core::stream::claim::{CHALLENGE_BYTES, CLAIM_MAGIC};
    use carrel_core::stream::{KEY_BYTES, Limits, StreamError};
    use carrel_proto::claim::claim_proof;

    use super::*;

    const SECRET: Secret = [4; 32];

    fn id(number: u8) -> StreamId {
        StreamId([number; 16])
    }

    fn words(place: &mut Place) -> Option<Word> {
        place.words.try_recv().ok()
    }

    #[test]
    fn the_one_that_was_cut_first_gives_way() {
        let streams = Arc::new(Streams::default());
        let mut places: Vec<_> = (0..=MAX_DETACHED as u8)
            .map(|number| streams.add(id(number), SECRET).expect("a place"))
            .collect();
        assert!(streams.add(id(0), SECRET).is_none(), "an id is given once");
        for (at, place) in places.iter().enumerate().rev() {
            place.detach(1_000 - at as u64);
        }
        // Cut in reverse order: the last of them was first.
        let last = places.last_mut().expect("some");
        assert!(matches!(words(last), Some(Word::GiveUp)));
        assert!(
            places[..MAX_DETACHED]
                .iter_mut()
                .all(|place| words(place).is_none())
        );
        // One that came back makes room.
        places.pop();
        places[0].attach();
        let mut next = streams.add(id(200), SECRET).expect("a place");
        next.detach(2_000);
        assert!(words(&mut next).is_none());
        assert!(places.iter_mut().all(|place| words(place).is_none()));
    }

    /// Claims a stream; whether a challenge came, and what comes after the proof.
    async fn claim(streams: &Streams, claim: Claim, secret: &Secret) -> (bool, Vec<u8>) {
        let (mut near, far) = UnixStream::pair().expect("a pair");
        let client = async {
            let mut challenge = [0; CHALLENGE_BYTES];
            near.read_exact(&mut challenge).await.expect("an answer");
            let challenged = challenge.starts_with(&CLAIM_MAGIC);
            let mut rest = Vec::new();
            if challenged {
                let challenge = Challenge::decode(&challenge).expect("a challenge");
                near.write_all(&claim_proof(secret, &claim, &challenge))
                    .await
                    .expect("room");
            } else {
                rest.extend_from_slice(&challenge);
            }
            near.read_to_end(&mut rest).await.expect("an end");
            (challenged, rest)
        };
        let (served, told) = tokio::join!(streams.claimed(claim, far), client);
        served.expect("served");
        told
    }

    fn refusal(of: StreamId, bytes: &[u8]) -> StreamError {
        let mut end = Endpoint::new(of, [0; KEY_BYTES], Limits::default());
        end.attach();
        end.handle_bytes(bytes).expect_err("a refusal")
    }

    #[tokio::test]
    async fn only_who_knows_the_secret_gets_a_stream() {
        let streams = Arc::new(Streams::default());
        let mut place = streams.add(id(1), SECRET).expect("a place");
        let wish = |number| Claim {
            id: id(number),
            nonce: rand::random(),
        };
        let unknown = |error| {
            matches!(
                error,
                StreamError::Closed {
                    reason: CloseReason::UnknownStream,
                    ..
                }
            )
        };

        let (challenged, told) = claim(&streams, wish(2), &SECRET).await;
        assert!(!challenged && unknown(refusal(id(2), &told)));
        let (challenged, told) = claim(&streams, wish(1), &[5; 32]).await;
        assert!(challenged && unknown(refusal(id(1), &told)));
        assert!(
            words(&mut place).is_none(),
            "a thief's transport reached the stream"
        );

        let taken = async {
            loop {
                if let Some(Word::Transport(_)) = words(&mut place) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        let ((challenged, told), ()) = tokio::join!(claim(&streams, wish(1), &SECRET), taken);
        assert!(challenged && told.is_empty());
    }
}
