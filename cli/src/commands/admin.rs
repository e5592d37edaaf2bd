//! `carrel admin`: what operators and administrators do.

mod account;
mod audit;
mod limits;
mod partition;
mod qos;
mod reservation;
mod user;

use carrel_proto::v1;
use clap::Subcommand;
use serde::Serialize;

use crate::context::Context;
use crate::error::{CliError, Kind, Result};
use crate::output;
use crate::terminal::say;

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
    Account(account::AccountArgs),
    User(user::UserArgs),
    Qos(qos::QosArgs),
    Partition(partition::PartitionArgs),
    Reservation(reservation::ReservationArgs),
    Audit(audit::AuditArgs),
}

/// Runs the verb.
pub async fn run(context: &Context, args: AdminArgs) -> Result<u8> {
    match args.command {
        AdminCommand::Account(args) => account::run(context, args).await,
        AdminCommand::User(args) => user::run(context, args).await,
        AdminCommand::Qos(args) => qos::run(context, args).await,
        AdminCommand::Partition(args) => partition::run(context, args).await,
        AdminCommand::Reservation(args) => reservation::run(context, args).await,
        AdminCommand::Audit(args) => audit::run(context, args).await,
    }
}

/// What administrators should know of what they changed.
#[derive(Serialize)]
struct Told {
    told: Vec<String>,
}

/// Says that something was done, and what is to be known of it.
fn tell(context: &Context, done: &str, answer: v1::EditResponse) -> Result<u8> {
    if context.json() {
        output::json(&Told { told: answer.told })?;
        return Ok(0);
    }
    say(format_args!("carrel: {done}"));
    for line in &answer.told {
        say(format_args!("carrel: note: {}", output::visible(line)));
    }
    Ok(0)
}

fn not_there(kind: &str, name: &str) -> CliError {
    let verb = kind.to_ascii_lowercase();
    CliError::new(
        Kind::NotFound,
        format!("there is no {kind} {name}, or it is not yours to see"),
    )
    .hint(format!("`carrel admin {verb} list` lists them"))
}
