//! `carrel cancel`: the end of batch jobs.

use carrel_proto::v1;

use crate::connect::Client;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::terminal::{say, show_error};
use crate::{output, view, wait};

/// End batch jobs, waiting or not.
///
/// What runs gets SIGTERM, the cluster's time of grace, and then SIGKILL. Of a job that is over nothing is left to do.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  carrel cancel 17\n  carrel cancel 17 18 19")]
pub struct CancelArgs {
    /// Job ids
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<u64>,
}

/// Runs the verb: each one, whatever happens to the others.
pub async fn run(context: &Context, args: CancelArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let (mut done, mut failure): (Vec<v1::Job>, Option<CliError>) = (Vec::new(), None);
    for id in args.jobs {
        match cancel(&mut client, id).await {
            Ok(job) => {
                if !context.json() {
                    say(format_args!("carrel: {}", what_became(&job)));
                }
                done.push(job);
            }
            Err(error) => {
                if let Some(earlier) = failure.replace(error) {
                    show_error(&earlier);
                }
            }
        }
    }
    if context.json() {
        output::json(&done.into_iter().map(view::Job::from).collect::<Vec<_>>())?;
    }
    failure.map_or(Ok(0), Err)
}

async fn cancel(client: &mut Client, id: u64) -> Result<v1::Job> {
    Ok(client.cancel_job(v1::GetJobRequest { id }).await?.into_inner())
}

fn what_became(job: &v1::Job) -> String {
    if wait::is_over(job.state()) && job.ended_ms.is_some() {
        return wait::ending(job);
    }
    format!("job {} is being ended", job.id)
}
