//! The agents that are connected, and the streams that were asked of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use carrel_core::model::ids::{JobKey, NodeName};
use carrel_proto::socket::Socket;
use carrel_proto::stream::{Endpoint, Id, Nonce, Secret, verify_proof};
use carrel_proto::v1::{GatewayAsks, StreamRefused};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::limits;
use crate::ca::x509::{NodePeer, Revoked};

/// What goes to an agent over its link.
pub(super) type Ask = Result<GatewayAsks, Status>;

/// Why a node's stream could not be opened, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OpenError {
    #[error(
        "node {0} is not connected to the gateway: it is down, cut off, or just starting; \
         `carrel nodes` tells which"
    )]
    NotConnected(NodeName),
    #[error("node {0} does not take requests at the moment: try again")]
    Stuck(NodeName),
    #[error("node {0} did not answer within {1} seconds: try again")]
    TimedOut(NodeName, u64),
    #[error("node {0} lost its connection to the gateway: try again")]
    Lost(NodeName),
    #[error("node {0}: {1}")]
    Refused(NodeName, String),
    #[error("node {0}: {1}")]
    Gone(NodeName, String),
    #[error("the gateway waits for {0} streams of nodes already, the most that it may: try again")]
    Busy(usize),
}

/// Links and pending streams. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub(super) struct Links {
    state: Arc<Mutex<State>>,
    /// A link was added.
    added: Arc<Notify>,
    /// What agents are told to dial.
    streams: Arc<str>,
    link_wait: Duration,
}

#[derive(Debug, Default)]
struct State {
    links: BTreeMap<NodeName, Link>,
    /// Number of the next link; tells a link from its successor.
    next: u64,
    pending: HashMap<Id, Pending>,
    revoked: Revoked,
}

#[derive(Debug)]
struct Link {
    number: u64,
    peer: NodePeer,
    asks: mpsc::Sender<Ask>,
    end: CancellationToken,
}

#[derive(Debug)]
struct Pending {
    node: NodeName,
    link: u64,
    secret: Secret,
    answer: oneshot::Sender<Result<Socket, OpenError>>,
}

/// A link's registration; the link is forgotten when it is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    links: Links,
    node: NodeName,
    number: u64,
    /// Ends the link: replaced, revoked, or the gateway stops.
    pub end: CancellationToken,
}

/// What a stream leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The job's carrel-init.
    Job,
    /// What its node keeps of its output.
    Log,
}

/// A stream asked for and not yet there; forgotten when dropped.
struct Asked<'a> {
    links: &'a Links,
    id: Id,
}

