//! `carrel-node join`: makes this host a node.

use std::path::PathBuf;

use anyhow::{Context, Result};
use carrel_core::model::ids::NodeName;
use clap::Args;

use crate::config::{NodeArgs, state_of};
use crate::identity::{JoinOptions, Membership};
use crate::lock::StateLock;

/// Makes this host a node of a cluster.
///
/// On the head node, `carrel node token` prints the whole command.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// State directory [default: /var/lib/carrel/node]
    #[arg(long, value_name = "DIR", env = "CARREL_NODE_STATE")]
    state: Option<PathBuf>,
    /// Configuration file, for its `state`
    #[arg(long, value_name = "FILE", env = "CARREL_NODE_CONFIG")]
    config: Option<PathBuf>,
    /// The broker's address
    #[arg(long, value_name = "https://HOST:PORT")]
    broker: String,
    /// One-time token
    #[arg(long, env = "CARREL_JOIN_TOKEN", hide_env_values = true)]
    token: String,
    /// Fingerprint of the cluster's certificate authority, printed with the token
    #[arg(long, value_name = "sha256:HEX")]
    ca_fingerprint: String,
    /// Name of the node [default: this host's name]
    #[arg(long, value_name = "NAME")]
    node: Option<NodeName>,
}

/// Gets a certificate and keeps it.
pub async fn run(args: JoinArgs) -> Result<()> {
    let state = state_of(&NodeArgs {
        state: args.state,
        config: args.config,
        ..NodeArgs::default()
    })?;
    let _lock = StateLock::take(&state)?;
    let node = match args.node {
        Some(node) => node,
        None => host_name()?,
    };
    let options = JoinOptions {
        broker: args.broker,
        token: args.token,
        node,
        ca_fingerprint: args.ca_fingerprint,
    };
    let membership = Membership::join(&options)
        .await
        .with_context(|| format!("{} has not joined", options.node))?;
    membership
        .store(&state)
        .with_context(|| format!("keeping the certificate in {}", state.display()))?;
    eprintln!(
        "carrel-node: this host is node {} of cluster {}; `carrel-node run --state {}` starts its agent",
        membership.node,
        membership.cluster,
        state.display()
    );
    Ok(())
}

fn host_name() -> Result<NodeName> {
    let name = nix::unistd::gethostname().context("cannot find this host's name")?;
    let name = name.to_string_lossy();
    name.parse()
        .with_context(|| format!("this host's name {name:?} is no node name; give one with --node"))
}
