//! `carrel stop`: the end of sessions' jobs.

use carrel_proto::v1;

use crate::connect::Client;
use crate::context::{self, Context, Found, JobOrSession};
use crate::error::{CliError, Result};
use crate::terminal::{say, show_error};
use crate::{output, view, wait};

/// End sessions' jobs; the sessions and what they keep stay.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  carrel stop dev\n  carrel stop 17 exp-1 exp-2\n  \
    carrel stop                inside a session: that one")]
pub struct StopArgs {
    /// Session names, or job ids; inside a session, none: that one
    #[arg(value_name = "NAME|JOB", add = super::completion::sessions())]
    pub what: Vec<JobOrSession>,
}

/// Runs the verb: each one, whatever happens to the others.
pub async fn run(context: &Context, args: StopArgs) -> Result<u8> {
    let mut client = context.client().await?;
    if args.what.is_empty() {
        return stop_own(context, &mut client).await;
    }
    let mut stopped = Vec::new();
    let mut failure: Option<CliError> = None;
    for what in &args.what {
        match stop(&mut client, what).await {
            Ok(session) => {
                if !context.json() {
                    say(format_args!(
                        "carrel: session {} is {}",
                        session.name,
                        state(&session)
                    ));
                }
                stopped.push(session);
            }
            Err(error) => {
                if let Some(earlier) = failure.replace(error) {
                    show_error(&earlier);
                }
            }
        }
    }
    if context.json() {
        output::json(&stopped.into_iter().map(view::Session::from).collect::<Vec<_>>())?;
    }
    failure.map_or(Ok(0), Err)
}

/// Ends the session that this runs in.
async fn stop_own(context: &Context, client: &mut Client) -> Result<u8> {
    let session = context::own_session(context, client).await?;
    // Before it is done: the end reaches this program as well, and maybe before the answer.
    if !context.json() {
        say(format_args!("carrel: session {} ends", session.name));
    }
    let job = session.job.as_ref().map_or(0, |job| job.id);
    let name = wait::id_of(&session);
    let request = v1::StopSessionRequest {
        name,
        job,
        exit_code: None,
    };
    let stopped = client.stop_session(request).await?.into_inner();
    if context.json() {
        output::json(&[view::Session::from(stopped)])?;
    }
    Ok(0)
}

fn state(session: &v1::Session) -> String {
    view::session_state(session.state()).to_lowercase()
}

async fn stop(client: &mut Client, what: &JobOrSession) -> Result<v1::Session> {
    let request = match what.find(client).await? {
        Found::Job(job) if job.session == 0 => {
            return Err(
                CliError::failed(format!("job {} is a batch job, and no session's", job.id))
                    .hint(format!("carrel cancel {}", job.id)),
            );
        }
        Found::Job(job) if wait::is_over(job.state()) => {
            return Err(CliError::failed(format!("{} already", wait::ending(&job))));
        }
        Found::Job(job) => v1::StopSessionRequest {
            name: format!("#{}", job.session),
            job: job.id,
            exit_code: None,
        },
        Found::Session(session) => v1::StopSessionRequest {
            name: wait::id_of(&session),
            job: 0,
            exit_code: None,
        },
    };
    Ok(client.stop_session(request).await?.into_inner())
}
