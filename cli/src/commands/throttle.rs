//! `carrel throttle`: how many tasks of an array run at once.

use carrel_core::model::array::JobRef;
use carrel_proto::v1;

use crate::context::{Context, request};
use crate::error::Result;
use crate::terminal::say;
use crate::{output, view};

/// Change how many tasks of an array run at once.
///
/// Tasks that run go on, though they are more; of those that wait the next ones start once there is room below it.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  carrel throttle 17 5\n  carrel throttle 17 0       as many as there is room for"
)]
pub struct ThrottleArgs {
    /// The array
    #[arg(value_name = "JOB")]
    pub job: JobRef,
    /// So many at once at most; 0: as many as there is room for
    #[arg(value_name = "COUNT")]
    pub count: u32,
}

/// Runs the verb.
pub async fn run(context: &Context, args: ThrottleArgs) -> Result<u8> {
    let v1::GetJobRequest { id, tasks } = request(&args.job);
    let update = v1::UpdateJobRequest {
        id,
        tasks,
        array_throttle: Some(args.count),
        ..v1::UpdateJobRequest::default()
    };
    let mut client = context.client().await?;
    let job = client.update_job(update).await?.into_inner();
    if context.json() {
        return output::json(&view::Job::from(job)).map(|()| 0);
    }
    match args.count {
        0 => say(format_args!(
            "carrel: of array {id} as many tasks run as there is room for"
        )),
        count => say(format_args!(
            "carrel: of array {id} {count} tasks run at once at most"
        )),
    }
    Ok(0)
}
