//! `carrel admin partition`: parts of the cluster.

use std::time::Duration;

use carrel_proto::v1;
use carrel_proto::v1::edit_partition_request::Edit;
use clap::Subcommand;

use super::limits::{self, LimitArgs, Setting, UserLimitArgs};
use super::{not_there, tell};
use crate::context::Context;
use crate::error::Result;
use crate::{output, units, view};

/// Partitions: parts of the cluster with terms of their own.
///
/// Where none is made, all nodes are one partition, "all". A node may be in several.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel admin partition add h100 --nodes 'gpu[01-16]' --default\n  \
    carrel admin partition add ib --features 'ib&h100' --accounts physics --max-time 1d\n  \
    carrel admin partition set h100 --exclude gpu07")]
pub struct PartitionArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PartitionCommand,
}

/// What is done to partitions.
#[derive(Clone, Debug, Subcommand)]
pub enum PartitionCommand {
    /// Make a partition
    Add(Box<EditArgs>),
    /// Change a partition; what is not named stays
    Set(Box<EditArgs>),
    /// Forget a partition without jobs
    Rm {
        /// Partition
        #[arg(value_name = "PARTITION")]
        name: String,
    },
    /// List partitions and their nodes
    List,
    /// Show a partition
    Show {
        /// Partition
        #[arg(value_name = "PARTITION")]
        name: String,
    },
}

/// What is set of a partition.
#[derive(Clone, Debug, clap::Args)]
pub struct EditArgs {
    /// Partition
    #[arg(value_name = "PARTITION")]
    pub name: String,
    /// These nodes alone, a host list ("gpu[01-16]"); "none": any
    #[arg(long, value_name = "NODES", value_parser = limits::parse_name)]
    pub nodes: Option<Setting<String>>,
    /// None of these nodes; "none": all of them again
    #[arg(long, value_name = "NODES", value_parser = limits::parse_name)]
    pub exclude: Option<Setting<String>>,
    /// Nodes with these features ("ib&h100"); "none": whatever they have
    #[arg(long, value_name = "FEATURES", value_parser = limits::parse_name)]
    pub features: Option<Setting<String>>,
    /// Whether jobs that name none are in it; no other is the default then
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub default: Option<bool>,
    /// 0 to 1000: thousandths of the weight that the cluster gives to partitions [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub priority: Option<u32>,
    /// Time limit of jobs that ask for none; "none": the cluster's
    #[arg(long, value_name = "TIME", value_parser = limits::parse_time)]
    pub default_time: Option<Setting<Duration>>,
    /// QOS of jobs that ask for none; "none": the usual one
    #[arg(long, value_name = "QOS", value_parser = limits::parse_name)]
    pub qos: Option<Setting<String>>,
    /// Accounts that may use it, with those below them; "none": all may
    #[arg(long, value_name = "ACCOUNT,…")]
    pub accounts: Option<String>,
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

/// Runs the verb.
pub async fn run(context: &Context, args: PartitionArgs) -> Result<u8> {
    let (edit, done) = match args.command {
        PartitionCommand::List => return list(context).await,
        PartitionCommand::Show { name } => return show(context, &name).await,
        PartitionCommand::Add(edit) => {
            let done = format!("partition {} is made", edit.name);
            (Edit::Partition(edit.message(true)), done)
        }
        PartitionCommand::Set(edit) => {
            let done = format!("partition {} is changed", edit.name);
            (Edit::Partition(edit.message(false)), done)
        }
        PartitionCommand::Rm { name } => {
            let done = format!("partition {name} is forgotten");
            (Edit::Delete(name), done)
        }
    };
    let request = v1::EditPartitionRequest { edit: Some(edit) };
    let answer = context.client().await?.edit_partition(request).await?;
    tell(context, &done, answer.into_inner())
}

impl EditArgs {
    fn message(self, create: bool) -> v1::PartitionEdit {
        let seconds = |setting| match setting {
            Setting::To(time) => Duration::as_secs(&time),
            Setting::None => 0,
        };
        v1::PartitionEdit {
            name: self.name,
            create,
            description: self.description,
            default: self.default,
            only: limits::name_of(self.nodes),
            without: limits::name_of(self.exclude),
            features: limits::name_of(self.features),
            priority: self.priority,
            default_time_s: self.default_time.map(seconds),
            accounts: limits::names_of(self.accounts.as_deref()),
            qos: limits::name_of(self.qos),
            limits: Some(self.limits.edit()),
            per_user: Some(LimitArgs::from(self.per_user).edit()),
        }
    }
}

async fn list(context: &Context) -> Result<u8> {
    let mut client = context.client().await?;
    let request = v1::ListPartitionsRequest {};
    let all = client.list_partitions(request).await?.into_inner().partitions;
    if context.json() {
        output::json(&all.into_iter().map(view::Partition::from).collect::<Vec<_>>())?;
        return Ok(0);
    }
    if all.is_empty() {
        crate::terminal::say("carrel: no partitions: all nodes are one");
        return Ok(0);
    }
    let header = [
        "PARTITION",
        "NODES",
        "WHICH",
        "PRIORITY",
        "GPUS",
        "RUNNING",
        "JOBS",
        "ACCOUNTS",
        "LIMITS",
        "OF EACH USER",
    ];
    let rows = all.iter().map(|partition| {
        let [gpus, running, jobs, _] = limits::columns(partition.held.as_ref());
        [
            // As sinfo marks it.
            format!("{}{}", partition.name, if partition.default { "*" } else { "" }),
            partition.node_count.to_string(),
            partition.nodes.clone(),
            partition.priority.to_string(),
            gpus,
            running,
            jobs,
            partition.accounts.join(","),
            limits::text(partition.limits.as_ref()),
            limits::text(partition.per_user.as_ref()),
        ]
    });
    output::text(output::table(header, rows))?;
    Ok(0)
}

async fn show(context: &Context, name: &str) -> Result<u8> {
    let mut client = context.client().await?;
    let request = v1::ListPartitionsRequest {};
    let all = client.list_partitions(request).await?.into_inner().partitions;
    let partition = all.into_iter().find(|partition| partition.name == name);
    let partition = partition.ok_or_else(|| not_there("partition", name))?;
    if context.json() {
        output::json(&view::Partition::from(partition))?;
        return Ok(0);
    }
    let time = Duration::from_secs(partition.default_time_s);
    output::text(output::fields([
        ("partition", partition.name.clone()),
        ("description", partition.description.clone()),
        ("default", if partition.default { "yes" } else { "" }.to_owned()),
        ("nodes", format!("{} ({})", partition.nodes, partition.node_count)),
        ("only", partition.only.clone()),
        ("without", partition.without.clone()),
        ("features", partition.features.clone()),
        ("priority", partition.priority.to_string()),
        (
            "default time",
            if time.is_zero() {
                String::new()
            } else {
                units::clock(time)
            },
        ),
        ("QOS", partition.qos.clone()),
        ("accounts", partition.accounts.join(", ")),
        ("limits", limits::text(partition.limits.as_ref())),
        ("limits of each user", limits::text(partition.per_user.as_ref())),
        ("holds", limits::held(partition.held.as_ref())),
    ]))?;
    Ok(0)
}
