//! `scancel`: the end of jobs, or a signal to them.

use carrel_core::model::array::JobRef;
use carrel_core::model::ids::JobId;
use carrel_proto::v1;

use super::job::{self, Row};
use super::options::Takes::{Nothing, Value};
use super::options::{Given, NONE, ONE_CLUSTER, Usage, noted, taken, used};
use super::{Called, user_name, words};
use crate::connect::Client;
use crate::context::request;
use crate::error::Result;
use crate::terminal::{confirm, say};

/// The command.
pub const USAGE: Usage = Usage {
    name: "scancel",
    line: "[OPTIONS] [JOB[_TASK]…]",
    about: "Ends jobs, waiting or not, or sends them a signal.",
    options: &[
        used('A', "account", Value, "on this account"),
        used('b', "batch", Nothing, "the signal is for the batch script alone"),
        taken('M', "clusters", Value, ONE_CLUSTER),
        taken('c', "ctld", Nothing, "it always goes through the broker"),
        used(
            'f',
            "full",
            Nothing,
            "the signal is for the batch script and all that it has started",
        ),
        used(NONE, "help", Nothing, "this text"),
        noted('H', "hurry", Nothing, "nothing is staged out"),
        used('i', "interactive", Nothing, "ask of each"),
        used(NONE, "me", Nothing, "one's own"),
        used('n', "name", Value, "of this name"),
        used(NONE, "jobname", Value, "of this name"),
        used('w', "nodelist", Value, "on these nodes"),
        used('p', "partition", Value, "in this partition"),
        used('q', "qos", Value, "with this QOS"),
        used('Q', "quiet", Nothing, "say nothing of jobs that are over"),
        used('R', "reservation", Value, "in this reservation"),
        taken(NONE, "sibling", Value, ONE_CLUSTER),
        used('s', "signal", Value, "this signal, and not the end: USR1, 10"),
        used('t', "state", Value, "in this state: PENDING, RUNNING, SUSPENDED"),
        used(NONE, "usage", Nothing, "how it is called"),
        used('u', "user", Value, "of this user"),
        used('v', "verbose", Nothing, "say what is done"),
        used('V', "version", Nothing, "the version"),
        noted(NONE, "wckey", Value, "use is counted on accounts"),
    ],
};

/// Options that choose jobs.
const CONDITIONS: [&str; 10] = [
    "account",
    "me",
    "name",
    "jobname",
    "nodelist",
    "partition",
    "qos",
    "reservation",
    "state",
    "user",
];

/// Runs it: each job, whatever happens to the others.
pub async fn run(called: &Called, given: Given) -> Result<u8> {
    let conditions = CONDITIONS.iter().any(|long| given.has(long));
    if given.words.is_empty() && !conditions {
        return Err(USAGE.wrong("No job identification provided"));
    }
    let names = job::names(&given.words.join(","));
    let names = names.map_err(|error| USAGE.wrong(&format!("Invalid job id: {error}")))?;
    let signal = given.value("signal").map(signal).transpose()?;
    let mut client = called.context.client().await?;
    let to = match (given.has("full"), given.has("batch")) {
        (true, _) => v1::SignalFor::All,
        (false, true) => v1::SignalFor::Shells,
        (false, false) => v1::SignalFor::Others,
    };
    let mut failed = false;
    let targets: Vec<(JobRef, Option<Row>)> = if conditions {
        let chosen = chosen(&given, &mut client, &names).await?;
        chosen
            .into_iter()
            .map(|row| (row.name_ref(), Some(row)))
            .collect()
    } else {
        names.into_iter().map(|name| (name, None)).collect()
    };
    for (name, row) in targets {
        if given.has("interactive") && !confirm(&format!("Cancel job_id={name}?")) {
            continue;
        }
        if given.has("verbose") {
            let what = signal.map_or_else(
                || "Terminating".to_owned(),
                |signal| format!("Signal {signal} to"),
            );
            say(format_args!("scancel: {what} job {name}"));
        }
        match end(&mut client, &name, row.as_ref(), signal, to).await {
            Ok(()) => {}
            Err(status) => {
                let why = match status.code() {
                    tonic::Code::NotFound => "Invalid job id specified".to_owned(),
                    tonic::Code::PermissionDenied => {
                        format!("Access/permission denied: {}", status.message())
                    }
                    _ => status.message().to_owned(),
                };
                let over = status.code() == tonic::Code::FailedPrecondition;
                if !(over && given.has("quiet")) {
                    say(format_args!(
                        "scancel: error: Kill job error on job id {name}: {why}"
                    ));
                }
                failed |= !over;
            }
        }
    }
    Ok(u8::from(failed))
}

