//! Accepting SSH connections, and their beginning and end.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use russh::Disconnect;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, info, info_span, warn};

use super::auth::Way;
use super::connection::Connection;
use super::shared::Shared;
use super::streams::Streams;
use super::transport::{self, Greeting, Transport};

/// Connections at one time, those included whose clients were cut off.
const MAX_CONNECTIONS: usize = 256;
/// Connections that have not authenticated or proven their claim yet, at one time: when a gateway
/// restarts, all clients come back at once.
const MAX_HANDSHAKES: usize = 64;
/// Connections that are being told that they are too many; more are dropped.
const MAX_REFUSALS: usize = 64;
/// Longest time to tell one.
const REFUSAL: Duration = Duration::from_secs(5);
/// Longest time to authenticate.
const HANDSHAKE: Duration = Duration::from_mins(1);
/// How long after the server's start a client waits for the host certificate, which the broker signs
/// once it knows the host key: sooner, it would meet a host that it does not know.
const CERTIFICATE: Duration = Duration::from_secs(2);
/// What a client has to hang up in, when everything ends.
const GOODBYE: Duration = Duration::from_millis(500);
/// Wait after an accept that failed, as it does when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves SSH connections until the end.
pub async fn accept(
    listener: UnixListener,
    shared: Arc<Shared>,
    ending: CancellationToken,
    tasks: TaskTracker,
) {
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    let server = Server {
        shared,
        streams: Arc::default(),
        connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        ending: ending.clone(),
    };
    let mut number = 0_u64;
    let certified_by = Instant::now() + CERTIFICATE;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ending.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "accepting on ssh.sock");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(handshake) = Arc::clone(&handshakes).try_acquire_owned() else {
            warn!("too many handshakes at once; one is refused");
            let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() else {
                continue;
            };
            tasks.spawn(async move {
                let text = format!("{MAX_HANDSHAKES} clients are just connecting to this session: try again");
                let refusing = async { transport::greet(stream).await?.refuse(&text).await };
                // It may have hung up, or say nothing: then it is not told.
                drop(tokio::time::timeout(REFUSAL, refusing).await);
                drop(permit);
            });
            continue;
        };
        number += 1;
        let server = server.clone();
        let serving = async move {
            // It goes on without one for those who know the key itself.
            tokio::time::timeout_at(certified_by, certified(&server.shared))
                .await
                .ok();
            if let Err(error) = server.serve(stream, handshake).await {
                info!(%error, "connection");
            }
        };
        tasks.spawn(serving.instrument(info_span!("ssh", connection = number)));
    }
}

/// Waits until there is a host certificate.
async fn certified(shared: &Shared) {
    let mut changes = shared.watch();
    while !shared.settings().has_host_certificate() && changes.changed().await.is_ok() {}
}

/// Waits until somebody who got in would get in no more.
async fn expelled(shared: &Shared, way: &OnceLock<Way>) {
    let mut changes = shared.watch();
    while way
        .get()
        .is_none_or(|way| shared.settings().access.still_admits(way))
    {
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// What every connection needs.
#[derive(Clone)]
struct Server {
    shared: Arc<Shared>,
    streams: Arc<Streams>,
    connections: Arc<Semaphore>,
    ending: CancellationToken,
}

impl Server {
    async fn serve(self, stream: UnixStream, handshake: OwnedSemaphorePermit) -> Result<(), russh::Error> {
        let greeting = tokio::time::timeout(HANDSHAKE, transport::greet(stream)).await??;
        let place = Arc::clone(&self.connections).try_acquire_owned();
        let hangup = CancellationToken::new();
        let (transport, place) = match (greeting, place) {
            // It has its place.
            (Greeting::Claim(stream, claim), _) => return Ok(self.streams.claimed(claim, stream).await?),
            (Greeting::Raw(stream, first), Ok(place)) => {
                let transport = Transport::new(Box::new(stream), first, hangup.clone());
                (transport, place)
            }
            (Greeting::New(stream, preface, first), Ok(place)) => {
                let begun = transport::begin(stream, preface, first, &self.streams, hangup.clone());
                (begun.await?, place)
            }
            (greeting @ (Greeting::Raw(..) | Greeting::New(..)), Err(_)) => {
                warn!("too many connections; one is refused");
                let text = format!(
                    "this session has {MAX_CONNECTIONS} connections, the most that it may: close some"
                );
                return Ok(greeting.refuse(&text).await?);
            }
        };
        let ended = self.run(transport, handshake, hangup).await;
        drop(place);
        ended
    }

    async fn run(
        self,
        transport: Transport,
        handshake: OwnedSemaphorePermit,
        hangup: CancellationToken,
    ) -> Result<(), russh::Error> {
        // Cancelled when this returns, whatever the reason: ends all of the connection's tasks.
        let ended = CancellationToken::new();
        let _guard = ended.clone().drop_guard();
        let authenticated = Arc::new(Notify::new());
        let config = Arc::clone(&self.shared.settings().ssh);
        let way = Arc::new(OnceLock::new());
        let handler = Connection::new(
            Arc::clone(&self.shared),
            ended,
            Arc::clone(&authenticated),
            Arc::clone(&way),
        );
        let begin = russh::server::run_stream(config, transport, handler);
        let mut running = tokio::time::timeout(HANDSHAKE, begin).await??;
        let handle = running.handle();
        tokio::select! {
            result = &mut running => return result,
            () = authenticated.notified() => drop(handshake),
            () = tokio::time::sleep(HANDSHAKE) => {
                info!("not authenticated in time");
                hangup.cancel();
                return running.await;
            }
            () = self.ending.cancelled() => {}
        }
        // The others only wait.
        let why = tokio::select! {
            result = &mut running => return result,
            () = self.ending.cancelled() => "the session has ended",
            () = expelled(&self.shared, &way) => {
                info!("cut off: may not enter any more");
                "you may not enter this session any more"
            }
        };
        // It may have ended just now.
        let _ = handle
            .disconnect(Disconnect::ByApplication, why.into(), String::new())
            .await;
        tokio::select! {
            result = &mut running => return result,
            () = tokio::time::sleep(GOODBYE) => hangup.cancel(),
        }
        running.await
    }
}
