//! `carrel admin qos`: qualities of service.

use carrel_proto::v1;
use carrel_proto::v1::edit_qos_request::Edit;
use clap::{Subcommand, ValueEnum};

use super::limits::{self, LimitArgs, Setting, UserLimitArgs};
use super::{not_there, tell};
use crate::context::Context;
use crate::error::Result;
use crate::{output, view};

/// Qualities of service: on what terms jobs wait and run.
///
/// Jobs that name none have the QOS of their partition, or "normal": it need not be made, and may be, to give it limits.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel admin qos add urgent --priority 800 --max-gpus 16 --accounts physics,biology\n  \
    carrel admin qos add scavenger --preemptible requeue --grace 120 --usage 0.1\n  \
    carrel admin qos set normal --user-max-gpus 8")]
pub struct QosArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: QosCommand,
}

/// What is done to QOS.
#[derive(Clone, Debug, Subcommand)]
pub enum QosCommand {
    /// Make a QOS
    Add(EditArgs),
    /// Change a QOS; what is not named stays
    Set(EditArgs),
    /// Forget a QOS that no partition and no job has
    Rm {
        /// QOS
        #[arg(value_name = "QOS")]
        name: String,
    },
    /// List QOS
    List,
    /// Show a QOS
    Show {
        /// QOS
        #[arg(value_name = "QOS")]
        name: String,
    },
}

/// How jobs give way to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preemptible {
    /// Never
    Never,
    /// They are ended and wait again
    Requeue,
    /// They are ended
    Cancel,
}

/// What is set of a QOS.
#[derive(Clone, Debug, clap::Args)]
pub struct EditArgs {
    /// QOS
    #[arg(value_name = "QOS")]
    pub name: String,
    /// 0 to 1000: thousandths of the weight that the cluster gives to QOS [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub priority: Option<u32>,
    /// Whether its jobs give way to others that need their GPUs [default: never]
    #[arg(long, value_enum, value_name = "HOW")]
    pub preemptible: Option<Preemptible>,
    /// Seconds between the terminate signal and the kill of its jobs that give way; "none": as for all jobs [default: none]
    #[arg(long, value_name = "SECONDS", value_parser = parse_grace)]
    pub grace: Option<Setting<u64>>,
    /// Whether its batch jobs may have preemptible ones end; interactive jobs always may [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub preempts: Option<bool>,
    /// Accounts that may use it, with those below them; "none": all may
    #[arg(long, value_name = "ACCOUNT,…")]
    pub accounts: Option<String>,
    /// How much of what its jobs use counts for fair-share: 0.1, 2 [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = parse_usage)]
    pub usage: Option<u32>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Of all its jobs together.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Of each user's jobs in it.
    #[command(flatten)]
    pub per_user: UserLimitArgs,
}

/// A factor, in thousandths.
fn parse_usage(text: &str) -> Result<u32, String> {
    let factor: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if !(0.0..=100.0).contains(&factor) {
        return Err("the factor is 0 to 100".to_owned());
    }
    Ok((factor * 1_000.0).round() as u32)
}

/// Seconds, or "none".
fn parse_grace(text: &str) -> Result<Setting<u64>, String> {
    let seconds = |text: &str| {
        text.parse()
            .map_err(|_| format!("{text:?} is no number of seconds, and not \"none\""))
    };
    limits::setting(text, seconds)
}

/// Runs the verb.
pub async fn run(context: &Context, args: QosArgs) -> Result<u8> {
    let (edit, done) = match args.command {
        QosCommand::List => return list(context).await,
        QosCommand::Show { name } => return show(context, &name).await,
        QosCommand::Add(edit) => {
            let done = format!("QOS {} is made", edit.name);
            (Edit::Qos(edit.message(true)), done)
        }
        QosCommand::Set(edit) => {
            let done = format!("QOS {} is changed", edit.name);
            (Edit::Qos(edit.message(false)), done)
        }
        QosCommand::Rm { name } => {
            let done = format!("QOS {name} is forgotten");
            (Edit::Delete(name), done)
        }
    };
    let request = v1::EditQosRequest { edit: Some(edit) };
    let answer = context.client().await?.edit_qos(request).await?;
    tell(context, &done, answer.into_inner())
}

