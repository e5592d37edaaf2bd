//! Byte streams that a job's own programs open: a socket in each container, and a gateway behind it.
//!
//! A container reaches no gateway by itself. What comes through this socket is a client's: it shows a ticket of the
//! broker's, which a job gets for its own containers only, and the gateway decides. This end sees ciphertext.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use carrel_core::model::ids::JobKey;
use carrel_proto::inside::STREAMS_NAME;
use carrel_proto::relay::relay;
use carrel_proto::socket::Socket;
use carrel_proto::stream::Endpoint;
use carrel_proto::v1::GatewayEndpoint;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::inside::bind;

/// Streams of one job at a time: a step has one for each of its nodes. Those beyond wait for one to end.
const MAX_STREAMS: usize = 512;
/// A gateway that has not answered by now does not.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// After an error that concerns this process (out of descriptors), before the next accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves a job's socket in `dir`, beside that for its calls. Dropping it cuts the streams; an agent that comes after
/// takes the socket over, and streams go on through it.
///
/// # Errors
/// The socket cannot be made.
pub async fn serve(
    dir: &Path,
    key: JobKey,
    uid: u32,
    gateways: watch::Receiver<Vec<GatewayEndpoint>>,
) -> Result<Infallible> {
    let listener = bind(dir, STREAMS_NAME)?;
    let mut streams = JoinSet::new();
    loop {
        // Both arms only wait: cancelled, they have taken nothing.
        tokio::select! {
            accepted = listener.accept(), if streams.len() < MAX_STREAMS => match accepted {
                Ok((stream, _)) => {
                    let gateways = gateways.borrow().clone();
                    streams.spawn(async move {
                        if let Err(error) = carry(stream, uid, &gateways).await {
                            tracing::debug!(job = %key.job, error = format!("{error:#}"), "a stream from inside");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a stream from inside could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(ended) = streams.join_next() => if let Err(error) = ended {
                tracing::error!(%error, "a stream from inside ended badly");
            },
        }
    }
}

async fn carry(stream: UnixStream, uid: u32, gateways: &[GatewayEndpoint]) -> Result<()> {
    let peer = stream.peer_cred().context("whose it is")?;
    if peer.uid() != uid {
        bail!("it comes from user {}, and is for user {uid} only", peer.uid());
    }
    let mut why = anyhow::anyhow!("the broker has named no gateway");
    for gateway in gateways {
        let dialled = async {
            let endpoint: Endpoint = gateway.streams.parse().context("its stream endpoint")?;
            tokio::time::timeout(DIAL_TIMEOUT, Socket::dial(&endpoint))
                .await
                .context("it does not answer")?
                .context("it is not reached")
        };
        match dialled.await {
            Ok(outside) => {
                relay(&Socket::Unix(stream), &outside).await?;
                return Ok(());
            }
            Err(error) => why = error.context(format!("gateway {}", gateway.name)),
        }
    }
    Err(why)
}
