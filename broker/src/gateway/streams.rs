//! The stream endpoints: clients come with tickets, agents with what they were
//! asked for, and the gateway joins the two.

use std::sync::Arc;
use std::time::Duration;

use carrel_core::model::time::Timestamp;
use carrel_core::stream::StreamId;
use carrel_core::stream::claim::{CLAIM_BYTES, Claim};
use carrel_proto::relay::relay;
use carrel_proto::socket::{Socket, read_frame};
use carrel_proto::stream::{
    Caller, Hello, Nonce, Secret, accept_frame, parse_hello, refuse_frame, ticket_secret,
};
use carrel_proto::v1::StreamRefusal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info, info_span};

use super::enrolment::Material;
use super::limits;
use super::links::{Links, OpenError, What};
use super::net::{self, Listener};
use super::quota::Quota;
use super::tickets::{Grant, Reservation, Shown, TicketError, Tickets};
use crate::handshakes::{Handshake, Handshakes};

/// What every stream connection needs. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pub material: watch::Receiver<Option<Arc<Material>>>,
    pub links: Links,
    pub tickets: Tickets,
    /// Of tickets to go on with a stream.
    pub resumption_validity: Duration,
    pub quota: Quota,
    pub handshakes: Handshakes,
    pub tasks: TaskTracker,
    pub cancel: CancellationToken,
}

/// Why a client gets no stream, for people.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Ticket(#[from] TicketError),
    #[error(transparent)]
    Quota(#[from] super::quota::QuotaError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the gateway has not reached its broker yet: try again")]
    NotReady,
}

impl Refused {
    /// What the client is to do.
    fn refusal(&self) -> StreamRefusal {
        match self {
            Self::Ticket(TicketError::Busy) | Self::Quota(_) | Self::NotReady => StreamRefusal::Unspecified,
            Self::Ticket(
                TicketError::NotOurs
                | TicketError::Expired
                | TicketError::Used
                | TicketError::BeforeStart
                | TicketError::OtherStream,
            ) => StreamRefusal::Ticket,
            Self::Open(OpenError::Gone(..)) => StreamRefusal::Gone,
            Self::Open(
                OpenError::NotConnected(_)
                | OpenError::Stuck(_)
                | OpenError::TimedOut(..)
                | OpenError::Lost(_)
                | OpenError::Refused(..)
                | OpenError::Busy(_),
            ) => StreamRefusal::Unspecified,
        }
    }
}

impl Streams {
    /// Serves a listener until cancelled.
    pub async fn serve(self, listener: Listener) -> anyhow::Result<()> {
        net::accept_all(
            "streams",
            &self.cancel,
            || listener.accept(),
            |(socket, source)| {
                let connection = self.clone();
                let handshake = self.handshakes.enter(source);
                self.tasks.spawn(async move {
                    // Cancelling cuts the connection, which is what an end means.
                    tokio::select! {
                        () = connection.cancel.cancelled() => {}
                        () = connection.greet(socket, handshake) => {}
                    }
                });
            },
        )
        .await;
        Ok(())
    }

    /// One connection, from its first byte to its last.
    async fn greet(&self, mut socket: Socket, handshake: Handshake) {
        let nonce: Nonce = rand::random();
        let heard = tokio::time::timeout(limits::HELLO_TIMEOUT, hear(&mut socket, &nonce));
        // Leaving either arm closes the connection.
        let heard = tokio::select! {
            () = handshake.cut() => return debug!("too many handshakes at once: one is cut"),
            heard = heard => heard,
        };
        let hello = match heard {
            Ok(Ok(hello)) => hello,
            Ok(Err(error)) => return debug!(%error, "a stream's handshake failed"),
            Err(_) => return debug!("a stream's handshake took too long"),
        };
        drop(handshake);
        match hello.caller {
            Caller::Agent { stream_id } => self.links.connected(&stream_id, &nonce, &hello.proof, socket),
            Caller::Client { ticket, stream } => {
                let shown = Shown {
                    ticket: &ticket,
                    stream,
                    proof: &hello.proof,
                    nonce: &nonce,
                };
                self.client(socket, &shown).await;
            }
        }
    }

