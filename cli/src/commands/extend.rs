//! `carrel extend`: a later deadline.

use std::time::Duration;

use carrel_proto::v1;

use crate::context::{self, Context, no_session};
use crate::error::Result;
use crate::{output, units, view, wait};

/// Move a session's deadline.
#[derive(Clone, Debug, clap::Args)]
#[command(
    allow_missing_positional = true,
    after_help = "Examples:\n  carrel extend dev +2h\n  carrel extend dev 1-0      a day more\n  \
        carrel extend 2h           inside a session: that one"
)]
pub struct ExtendArgs {
    /// Session; inside a session, none: that one
    #[arg(value_name = "NAME", value_parser = context::parse_session, add = super::completion::sessions())]
    pub name: Option<String>,
    /// How much later: +2h, 30 (minutes), 1-0 (a day)
    #[arg(value_name = "TIME", value_parser = units::parse_extension, allow_negative_numbers = true)]
    pub time: Duration,
}

/// Runs the verb.
pub async fn run(context: &Context, args: ExtendArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let name = match args.name {
        Some(name) => name,
        None => wait::id_of(&context::own_session(context, &mut client).await?),
    };
    let request = v1::ExtendSessionRequest {
        name: name.clone(),
        add_s: args.time.as_secs(),
    };
    let session = client
        .extend_session(request)
        .await
        .map_err(|status| no_session(&name, status))?
        .into_inner();
    if context.json() {
        output::json(&view::Session::from(session))?;
        return Ok(0);
    }
    let deadline = session
        .job
        .and_then(|job| job.deadline_ms)
        .map(units::rfc3339)
        .unwrap_or_default();
    output::text(format_args!("{} now ends at {deadline}\n", session.name))?;
    Ok(0)
}
