//! `carrel hold`, `carrel release` and `carrel top`: which jobs that wait may start, and which first.

use carrel_core::model::array::JobRef;
use carrel_proto::v1;

use crate::connect::Client;
use crate::context::{Context, JobOrSession, request};
use crate::error::{CliError, Result};
use crate::terminal::{say, show_error};
use crate::{output, view};

/// Keep jobs that wait from starting.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  carrel hold 17\n  carrel hold dev 18\n  carrel hold 19_[3-7]       tasks of an array"
)]
pub struct HoldArgs {
    /// Session names, or job ids; of an array all that waits, or tasks of it: 17_3, 17_[3-7]
    #[arg(value_name = "NAME|JOB", required = true, add = super::completion::sessions())]
    pub what: Vec<JobOrSession>,
}

/// Let jobs start that were held.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  carrel release 17")]
pub struct ReleaseArgs {
    /// Session names, or job ids; of an array all that waits, or tasks of it: 17_3, 17_[3-7]
    #[arg(value_name = "NAME|JOB", required = true, add = super::completion::sessions())]
    pub what: Vec<JobOrSession>,
}

/// Put jobs before all others that wait (operators).
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  carrel top 17\n  carrel top --off 17    where its priority puts it")]
pub struct TopArgs {
    /// Session names, or job ids; of an array all that waits, or tasks of it: 17_3, 17_[3-7]
    #[arg(value_name = "NAME|JOB", required = true, add = super::completion::sessions())]
    pub what: Vec<JobOrSession>,
    /// Back to where their priority puts them
    #[arg(long)]
    pub off: bool,
}

/// Runs `hold`.
pub async fn hold(context: &Context, args: HoldArgs) -> Result<u8> {
    let update = v1::UpdateJobRequest {
        hold: Some(true),
        ..Default::default()
    };
    change(context, &args.what, &update, "is held").await
}

/// Runs `release`.
pub async fn release(context: &Context, args: ReleaseArgs) -> Result<u8> {
    let update = v1::UpdateJobRequest {
        hold: Some(false),
        ..Default::default()
    };
    change(context, &args.what, &update, "may start").await
}

/// Runs `top`.
pub async fn top(context: &Context, args: TopArgs) -> Result<u8> {
    let update = v1::UpdateJobRequest {
        top: Some(!args.off),
        ..Default::default()
    };
    let done = if args.off {
        "waits where its priority puts it"
    } else {
        "is before all others"
    };
    change(context, &args.what, &update, done).await
}

/// Changes each, whatever happens to the others.
async fn change(
    context: &Context,
    what: &[JobOrSession],
    update: &v1::UpdateJobRequest,
    done: &str,
) -> Result<u8> {
    let mut client = context.client().await?;
    let mut changed = Vec::new();
    let mut failure: Option<CliError> = None;
    for one in what {
        match update_one(&mut client, one, update).await {
            Ok((name, job)) => {
                if !context.json() {
                    say(format_args!("carrel: job {name} {done}"));
                }
                changed.push(job);
            }
            Err(error) => {
                if let Some(earlier) = failure.replace(error) {
                    show_error(&earlier);
                }
            }
        }
    }
    if context.json() {
        output::json(&changed.into_iter().map(view::Job::from).collect::<Vec<_>>())?;
    }
    failure.map_or(Ok(0), Err)
}

async fn update_one(
    client: &mut Client,
    what: &JobOrSession,
    update: &v1::UpdateJobRequest,
) -> Result<(JobRef, v1::Job)> {
    let name = what.find(client).await?.job(Some(what))?;
    let v1::GetJobRequest { id, tasks } = request(&name);
    let request = v1::UpdateJobRequest {
        id,
        tasks,
        ..update.clone()
    };
    let job = client.update_job(request).await?.into_inner();
    Ok((name, job))
}