impl EditArgs {
    fn message(self, create: bool) -> v1::QosEdit {
        let preemptible = match self.preemptible {
            None => v1::Preemption::Unspecified,
            Some(Preemptible::Never) => v1::Preemption::Never,
            Some(Preemptible::Requeue) => v1::Preemption::Requeue,
            Some(Preemptible::Cancel) => v1::Preemption::Cancel,
        };
        v1::QosEdit {
            name: self.name,
            create,
            description: self.description,
            priority: self.priority,
            preemptible: preemptible.into(),
            preempts: self.preempts,
            accounts: limits::names_of(self.accounts.as_deref()),
            limits: Some(self.limits.edit()),
            per_user: Some(LimitArgs::from(self.per_user).edit()),
            usage_milli: self.usage,
            grace: self.grace.map(|grace| v1::Grace {
                seconds: match grace {
                    Setting::To(seconds) => Some(seconds),
                    Setting::None => None,
                },
            }),
        }
    }
}

/// "requeue", "preempts others"; empty: neither.
fn preemption(qos: &v1::Qos) -> String {
    match view::preemption(qos.preemptible()) {
        None if qos.preempts => "preempts others".to_owned(),
        None => String::new(),
        Some(how) => how.to_owned(),
    }
}

async fn list(context: &Context) -> Result<u8> {
    let mut client = context.client().await?;
    let all = client.list_qos(v1::ListQosRequest {}).await?.into_inner().qos;
    if context.json() {
        output::json(&all.into_iter().map(view::Qos::from).collect::<Vec<_>>())?;
        return Ok(0);
    }
    if all.is_empty() {
        crate::terminal::say("carrel: no QOS but \"normal\"");
        return Ok(0);
    }
    let header = [
        "QOS",
        "PRIORITY",
        "PREEMPTION",
        "GPUS",
        "RUNNING",
        "JOBS",
        "ACCOUNTS",
        "LIMITS",
        "OF EACH USER",
    ];
    let rows = all.iter().map(|qos| {
        let [gpus, running, jobs, _] = limits::columns(qos.held.as_ref());
        [
            qos.name.clone(),
            qos.priority.to_string(),
            preemption(qos),
            gpus,
            running,
            jobs,
            qos.accounts.join(","),
            limits::text(qos.limits.as_ref()),
            limits::text(qos.per_user.as_ref()),
        ]
    });
    output::text(output::table(header, rows))?;
    Ok(0)
}

async fn show(context: &Context, name: &str) -> Result<u8> {
    let mut client = context.client().await?;
    let all = client.list_qos(v1::ListQosRequest {}).await?.into_inner().qos;
    let qos = all.into_iter().find(|qos| qos.name == name);
    let qos = qos.ok_or_else(|| not_there("QOS", name))?;
    if context.json() {
        output::json(&view::Qos::from(qos))?;
        return Ok(0);
    }
    output::text(output::fields([
        ("QOS", qos.name.clone()),
        ("description", qos.description.clone()),
        ("priority", qos.priority.to_string()),
        ("preemption", preemption(&qos)),
        (
            "grace",
            qos.grace_s.map(|grace| format!("{grace} s")).unwrap_or_default(),
        ),
        ("accounts", qos.accounts.join(", ")),
        (
            "use counts",
            format!("{}-fold", f64::from(qos.usage_milli) / 1_000.0),
        ),
        ("limits", limits::text(qos.limits.as_ref())),
        ("limits of each user", limits::text(qos.per_user.as_ref())),
        ("holds", limits::held(qos.held.as_ref())),
    ]))?;
    Ok(0)
}
