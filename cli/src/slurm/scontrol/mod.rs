//! `scontrol`: what is known of jobs, nodes and partitions, and changes of them.

mod show;
mod update;

use carrel_core::model::host_list;
use carrel_proto::v1;

use super::options::Takes::{Nothing, Perhaps, Value};
use super::options::{Given, NO_MORE_TALK, NONE, ONE_CLUSTER, Usage, refused, taken, used};
use super::{Called, job};
use crate::context::request;
use crate::error::{CliError, Result};
use crate::output;
use crate::terminal::say;

/// The command.
pub const USAGE: Usage = Usage {
    name: "scontrol",
    line: "[OPTIONS] COMMAND …",
    about: "show job|node|partition|reservation|hostnames|hostlist|config, update, hold, uhold, release, requeue, \
            requeuehold, top, ping, version.",
    options: &[
        taken('a', "all", Nothing, "no partition is hidden"),
        taken('M', "clusters", Value, ONE_CLUSTER),
        used('d', "details", Nothing, "GPUs and CPUs of each node"),
        taken(NONE, "federation", Nothing, ONE_CLUSTER),
        taken('F', "future", Nothing, "there are no nodes to come"),
        used('h', "help", Nothing, "this text"),
        taken(NONE, "hide", Nothing, "no partition is hidden"),
        used(NONE, "json", Perhaps, "as JSON, with Slurm's names"),
        taken(NONE, "local", Nothing, ONE_CLUSTER),
        used('o', "oneliner", Nothing, "a line for each"),
        taken('Q', "quiet", Nothing, "only what went wrong is said"),
        taken(NONE, "sibling", Nothing, ONE_CLUSTER),
        refused('u', "uid", Value, "whoever asks is meant"),
        used(NONE, "usage", Nothing, "how it is called"),
        taken('v', "verbose", Nothing, NO_MORE_TALK),
        used('V', "version", Nothing, "the version"),
        refused(NONE, "yaml", Perhaps, "--json is there"),
    ],
};

/// Runs it.
pub async fn run(called: &Called, given: Given) -> Result<u8> {
    let mut words = given.words.iter().map(String::as_str);
    let command = words.next().unwrap_or_default().to_ascii_lowercase();
    let rest: Vec<&str> = words.collect();
    match command.as_str() {
        "" => Err(USAGE.wrong("No command: there is no dialogue here")),
        "show" => show::run(called, &given, &rest).await,
        "update" => update::run(called, &rest).await,
        "hold" | "uhold" => hold(called, &rest, true).await,
        "release" => hold(called, &rest, false).await,
        "requeue" => requeue(called, &rest, false).await,
        "requeuehold" => requeue(called, &rest, true).await,
        "top" => top(called, &rest).await,
        "ping" => {
            let address = called.context.address()?;
            called
                .context
                .client()
                .await?
                .get_cluster(v1::GetClusterRequest {})
                .await?;
            output::text(format_args!("Slurmctld(primary) at {address} is UP\n")).map(|()| 0)
        }
        "version" => output::text(format_args!("slurm {}\n", super::LIKE)).map(|()| 0),
        "help" => output::text(USAGE.help()).map(|()| 0),
        "reconfigure" | "reconfig" | "shutdown" | "takeover" | "reboot" | "create" | "delete" | "write"
        | "token" | "suspend" | "resume" | "setdebug" | "listpids" | "notify" | "wait_job" | "completing" => {
            Err(USAGE
                .wrong(&format!("{command} cannot be had here"))
                .hint("`carrel --help` and `carrel admin --help` say what there is"))
        }
        other => Err(USAGE.wrong(&format!("invalid keyword: {other}"))),
    }
}

/// The jobs that words name: "12,13_4", or "jobname=train".
async fn named(called: &Called, words: &[&str]) -> Result<Vec<carrel_core::model::array::JobRef>> {
    if words.is_empty() {
        return Err(USAGE.wrong("too few arguments: which job?"));
    }
    let mut found = Vec::new();
    for word in words {
        match word.split_once('=') {
            Some((key, name)) if key.eq_ignore_ascii_case("jobname") || key.eq_ignore_ascii_case("name") => {
                let user = Called::user()?;
                let rows = job::list(&mut called.context.client().await?, false).await?;
                let own = rows.iter().filter(|row| row.name == name && row.user == user);
                found.extend(own.map(|row| carrel_core::model::ids::JobId(row.id).into()));
            }
            Some((key, jobs)) if key.to_ascii_lowercase().starts_with("job") => found.extend(jobs_of(jobs)?),
            _ => found.extend(jobs_of(word)?),
        }
    }
    if found.is_empty() {
        return Err(CliError::failed("Invalid job id specified"));
    }
    Ok(found)
}

