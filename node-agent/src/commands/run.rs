//! `carrel-node run`: the agent.

use anyhow::{Context, Result};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, NodeArgs, state_of};
use crate::identity::Membership;
use crate::lock::StateLock;
use crate::runtime::own_address;
use crate::service;
use crate::units::Span;

/// Runs the agent of this host, which must have joined a cluster.
///
/// Containers outlive it: SIGTERM ends the agent alone, and the next one takes them over.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Between two reports to the broker when nothing changes, "3s"
    #[arg(long, value_name = "TIME")]
    heartbeat: Option<Span>,
    /// Jobs of user 0 may run, as root in their container, without capabilities [default: when the
    /// broker runs on this machine]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    allow_root: Option<bool>,
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(args: RunArgs) -> Result<()> {
    let state = state_of(&args.node)?;
    let _lock = StateLock::take(&state)?;
    // First of all: the commonest reason why an agent does not start.
    let membership = Membership::load(&state)?.with_context(|| {
        format!(
            "this host has joined no cluster ({} holds no identity.json): on the head node `carrel node token` prints \
             the `carrel-node join` to run here",
            state.display()
        )
    })?;
    let mut config = Config::load(&args.node)?;
    if let Some(Span(heartbeat)) = args.heartbeat {
        config.heartbeat = heartbeat;
    }
    for more in config.nvml.sizes.beyond() {
        tracing::warn!("{more}: jobs may be given what is not there");
    }
    config.allow_root = args.allow_root.or(config.allow_root);
    let address = &mut config.runtime.address;
    *address = address.or_else(|| own_address(&membership.broker));
    if config.runtime.cli_binary.is_none() {
        tracing::info!(
            "no static carrel is beside carrel-init: sessions have no `carrel` inside; cli_binary names one"
        );
    }
    tracing::info!(node = %membership.node, cluster = membership.cluster, broker = membership.broker, "starting");
    let cancel = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let agent = service::run(config, membership, cancel.clone());
    tokio::pin!(agent);
    tokio::select! {
        ended = &mut agent => return ended,
        // Signals are kept by their streams.
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    cancel.cancel();
    agent.await
}
