//! `carrel requeue`: batch jobs that run, from their beginning.

use carrel_core::model::array::JobRef;
use carrel_proto::v1;

use crate::context::{Context, request};
use crate::error::{CliError, Result};
use crate::terminal::{say, show_error};
use crate::{output, view};

/// End what runs of batch jobs, and queue them again.
///
/// A job gets SIGTERM and the cluster's time of grace, as if it were cancelled, and waits again with the same number and
/// age. SLURM_RESTART_COUNT says how often it was.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  carrel requeue 17\n  carrel requeue 18_3")]
pub struct RequeueArgs {
    /// Job ids; of an array what runs of it, or tasks of it: 17_3, 17_[3-7]
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<JobRef>,
}

/// Runs the verb: each one, whatever happens to the others.
pub async fn run(context: &Context, args: RequeueArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let (mut done, mut failure): (Vec<v1::Job>, Option<CliError>) = (Vec::new(), None);
    for name in args.jobs {
        match client.requeue_job(request(&name)).await {
            Ok(job) => {
                if !context.json() {
                    say(format_args!("carrel: job {name} is queued again"));
                }
                done.push(job.into_inner());
            }
            Err(status) => {
                if let Some(earlier) = failure.replace(status.into()) {
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
