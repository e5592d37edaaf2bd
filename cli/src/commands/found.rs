//! `carrel found`: what nodes run and no record knows, for administrators.

use carrel_proto::v1;
use clap::Subcommand;

use crate::context::Context;
use crate::error::Result;
use crate::terminal::say;
use crate::{output, units, view};

/// What nodes run that the broker does not know: its store was lost, or is a backup
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Nothing of it ends by itself before its deadline. Examples:\n  \
    carrel found                what is there, whose, where, until when\n  \
    carrel node adopt h100-07   first: its node, where that is unknown too\n  \
    carrel found adopt 41       its user has it back, under its name, with its GPUs\n  \
    carrel found end 42@7.1     ends it"
)]
pub struct FoundArgs {
    /// What to do [default: list]
    #[command(subcommand)]
    pub command: Option<FoundCommand>,
}

/// What is done to found jobs.
#[derive(Clone, Debug, Subcommand)]
pub enum FoundCommand {
    /// List them
    List,
    /// Make records of jobs: from now on they are their users' as any other
    Adopt {
        /// Jobs, as listed; the id alone where it is the only one
        #[arg(value_name = "JOB", required = true)]
        jobs: Vec<String>,
    },
    /// End jobs
    End {
        /// Jobs, as listed; the id alone where it is the only one
        #[arg(value_name = "JOB", required = true)]
        jobs: Vec<String>,
    },
}

/// Runs the verb.
pub async fn run(context: &Context, args: FoundArgs) -> Result<u8> {
    match args.command.unwrap_or(FoundCommand::List) {
        FoundCommand::List => list(context).await,
        FoundCommand::Adopt { jobs } => adopt(context, jobs).await,
        FoundCommand::End { jobs } => end(context, jobs).await,
    }
}

async fn list(context: &Context) -> Result<u8> {
    let mut client = context.client().await?;
    let found = client.list_found(v1::ListFoundRequest {}).await?.into_inner();
    if context.json() {
        output::json(&view::Found::from(found))?;
        return Ok(0);
    }
    if !found.store.is_empty() {
        say(format_args!("carrel: {}", found.store));
    }
    for node in &found.nodes {
        say(format_args!(
            "carrel: node {node} is found, and not in service: `carrel node adopt {node}`"
        ));
    }
    if found.jobs.is_empty() {
        say("carrel: no node runs anything that the broker does not know");
        return Ok(0);
    }
    output::text(output::table(
        ["JOB", "NAME", "USER", "NODES", "GPUS", "SINCE", "UNTIL", "NOTE"],
        found.jobs.into_iter().map(row),
    ))?;
    Ok(0)
}

fn row(job: v1::FoundJob) -> [String; 8] {
    let nodes: Vec<&str> = job.parts.iter().map(|part| part.node.as_str()).collect();
    let gpus: usize = job.parts.iter().map(|part| part.gpus.len()).sum();
    let since = match job.started_ms {
        0 => String::new(),
        started => units::rfc3339(started),
    };
    let note = if job.ending {
        "is being ended".to_owned()
    } else {
        job.obstacle.clone()
    };
    [
        job.key.clone(),
        job.name.clone(),
        job.user.clone(),
        nodes.join(","),
        gpus.to_string(),
        since,
        units::rfc3339(job.deadline_ms),
        note,
    ]
}

async fn adopt(context: &Context, jobs: Vec<String>) -> Result<u8> {
    let mut client = context.client().await?;
    let mut sessions = Vec::new();
    for key in jobs {
        let session = client
            .adopt_found(v1::AdoptFoundRequest { key: key.clone() })
            .await?
            .into_inner();
        if !context.json() {
            say(format_args!(
                "carrel: job {key} is session {} of {}",
                session.name, session.user
            ));
        }
        sessions.push(view::Session::from(session));
    }
    if context.json() {
        output::json(&sessions)?;
    }
    Ok(0)
}

async fn end(context: &Context, jobs: Vec<String>) -> Result<u8> {
    let mut client = context.client().await?;
    for key in &jobs {
        client.end_found(v1::EndFoundRequest { key: key.clone() }).await?;
        if !context.json() {
            say(format_args!("carrel: job {key} is being ended"));
        }
    }
    if context.json() {
        output::json(&jobs)?;
    }
    Ok(0)
}
