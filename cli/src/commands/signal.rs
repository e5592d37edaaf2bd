//! `carrel signal`: a signal to what runs of batch jobs.

use carrel_core::model::array::JobRef;
use carrel_proto::v1;

use crate::context::{Context, request};
use crate::error::{CliError, Result};
use crate::terminal::{say, show_error};
use crate::{end_signal, output, view};

/// Send a signal to what runs of batch jobs, without ending them.
///
/// It reaches all that the job's script has started, on each of its nodes, and with --shells the script itself, and nothing
/// else.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  carrel signal USR1 17\n  carrel signal --all TERM 18_[3-7]")]
pub struct SignalArgs {
    /// Its name, or its number
    #[arg(value_name = "SIGNAL", value_parser = parse)]
    pub signal: i32,
    /// Job ids; of an array what runs of it, or tasks of it: 17_3, 17_[3-7]
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<JobRef>,
    /// For the script, and the shells of terminals, alone
    #[arg(long, conflicts_with = "all")]
    pub shells: bool,
    /// For these and all others
    #[arg(long)]
    pub all: bool,
}

fn parse(text: &str) -> Result<i32, String> {
    end_signal::number(text).ok_or_else(|| "a signal is a name such as USR1, or 1 to 31".to_owned())
}

/// Runs the verb: each one, whatever happens to the others.
pub async fn run(context: &Context, args: SignalArgs) -> Result<u8> {
    let to = match (args.all, args.shells) {
        (true, _) => v1::SignalFor::All,
        (false, true) => v1::SignalFor::Shells,
        (false, false) => v1::SignalFor::Others,
    };
    let mut client = context.client().await?;
    let (mut done, mut failure): (Vec<v1::Job>, Option<CliError>) = (Vec::new(), None);
    for name in args.jobs {
        let v1::GetJobRequest { id, tasks } = request(&name);
        let request = v1::SignalJobRequest {
            id,
            tasks,
            signal: args.signal,
            to: to.into(),
        };
        match client.signal_job(request).await {
            Ok(job) => {
                if !context.json() {
                    say(format_args!("carrel: job {name} is sent signal {}", args.signal));
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