impl Row {
    /// As the broker wants it named: of an array what it is of it.
    fn name_ref(&self) -> JobRef {
        let tasks = self
            .array
            .as_ref()
            .and_then(|part| Some((part.array, part.tasks.parse().ok()?)));
        match tasks {
            Some((array, tasks)) => JobRef {
                job: JobId(array),
                tasks: Some(tasks),
            },
            None => JobId(self.id).into(),
        }
    }
}

async fn chosen(given: &Given, client: &mut Client, names: &[JobRef]) -> Result<Vec<Row>> {
    let mut users: Vec<String> = given.list("user").iter().map(|user| user_name(user)).collect();
    if given.has("me") || users.is_empty() {
        // As in Slurm: whoever may not end others' jobs does not mean them.
        users.push(Called::user()?);
    }
    let states = words::states(&given.list("state"))?.filter(|_| given.has("state"));
    let nodes = given.value("nodelist").unwrap_or_default();
    let nodes =
        carrel_core::model::host_list::expanded(nodes).map_err(|error| USAGE.wrong(&error.to_string()))?;
    let mut job_names = given.list("name");
    job_names.extend(given.list("jobname"));
    let is = |wanted: &[String], own: &str| wanted.is_empty() || wanted.iter().any(|one| one == own);
    let mut rows = job::list(client, false).await?;
    rows.retain(|row| {
        (names.is_empty() || names.iter().any(|name| row.is(name)))
            && is(&users, &row.user)
            && is(&given.list("account"), &row.terms.account)
            && is(&given.list("partition"), &row.terms.partition)
            && is(&given.list("qos"), &row.terms.qos)
            && is(&given.list("reservation"), &row.terms.reservation)
            && is(&job_names, &row.name)
            && (nodes.is_empty() || row.nodes.iter().any(|node| nodes.contains(node)))
            && states.as_ref().is_none_or(|states| states.contains(&row.state))
    });
    Ok(rows)
}

/// Ends a job, or sends it a signal. A session's job is stopped.
async fn end(
    client: &mut Client,
    name: &JobRef,
    row: Option<&Row>,
    signal: Option<i32>,
    to: v1::SignalFor,
) -> Result<(), tonic::Status> {
    if let Some(signal) = signal
        && signal != nix::libc::SIGKILL
    {
        let v1::GetJobRequest { id, tasks } = request(name);
        let request = v1::SignalJobRequest {
            id,
            tasks,
            signal,
            to: to.into(),
        };
        return client.signal_job(request).await.map(drop);
    }
    let session = match row {
        Some(row) => row.session,
        None => client.get_job(request(name)).await?.into_inner().session,
    };
    if session > 0 {
        let request = v1::StopSessionRequest {
            name: format!("#{session}"),
            job: name.job.0,
            exit_code: None,
        };
        return client.stop_session(request).await.map(drop);
    }
    client.cancel_job(request(name)).await.map(drop)
}

/// "USR1", "SIGUSR1", "10".
fn signal(text: &str) -> Result<i32> {
    crate::end_signal::number(text).ok_or_else(|| USAGE.wrong(&format!("Unknown job signal: {text}")))
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::{runs, waits};
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("USR1", 10), ("SIGUSR2", 12), ("term", 15), ("9", 9)] {
            assert_eq!(signal(text).expect(text), number);
        }
        for text in ["", "nonsense", "0", "99", "-1"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_was_chosen_is_named_as_what_it_is() {
        assert_eq!(runs().name_ref().to_string(), "12_3");
        assert_eq!(waits().name_ref().to_string(), "12_[4-8]");
        let plain = Row {
            array: None,
            ..runs()
        };
        assert_eq!(plain.name_ref().to_string(), "14");
    }
}