    async fn client(&self, mut socket: Socket, shown: &Shown<'_>) {
        let (key, grant, reservation) = match self.take(shown) {
            Ok(taken) => taken,
            Err(refused) => {
                debug!(reason = %refused, "a ticket was refused");
                return answer(&mut socket, &refused).await;
            }
        };
        let span = info_span!("stream", node = %grant.node, job = %grant.job, user = %grant.user);
        async {
            let opened = async {
                let place = self.quota.take(&grant.user, &grant.node)?;
                Ok::<_, Refused>((place, self.links.open(&grant.node, grant.job, grant.what).await?))
            };
            let (_place, mut node) = match opened.await {
                Ok(opened) => opened,
                Err(refused) => {
                    info!(reason = %refused, "no stream");
                    // Before the answer, so that a client that tries again at once may.
                    drop(reservation);
                    return answer(&mut socket, &refused).await;
                }
            };
            match self
                .begin(&mut socket, &mut node, shown, &key, &grant, reservation)
                .await
            {
                Ok(()) => debug!(resumed = grant.resumes.is_some(), "stream opened"),
                Err(error) => return debug!(%error, "the client left while its stream was opened"),
            }
            match relay(&socket, &node).await {
                Ok(relayed) => debug!(sent = relayed.forth, received = relayed.back, "stream ended"),
                Err(error) => debug!(%error, "stream cut"),
            }
        }
        .instrument(span)
        .await;
    }

    fn take(&self, shown: &Shown<'_>) -> Result<(Secret, Grant, Reservation), Refused> {
        let material = self.material.borrow().clone().ok_or(Refused::NotReady)?;
        let (grant, reservation) = self.tickets.take(&material.stream_key, shown, now())?;
        Ok((material.stream_key, grant, reservation))
    }

    /// Accepts a client, with a ticket to come back with, and uses its ticket up.
    async fn begin(
        &self,
        socket: &mut Socket,
        node: &mut Socket,
        shown: &Shown<'_>,
        key: &Secret,
        grant: &Grant,
        reservation: Reservation,
    ) -> anyhow::Result<()> {
        // Of a log there is nothing to go on with: its reader says from where.
        let next = shown
            .stream
            .filter(|_| grant.what == What::Job)
            .map(|stream| grant.resumption(key, stream, now(), self.resumption_validity));
        let secret = ticket_secret(key, shown.ticket);
        let accept = accept_frame(next.as_ref(), &secret, shown.nonce);
        let Some(stream) = grant.resumes else {
            reservation.keep();
            socket.write_all(&accept).await?;
            return Ok(());
        };
        // A ticket for one stream must not lead to another. That the claim came shows that the
        // client has the next ticket; if it was cut off before that, it comes back with this one.
        socket.write_all(&accept).await?;
        let claim = tokio::time::timeout(limits::HELLO_TIMEOUT, hear_claim(socket, stream)).await??;
        reservation.keep();
        node.write_all(&claim).await?;
        Ok(())
    }
}

/// Reads a claim, and no more; it must be on this stream.
async fn hear_claim(socket: &mut Socket, stream: StreamId) -> anyhow::Result<[u8; CLAIM_BYTES]> {
    let mut bytes = [0; CLAIM_BYTES];
    socket.read_exact(&mut bytes).await?;
    let claim = Claim::decode(&bytes)?;
    anyhow::ensure!(claim.id == stream, "the claim is on another stream");
    Ok(bytes)
}

/// The wall clock, which tickets' times are by.
pub(super) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(since.map_or(0, |since| since.as_millis() as u64))
}

/// Sends the nonce and reads the hello.
async fn hear(socket: &mut Socket, nonce: &Nonce) -> anyhow::Result<Hello> {
    socket.write_all(nonce).await?;
    Ok(parse_hello(&read_frame(socket).await?)?)
}

/// Tells a client why not, and waits a little for it to hear it: closing a
/// socket with unread bytes would destroy the answer under way.
async fn answer(socket: &mut Socket, refused: &Refused) {
    let frame = refuse_frame(refused.refusal(), &refused.to_string());
    let told = async {
        socket.write_all(&frame).await?;
        socket.finish()?;
        let mut rest = [0; 1024];
        while socket.read(&mut rest).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    match tokio::time::timeout(limits::REFUSAL_LINGER, told).await {
        // It has closed, or will see the end now.
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => debug!(%error, "the client left before it was refused"),
    }
}
