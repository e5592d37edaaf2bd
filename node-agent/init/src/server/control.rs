//! `ctl.sock`: what the node agent says and hears.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use carrel_proto::v1::InitRequest;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::main_command;
use super::shared::Shared;
use crate::clock::boot_ms;
use crate::wire;

/// Longest request: a configuration, and a little.
const MAX_REQUEST: usize = wire::MAX_CONFIG + 1024;
/// Wait after an accept that failed, as it does when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves control connections until the end.
pub async fn accept(
    listener: UnixListener,
    shared: Arc<Shared>,
    ending: CancellationToken,
    tasks: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ending.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (shared, ending, spawner) = (Arc::clone(&shared), ending.clone(), tasks.clone());
                tasks.spawn(async move {
                    tokio::select! {
                        result = serve(stream, &shared, &spawner) => if let Err(error) = result {
                            info!(error = format!("{error:#}"), "control connection");
                        },
                        () = ending.cancelled() => {}
                    }
                });
            }
            Err(error) => {
                warn!(%error, "accepting on ctl.sock");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: UnixStream, shared: &Arc<Shared>, tasks: &TaskTracker) -> anyhow::Result<()> {
    let (mut from, mut to) = stream.into_split();
    // A status answers each request too: that is how an agent asks for the idle time.
    let answers = Notify::new();
    let requests = async {
        loop {
            let mut length = [0; 4];
            if from.read_exact(&mut length).await.is_err() {
                return Ok(());
            }
            let length = u32::from_be_bytes(length) as usize;
            ensure!(length <= MAX_REQUEST, "a request of {length} bytes is too long");
            let mut request = vec![0; length];
            from.read_exact(&mut request).await.context("reading a request")?;
            let request = InitRequest::decode(&request[..]).context("decoding a request")?;
            take(request, shared, tasks).await?;
            answers.notify_one();
        }
    };
    tokio::pin!(requests);
    tokio::select! {
        result = &mut requests => result,
        // Safe to cancel: a status is only ever repeated. A peer that reads no more may have
        // asked for something before.
        Err(_unread) = tell(&mut to, shared, &answers) => requests.await,
    }
}

/// Sends the status now, at each change, and for each answer that is due.
async fn tell(to: &mut OwnedWriteHalf, shared: &Shared, answers: &Notify) -> io::Result<Infallible> {
    let mut changes = shared.watch();
    loop {
        changes.mark_unchanged();
        let status = shared.status().encode_to_vec();
        let mut frame = (status.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(&status);
        to.write_all(&frame).await?;
        tokio::select! {
            changed = changes.changed() => changed.map_err(io::Error::other)?,
            () = answers.notified() => {}
        }
    }
}

async fn take(request: InitRequest, shared: &Arc<Shared>, tasks: &TaskTracker) -> anyhow::Result<()> {
    // The lease first: nothing else shall delay it.
    if let Some(left) = request.lease_remaining_ms {
        shared
            .keeper
            .lease_end(boot_ms().saturating_add(left))
            .await
            .context("setting the lease")?;
    }
    if let Some(config) = request.config
        && config != shared.settings().config
    {
        shared.configure(config);
        let kept = shared.settings().config.encode_to_vec();
        shared
            .keeper
            .keep_config(&kept)
            .await
            .context("keeping the configuration")?;
        // A user's file system that hangs shall not keep the agent from being heard.
        let shared = Arc::clone(shared);
        tasks.spawn(async move { main_command::see_to(&shared).await });
    }
    if let Some(grace_ms) = request.stop_grace_ms {
        shared.keeper.stop(grace_ms).await.context("stopping")?;
    }
    Ok(())
}
