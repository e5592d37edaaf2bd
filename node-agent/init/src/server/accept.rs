//! Accepting SSH connections, and their beginning and end.

use std::sync::Arc;
use std::time::Duration;

use russh::Disconnect;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, info, info_span, warn};

use super::connection::Connection;
use super::shared::Shared;
use super::transport;

/// Connections at one time.
const MAX_CONNECTIONS: usize = 256;
/// Connections that have not authenticated yet, at one time.
const MAX_HANDSHAKES: usize = 32;
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
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
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
        let permits = (
            Arc::clone(&connections).try_acquire_owned(),
            Arc::clone(&handshakes).try_acquire_owned(),
        );
        let (Ok(connection), Ok(handshake)) = permits else {
            warn!("too many connections; one is dropped");
            continue;
        };
        number += 1;
        let (shared, ending) = (Arc::clone(&shared), ending.clone());
        let serving = async move {
            // It goes on without one for those who know the key itself.
            tokio::time::timeout_at(certified_by, certified(&shared))
                .await
                .ok();
            if let Err(error) = serve(stream, shared, handshake, &ending).await {
                info!(%error, "connection");
            }
            drop(connection);
        };
        tasks.spawn(serving.instrument(info_span!("ssh", connection = number)));
    }
}

/// Waits until there is a host certificate.
async fn certified(shared: &Shared) {
    let mut changes = shared.watch();
    while !shared.settings().has_host_certificate() && changes.changed().await.is_ok() {}
}

async fn serve(
    stream: UnixStream,
    shared: Arc<Shared>,
    handshake: OwnedSemaphorePermit,
    ending: &CancellationToken,
) -> Result<(), russh::Error> {
    // Cancelled when this returns, whatever the reason: ends all of the connection's tasks.
    let ended = CancellationToken::new();
    let _guard = ended.clone().drop_guard();
    let hangup = CancellationToken::new();
    let authenticated = Arc::new(Notify::new());
    let config = Arc::clone(&shared.settings().ssh);

    let handler = Connection::new(shared, ended, Arc::clone(&authenticated));
    let begin = async {
        let transport = transport::open(stream, hangup.clone()).await?;
        russh::server::run_stream(config, transport, handler).await
    };
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
        () = ending.cancelled() => {}
    }
    tokio::select! {
        result = &mut running => return result,
        () = ending.cancelled() => {}
    }
    // It may have ended just now.
    let _ = handle
        .disconnect(
            Disconnect::ByApplication,
            "the session has ended".into(),
            String::new(),
        )
        .await;
    tokio::select! {
        result = &mut running => return result,
        () = tokio::time::sleep(GOODBYE) => hangup.cancel(),
    }
    running.await
}