fn jobs_of(text: &str) -> Result<Vec<carrel_core::model::array::JobRef>> {
    job::names(text).map_err(|error| USAGE.wrong(&format!("Invalid job id specified: {error}")))
}

/// Says of each what went wrong. The exit code.
fn told(failures: &[(String, tonic::Status)]) -> u8 {
    for (name, status) in failures {
        let why = match status.code() {
            tonic::Code::NotFound => "Invalid job id specified".to_owned(),
            tonic::Code::PermissionDenied => format!("Access/permission denied: {}", status.message()),
            _ => status.message().to_owned(),
        };
        say(format_args!("{why} for job {name}"));
    }
    u8::from(!failures.is_empty())
}

async fn hold(called: &Called, words: &[&str], hold: bool) -> Result<u8> {
    let jobs = named(called, words).await?;
    let mut client = called.context.client().await?;
    let mut failures = Vec::new();
    for name in jobs {
        let v1::GetJobRequest { id, tasks } = request(&name);
        let update = v1::UpdateJobRequest {
            id,
            tasks,
            hold: Some(hold),
            ..v1::UpdateJobRequest::default()
        };
        if let Err(status) = client.update_job(update).await {
            failures.push((name.to_string(), status));
        }
    }
    Ok(told(&failures))
}

async fn requeue(called: &Called, words: &[&str], hold: bool) -> Result<u8> {
    // States that it may be requeued from are all there are.
    let words: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| {
            !word.to_ascii_lowercase().starts_with("state=") && !word.eq_ignore_ascii_case("incomplete")
        })
        .collect();
    let jobs = named(called, &words).await?;
    let mut client = called.context.client().await?;
    let mut failures = Vec::new();
    for name in jobs {
        let v1::GetJobRequest { id, tasks } = request(&name);
        let outcome = client.requeue_job(request(&name)).await.map(drop);
        let outcome = match outcome {
            Ok(()) if hold => {
                let update = v1::UpdateJobRequest {
                    id,
                    tasks,
                    hold: Some(true),
                    ..v1::UpdateJobRequest::default()
                };
                client.update_job(update).await.map(drop)
            }
            other => other,
        };
        if let Err(status) = outcome {
            failures.push((name.to_string(), status));
        }
    }
    Ok(told(&failures))
}

async fn top(called: &Called, words: &[&str]) -> Result<u8> {
    let jobs = named(called, words).await?;
    let mut client = called.context.client().await?;
    let mut failures = Vec::new();
    // The first one named comes to stand before all.
    for name in jobs.into_iter().rev() {
        let v1::GetJobRequest { id, tasks } = request(&name);
        let update = v1::UpdateJobRequest {
            id,
            tasks,
            top: Some(true),
            ..v1::UpdateJobRequest::default()
        };
        if let Err(status) = client.update_job(update).await {
            failures.push((name.to_string(), status));
        }
    }
    Ok(told(&failures))
}

/// `show hostnames` and its like need no broker.
fn hosts(kind: &str, list: Option<&str>) -> Result<String> {
    let from_job = || {
        let variables = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"];
        variables.into_iter().find_map(|name| std::env::var(name).ok())
    };
    let text = list.map(str::to_owned).or_else(from_job);
    let text = text.ok_or_else(|| {
        USAGE
            .wrong("host list is empty")
            .hint("name it, or be in a job: SLURM_JOB_NODELIST is read then")
    })?;
    // A file of names, as Slurm takes it.
    let text = if text.starts_with('/') {
        let names =
            std::fs::read_to_string(&text).map_err(|error| CliError::failed(format!("{text}: {error}")))?;
        names.split_whitespace().collect::<Vec<_>>().join(",")
    } else {
        text
    };
    let mut names =
        host_list::expanded(&text).map_err(|error| CliError::usage(format!("Invalid hostlist: {error}")))?;
    match kind {
        "hostnames" => Ok(names.into_iter().map(|name| name + "\n").collect()),
        sorted => {
            if sorted == "hostlistsorted" {
                names.sort_by(|a, b| host_list::natural(a, b));
                names.dedup();
            }
            Ok(job::compressed(&names) + "\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_lists_are_written_out_and_put_together() {
        assert_eq!(
            hosts("hostnames", Some("n[3,1-2]")).expect("a list"),
            "n3\nn1\nn2\n"
        );
        assert_eq!(
            hosts("hostlist", Some("n1,n2,n3,n7")).expect("names"),
            "n[1-3,7]\n"
        );
        assert_eq!(
            hosts("hostlistsorted", Some("n3,n1,n1")).expect("names"),
            "n[1,3]\n"
        );
        assert!(hosts("hostnames", Some("n[")).is_err());
    }
}
