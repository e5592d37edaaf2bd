//! `carrel rm`: the end of sessions.

use carrel_proto::v1;

use crate::connect::Client;
use crate::context::{self, Context, no_session};
use crate::error::{CliError, Kind, Result};
use crate::ssh::{SshDir, alias};
use crate::terminal::{confirm, is_interactive, say, show_error};

/// Stop sessions and delete what they keep.
///
/// Deletes the changes that their containers kept; home directories are not touched. On a
/// terminal, asks first.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  carrel rm dev\n  carrel rm -f exp-1 exp-2")]
pub struct RmArgs {
    /// Sessions
    #[arg(value_name = "NAME", required = true, value_parser = context::parse_session, add = super::completion::sessions())]
    pub names: Vec<String>,
    /// Do not ask; a session that does not exist is no error
    #[arg(short, long)]
    pub force: bool,
}

/// Runs the verb: each one, whatever happens to the others.
pub async fn run(context: &Context, args: RmArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let mut failure: Option<CliError> = None;
    for name in &args.names {
        let result = match remove(&mut client, name, args.force).await {
            Err(error) if args.force && error.kind == Kind::NotFound => Ok(false),
            other => other,
        };
        match result {
            Ok(true) => say(format_args!("carrel: session {name} is removed")),
            Ok(false) => {}
            Err(error) => {
                if let Some(earlier) = failure.replace(error) {
                    show_error(&earlier);
                }
            }
        }
    }
    failure.map_or(Ok(0), Err)
}

async fn remove(client: &mut Client, name: &str, force: bool) -> Result<bool> {
    let session = client
        .get_session(v1::GetSessionRequest {
            name: name.to_owned(),
        })
        .await
        .map_err(|status| no_session(name, status))?
        .into_inner();
    if !force && is_interactive() {
        let live = if session.state() == v1::SessionState::Stopped {
            ""
        } else {
            ", which is not stopped,"
        };
        if !confirm(&format!(
            "Delete session {name}{live} and what its container kept?"
        )) {
            return Ok(false);
        }
    }
    client
        .remove_session(v1::RemoveSessionRequest {
            name: crate::wait::id_of(&session),
        })
        .await?;
    alias::remove(&SshDir::open()?, &context::carrel()?, name)?;
    Ok(true)
}
