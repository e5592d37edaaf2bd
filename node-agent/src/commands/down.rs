//! `carrel-node down`: ends everything on this node.

use anyhow::Result;
use clap::Args;

use crate::config::{Config, NodeArgs};
use crate::lock::StateLock;
use crate::mps::Mps;
use crate::runtime::Runtime;

/// Ends everything that the agent left on this host: containers, their networks, mounts and cgroups,
/// MPS daemons, and the private containerd.
///
/// Images and sessions' kept changes stay. The agent must not be running.
#[derive(Args, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    node: NodeArgs,
}

/// Ends everything. May be repeated.
pub async fn run(args: DownArgs) -> Result<()> {
    let config = Config::load(&args.node)?;
    let _lock = StateLock::take(&config.state)?;
    let runtime = Runtime::open(config.runtime).await?;
    Mps::down(config.nvml, &runtime, &config.state).await?;
    runtime.down().await
}
