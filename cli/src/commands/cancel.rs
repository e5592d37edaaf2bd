//! `carrel cancel`: the end of jobs.

use carrel_core::model::array::JobRef;
use carrel_proto::v1;

use crate::connect::Client;
use crate::context::{Context, request};
use crate::error::{CliError, Result};
use crate::terminal::{say, show_error};
use crate::{output, view, wait};

/// End jobs, waiting or not.
///
/// What runs gets SIGTERM, the cluster's time of grace, and then SIGKILL. Of a job that is over nothing is left to do. A
/// session's job ends as by `carrel stop`: the session and what it keeps stay.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  carrel cancel 17\n  carrel cancel 17 18 19\n  carrel cancel 20_[3-7]     tasks of an array"
)]
pub struct CancelArgs {
    /// Job ids; of an array all of it, or tasks of it: 17_3, 17_[3-7,9]
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<JobRef>,
}

/// Runs the verb: each one, whatever happens to the others.
pub async fn run(context: &Context, args: CancelArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let (mut done, mut failure): (Vec<v1::Job>, Option<CliError>) = (Vec::new(), None);
    for name in args.jobs {
        match cancel(&mut client, &name).await {
            Ok(job) => {
                if !context.json() {
                    say(format_args!("carrel: {}", what_became(&name, &job)));
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

/// Ends a batch job; or a session's, as `carrel stop` does.
async fn cancel(client: &mut Client, name: &JobRef) -> Result<v1::Job> {
    let refused = match client.cancel_job(request(name)).await {
        Ok(job) => return Ok(job.into_inner()),
        Err(status) => status,
    };
    let job = match client.get_job(request(name)).await {
        Ok(job) => job.into_inner(),
        Err(_) => return Err(refused.into()),
    };
    if job.session == 0 {
        return Err(refused.into());
    }
    if !wait::is_over(job.state()) {
        let stop = v1::StopSessionRequest {
            name: format!("#{}", job.session),
            job: job.id,
            exit_code: None,
        };
        client.stop_session(stop).await?;
    }
    Ok(client.get_job(request(name)).await?.into_inner())
}

fn what_became(name: &JobRef, job: &v1::Job) -> String {
    let is_over = wait::is_over(job.state()) && job.ended_ms.is_some();
    match &job.array {
        // It stands for others that may have ended otherwise.
        Some(_) if is_over => format!("job {name} is over"),
        None if is_over => wait::ending(job),
        _ => format!("job {name} is being ended"),
    }
}