impl Links {
    /// None yet. `streams` is the endpoint that agents dial.
    pub fn new(streams: &Endpoint, link_wait: Duration) -> Self {
        let streams = streams.to_string().into();
        Self {
            state: Arc::default(),
            added: Arc::default(),
            streams,
            link_wait,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No change of the state panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of the nodes that are connected.
    pub fn nodes(&self) -> Vec<NodeName> {
        self.lock().links.keys().cloned().collect()
    }

    /// Registers a node's link, in place of its former one. `asks` leads to the
    /// agent; `end` is cancelled when the link is to end.
    pub fn register(
        &self,
        peer: NodePeer,
        asks: mpsc::Sender<Ask>,
        end: CancellationToken,
    ) -> Result<Registration, Status> {
        let mut state = self.lock();
        if state.revoked.contains(&peer.serial) {
            return Err(revoked());
        }
        if state.links.len() >= limits::LINKS && !state.links.contains_key(&peer.node) {
            return Err(Status::resource_exhausted(
                "the gateway has as many links as it may",
            ));
        }
        state.next += 1;
        let (number, node) = (state.next, peer.node.clone());
        let link = Link {
            number,
            peer,
            asks,
            end: end.clone(),
        };
        if let Some(former) = state.links.insert(node.clone(), link) {
            former.end.cancel();
        }
        drop(state);
        self.added.notify_waiters();
        Ok(Registration {
            links: self.clone(),
            node,
            number,
            end,
        })
    }

    /// Whether a certificate was revoked.
    pub fn check(&self, peer: &NodePeer) -> Result<(), Status> {
        if self.lock().revoked.contains(&peer.serial) {
            Err(revoked())
        } else {
            Ok(())
        }
    }

    /// These certificates no longer count: their links end.
    pub fn revoke(&self, revoked: &Revoked) {
        let mut state = self.lock();
        state.revoked.clone_from(revoked);
        for link in state
            .links
            .values()
            .filter(|link| revoked.contains(&link.peer.serial))
        {
            tracing::warn!(node = %link.peer.node, serial = %link.peer.serial, "the node's certificate was revoked");
            link.end.cancel();
        }
    }

    /// Asks a node for a stream to a job, and waits for it. A link that ends
    /// meanwhile is waited for and asked once more.
    pub async fn open(&self, node: &NodeName, job: JobKey, what: What) -> Result<Socket, OpenError> {
        match self.ask(node, job, what).await {
            Err(OpenError::Lost(_)) => self.ask(node, job, what).await,
            opened => opened,
        }
    }

    async fn ask(&self, node: &NodeName, job: JobKey, what: What) -> Result<Socket, OpenError> {
        let (number, asks) = self.link(node).await?;
        let (id, secret): (Id, Secret) = (rand::random(), rand::random());
        let (answer, answered) = oneshot::channel();
        let _asked = {
            let mut state = self.lock();
            if state.pending.len() >= limits::PENDING_STREAMS {
                return Err(OpenError::Busy(limits::PENDING_STREAMS));
            }
            state.pending.insert(
                id,
                Pending {
                    node: node.clone(),
                    link: number,
                    secret,
                    answer,
                },
            );
            Asked { links: self, id }
        };
        let ask = GatewayAsks {
            stream_id: id.to_vec().into(),
            secret: secret.to_vec().into(),
            job: job.job.0,
            generation: job.generation.0,
            streams: self.streams.to_string(),
            log: what == What::Log,
        };
        match asks.try_send(Ok(ask)) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return Err(OpenError::Stuck(node.clone())),
            Err(mpsc::error::TrySendError::Closed(_)) => {
                // Its connection broke and the link's task is about to notice.
                self.forget(node, number);
                return Err(OpenError::Lost(node.clone()));
            }
        }
        match tokio::time::timeout(limits::OPEN_TIMEOUT, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(OpenError::Lost(node.clone())),
            Err(_) => Err(OpenError::TimedOut(node.clone(), limits::OPEN_TIMEOUT.as_secs())),
        }
    }

    /// Forgets a link, unless another has taken its place, and all that was asked over it.
    fn forget(&self, node: &NodeName, number: u64) {
        let mut state = self.lock();
        if state.links.get(node).is_some_and(|link| link.number == number) {
            state.links.remove(node);
        }
        // Whether the agent still heard these requests is not known; who waits asks again.
        state.pending.retain(|_, pending| pending.link != number);
    }

    /// The node's link; waits a little for one that is about to come back.
    async fn link(&self, node: &NodeName) -> Result<(u64, mpsc::Sender<Ask>), OpenError> {
        let found = async {
            loop {
                let added = self.added.notified();
                tokio::pin!(added);
                // Listening before looking: a link added in between is not missed.
                added.as_mut().enable();
                if let Some(link) = self.lock().links.get(node) {
                    return (link.number, link.asks.clone());
                }
                added.await;
            }
        };
        let found = tokio::time::timeout(self.link_wait, found).await;
        found.map_err(|_| OpenError::NotConnected(node.clone()))
    }

    /// An agent's connection for a stream: goes to who waits for it. None waits,
    /// or the proof is wrong: it is dropped.
    pub fn connected(&self, id: &Id, nonce: &Nonce, proof: &Secret, socket: Socket) {
        let pending = {
            let mut state = self.lock();
            match state.pending.get(id) {
                Some(pending) if verify_proof(&pending.secret, nonce, &[], proof) => state.pending.remove(id),
                Some(_) | None => None,
            }
        };
        if let Some(pending) = pending {
            // Who waited may have left a moment ago; the socket is dropped with the answer.
            drop(pending.answer.send(Ok(socket)));
        } else {
            tracing::debug!("a connection came for a stream that nobody waits for");
        }
    }
}

fn revoked() -> Status {
    Status::permission_denied("the node's certificate was revoked: join the cluster again")
}

impl Registration {
    /// The agent refuses a stream. Only its own.
    pub fn refused(&self, refused: &StreamRefused) {
        let Ok(id) = Id::try_from(&refused.stream_id[..]) else {
            return;
        };
        let pending = {
            let mut state = self.links.lock();
            match state.pending.get(&id) {
                Some(pending) if pending.link == self.number => state.pending.remove(&id),
                Some(_) | None => None,
            }
        };
        if let Some(pending) = pending {
            let reason = refused.reason.chars().filter(|c| !c.is_control());
            let reason = reason.take(500).collect();
            let error = if refused.gone {
                OpenError::Gone(pending.node, reason)
            } else {
                OpenError::Refused(pending.node, reason)
            };
            // Who waited may have left a moment ago.
            drop(pending.answer.send(Err(error)));
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.links.forget(&self.node, self.number);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.links.lock().pending.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use carrel_core::model::ids::{Generation, JobId};
    use carrel_proto::stream::{NONCE_LEN, proof};
    use tokio::net::UnixStream;

    use super::*;
    use crate::ca::x509::Serial;

    const JOB: JobKey = JobKey {
        job: JobId(3),
        generation: Generation(4),
    };
    const NONCE: Nonce = [1; NONCE_LEN];

    fn links() -> Links {
        Links::new(&Endpoint::Tcp("head:1".into()), Duration::from_millis(20))
    }

    fn node() -> NodeName {
        "n1".parse().expect("a name")
    }

    fn peer(serial: &str) -> NodePeer {
        NodePeer {
            node: node(),
            serial: Serial::from_text(serial),
        }
    }

    fn register(links: &Links, serial: &str) -> (Registration, mpsc::Receiver<Ask>) {
        let (asks, asked) = mpsc::channel(limits::LINK_QUEUE);
        (
            links
                .register(peer(serial), asks, CancellationToken::new())
                .expect("registered"),
            asked,
        )
    }

    fn socket() -> Socket {
        UnixStream::pair().expect("a pair").0.into()
    }

    #[tokio::test]
    async fn a_stream_is_asked_for_and_paired_by_its_proof() {
        let links = links();
        let (_registration, mut asked) = register(&links, "a1");
        let agent = {
            let links = links.clone();
            tokio::spawn(async move {
                let ask = asked.recv().await.expect("a request").expect("no end");
                assert_eq!((ask.job, ask.generation, ask.streams.as_str()), (3, 4, "head:1"));
                let id = Id::try_from(&ask.stream_id[..]).expect("an id");
                // A stranger who has seen the id, but not the secret.
                links.connected(&id, &NONCE, &proof(b"guess", &NONCE, &[]), socket());
                links.connected(&id, &NONCE, &proof(&ask.secret, &NONCE, &[]), socket());
            })
        };
        links.open(&node(), JOB, What::Job).await.expect("a stream");
        agent.await.expect("an agent");
        assert!(links.lock().pending.is_empty());
    }

    #[tokio::test]
    async fn a_refusal_counts_only_from_the_node_that_was_asked() {
        let links = links();
        let (registration, mut asked) = register(&links, "a1");
        let (asks, _other_asked) = mpsc::channel(1);
        let other = NodePeer {
            node: "n2".parse().expect("a name"),
            serial: Serial::from_text("a2"),
        };
        let other = links
            .register(other, asks, CancellationToken::new())
            .expect("registered");
        let agent = tokio::spawn(async move {
            let ask = asked.recv().await.expect("a request").expect("no end");
            let refusal = |reason: &str| StreamRefused {
                stream_id: ask.stream_id.to_vec(),
                reason: reason.into(),
                gone: true,
            };
            other.refused(&refusal("mine!"));
            registration.refused(&refusal("job 3 is\n not here"));
            registration
        });
        let error = links.open(&node(), JOB, What::Job).await.expect_err("refused");
        assert_eq!(error, OpenError::Gone(node(), "job 3 is not here".into()));
        assert_eq!(error.to_string(), "node n1: job 3 is not here");
        agent.await.expect("an agent");
    }

    #[tokio::test]
    async fn who_is_not_connected_is_named() {
        let links = links();
        let error = links
            .open(&node(), JOB, What::Job)
            .await
            .expect_err("nobody there")
            .to_string();
        assert!(
            error.starts_with("node n1 is not connected to the gateway"),
            "{error}"
        );
        drop(register(&links, "a1"));
        assert!(links.nodes().is_empty());
        assert_eq!(
            links.open(&node(), JOB, What::Job).await.err(),
            Some(OpenError::NotConnected(node()))
        );
    }

    #[tokio::test]
    async fn a_link_that_ends_while_it_was_asked_is_asked_again() {
        let links = links();
        let (first, mut asked) = register(&links, "a1");
        let agent = {
            let links = links.clone();
            tokio::spawn(async move {
                asked.recv().await.expect("a request").expect("no end");
                drop((first, asked));
                let (second, mut asked) = register(&links, "a1");
                let ask = asked.recv().await.expect("a request").expect("no end");
                let id = Id::try_from(&ask.stream_id[..]).expect("an id");
                links.connected(&id, &NONCE, &proof(&ask.secret, &NONCE, &[]), socket());
                second
            })
        };
        links.open(&node(), JOB, What::Job).await.expect("a stream");
        agent.await.expect("an agent");
    }

    #[tokio::test]
    async fn a_second_link_takes_the_place_of_the_first() {
        let links = links();
        let (first, _) = register(&links, "a1");
        let (second, _asked) = register(&links, "a1");
        assert!(first.end.is_cancelled() && !second.end.is_cancelled());
        drop(first);
        assert_eq!(links.nodes(), [node()]);
        drop(second);
        assert!(links.nodes().is_empty());
    }

    #[tokio::test]
    async fn revoked_certificates_end_links_and_begin_none() {
        let links = links();
        let (registration, _asked) = register(&links, "a1");
        links.revoke(&Revoked::from([Serial::from_text("00A1")]));
        assert!(registration.end.is_cancelled());
        let (asks, _) = mpsc::channel(1);
        assert!(
            links
                .register(peer("a1"), asks, CancellationToken::new())
                .is_err()
        );
        assert!(links.check(&peer("a1")).is_err() && links.check(&peer("a2")).is_ok());
    }
}
