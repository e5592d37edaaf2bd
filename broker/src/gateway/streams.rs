//! The stream endpoints: clients come with tickets, agents with what they were
//! asked for, and the gateway joins the two.

use std::sync::Arc;

use carrel_core::model::time::Timestamp;
use carrel_proto::relay::relay;
use carrel_proto::socket::{Socket, read_frame};
use carrel_proto::stream::{Caller, Hello, NONCE_LEN, Nonce, accept_frame, parse_hello};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info, info_span};

use super::enrolment::Material;
use super::limits;
use super::links::Links;
use super::net::{self, Listener};
use super::quota::Quota;
use super::tickets::{Grant, Tickets};

/// What every stream connection needs. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pub material: watch::Receiver<Option<Arc<Material>>>,
    pub links: Links,
    pub tickets: Tickets,
    pub quota: Quota,
    pub handshakes: Arc<Semaphore>,
    pub tasks: TaskTracker,
    pub cancel: CancellationToken,
}

/// Why a client gets no stream, for people.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Ticket(#[from] super::tickets::TicketError),
    #[error(transparent)]
    Quota(#[from] super::quota::QuotaError),
    #[error(transparent)]
    Open(#[from] super::links::OpenError),
    #[error("the gateway has too many connections that have not said who they are: try again")]
    Handshakes,
    #[error("the gateway has not reached its broker yet: try again")]
    NotReady,
}

impl Streams {
    /// Serves a listener until cancelled.
    pub async fn serve(self, listener: Listener) -> anyhow::Result<()> {
        net::accept_all(
            "streams",
            &self.cancel,
            || listener.accept(),
            |socket| {
                let connection = self.clone();
                let permit = Arc::clone(&self.handshakes).try_acquire_owned();
                self.tasks.spawn(async move {
                    // Cancelling cuts the connection, which is what an end means.
                    tokio::select! {
                        () = connection.cancel.cancelled() => {}
                        () = connection.greet(socket, permit.ok()) => {}
                    }
                });
            },
        )
        .await;
        Ok(())
    }

    /// One connection, from its first byte to its last.
    async fn greet(&self, mut socket: Socket, permit: Option<OwnedSemaphorePermit>) {
        let nonce: Nonce = rand::random();
        let Some(permit) = permit else {
            return refuse(&mut socket, &nonce, &Refused::Handshakes).await;
        };
        let hello = match tokio::time::timeout(limits::HELLO_TIMEOUT, hear(&mut socket, &nonce)).await {
            Ok(Ok(hello)) => hello,
            Ok(Err(error)) => return debug!(%error, "a stream's handshake failed"),
            Err(_) => return debug!("a stream's handshake took too long"),
        };
        drop(permit);
        match hello.caller {
            Caller::Agent { stream_id } => self.links.connected(&stream_id, &nonce, &hello.proof, socket),
            Caller::Client { ticket } => self.client(socket, &ticket, &hello.proof, &nonce).await,
        }
    }

    async fn client(&self, mut socket: Socket, ticket: &[u8], proof: &[u8; 32], nonce: &Nonce) {
        let taken = self.take(ticket, proof, nonce);
        let (grant, reservation) = match taken {
            Ok(taken) => taken,
            Err(refused) => {
                debug!(reason = %refused, "a ticket was refused");
                return answer(&mut socket, &refused.to_string()).await;
            }
        };
        let span = info_span!("stream", node = %grant.node, job = %grant.job, user = %grant.user);
        async {
            let opened = async {
                let place = self.quota.take(&grant.user)?;
                Ok::<_, Refused>((place, self.links.open(&grant.node, grant.job).await?))
            };
            let (_place, node) = match opened.await {
                Ok(opened) => opened,
                Err(refused) => {
                    info!(reason = %refused, "no stream");
                    // Before the answer, so that a client that tries again at once may.
                    drop(reservation);
                    return answer(&mut socket, &refused.to_string()).await;
                }
            };
            reservation.keep();
            if let Err(error) = socket.write_all(&accept_frame("")).await {
                return debug!(%error, "the client left while its stream was opened");
            }
            debug!("stream opened");
            match relay(&socket, &node).await {
                Ok(relayed) => debug!(sent = relayed.forth, received = relayed.back, "stream ended"),
                Err(error) => debug!(%error, "stream cut"),
            }
        }
        .instrument(span)
        .await;
    }

    fn take(
        &self,
        ticket: &[u8],
        proof: &[u8; 32],
        nonce: &Nonce,
    ) -> Result<(Grant, super::tickets::Reservation), Refused> {
        let material = self.material.borrow().clone().ok_or(Refused::NotReady)?;
        Ok(self
            .tickets
            .take(&material.stream_key, ticket, proof, nonce, now())?)
    }
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

/// Refuses a connection before it has said anything.
async fn refuse(socket: &mut Socket, nonce: &[u8; NONCE_LEN], refused: &Refused) {
    debug!(reason = %refused, "connection refused");
    let told = tokio::time::timeout(limits::REFUSAL_LINGER, socket.write_all(nonce)).await;
    if matches!(told, Ok(Ok(()))) {
        answer(socket, &refused.to_string()).await;
    }
}

/// Tells a client why not, and waits a little for it to hear it: closing a
/// socket with unread bytes would destroy the answer under way.
async fn answer(socket: &mut Socket, reason: &str) {
    let told = async {
        socket.write_all(&accept_frame(reason)).await?;
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
