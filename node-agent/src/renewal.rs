//! The node's certificate, renewed by itself when two thirds of its life are over.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::identity::Membership;
use crate::streams::TlsMaterial;

/// Longest sleep: wall time may be set, and a host may sleep.
const LOOK_EVERY: Duration = Duration::from_mins(10);
/// Between attempts; a third of the certificate's life is left for them.
const RETRY: Duration = Duration::from_mins(5);

/// Renews until cancelled. Links that are up keep the certificate that they came with.
pub async fn run(
    mut membership: Membership,
    state: PathBuf,
    tls: watch::Sender<TlsMaterial>,
    cancel: CancellationToken,
) {
    let mut wait = Duration::ZERO;
    loop {
        tokio::select! {
            // Both arms only wait.
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        wait = match membership.renew_at() {
            Ok(at) => at
                .duration_since(SystemTime::now())
                .unwrap_or(Duration::ZERO)
                .min(LOOK_EVERY),
            Err(error) => {
                tracing::error!(
                    error = format!("{error:#}"),
                    "this node's certificate cannot be read; join again"
                );
                return;
            }
        };
        if wait > Duration::ZERO {
            continue;
        }
        wait = RETRY;
        match membership.renew().await {
            Ok(renewed) => {
                if let Err(error) = renewed.store(&state) {
                    // The old one stays good until the new one has been used for a renewal in turn.
                    tracing::error!(
                        error = format!("{error:#}"),
                        "the renewed certificate cannot be kept"
                    );
                    continue;
                }
                tracing::info!("the node's certificate is renewed");
                tls.send_replace(renewed.tls());
                membership = renewed;
                wait = Duration::ZERO;
            }
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the node's certificate is not renewed yet"
                );
            }
        }
    }
}
