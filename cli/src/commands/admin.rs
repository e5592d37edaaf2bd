//! `carrel admin`: what operators and administrators do.

mod audit;

use clap::Subcommand;

use crate::context::Context;
use crate::error::Result;

/// Look after the cluster.
#[derive(Clone, Debug, clap::Args)]
pub struct AdminArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: AdminCommand,
}

/// What operators and administrators do.
#[derive(Clone, Debug, Subcommand)]
pub enum AdminCommand {
    Audit(audit::AuditArgs),
}

/// Runs the verb.
pub async fn run(context: &Context, args: AdminArgs) -> Result<u8> {
    match args.command {
        AdminCommand::Audit(args) => audit::run(context, args).await,
    }
}
