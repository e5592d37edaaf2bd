//! `scontrol update`: changes of jobs that wait, of arrays, and of nodes.

use carrel_core::model::mail::{BadMailType, MailTypes};
use carrel_proto::v1;

use super::super::{Called, job};
use super::{USAGE, jobs_of, told};
use crate::context::request;
use crate::error::{CliError, Result};
use crate::terminal::say;
use crate::{start, units};

/// Runs `update KEY=VALUE …`.
pub async fn run(called: &Called, words: &[&str]) -> Result<u8> {
    let pairs = pairs(words)?;
    let (first, which) = pairs
        .first()
        .ok_or_else(|| USAGE.wrong("too few arguments: update what?"))?;
    match first.as_str() {
        "job" | "jobid" => job_update(called, which, &pairs[1..]).await,
        "jobname" | "name" => {
            let user = Called::user()?;
            let rows = job::list(&mut called.context.client().await?, false).await?;
            let own = rows.iter().filter(|row| row.name == *which && row.user == user);
            let ids: Vec<String> = own.map(|row| row.id.to_string()).collect();
            if ids.is_empty() {
                return Err(CliError::failed("Invalid job id specified"));
            }
            job_update(called, &ids.join(","), &pairs[1..]).await
        }
        "node" | "nodename" => node_update(called, which, &pairs[1..]).await,
        "partition" | "partitionname" => Err(CliError::failed(
            "partitions are not changed by this command here",
        )
        .hint("`carrel admin partition` changes them")),
        "reservation" | "reservationname" => Err(CliError::failed(
            "reservations are not changed by this command here",
        )
        .hint("`carrel admin reservation` changes them")),
        other => Err(USAGE.wrong(&format!("Invalid update specification: {other}"))),
    }
}

/// `Key=Value` and `Key+=Value`, the key in small letters.
fn pairs(words: &[&str]) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some((key, value)) => pairs.push((key.trim_end_matches(['+', '-']).to_ascii_lowercase(), {
                let sign = key.chars().next_back().filter(|sign| matches!(sign, '+' | '-'));
                sign.map_or_else(|| value.to_owned(), |sign| format!("{sign}{value}"))
            })),
            // "update job 12 …"
            None if pairs.is_empty() => {
                let value = words
                    .next()
                    .ok_or_else(|| USAGE.wrong(&format!("{word}: which?")))?;
                pairs.push((word.to_ascii_lowercase(), (*value).to_owned()));
            }
            None => return Err(USAGE.wrong(&format!("Invalid update specification: {word}"))),
        }
    }
    Ok(pairs)
}

async fn job_update(called: &Called, which: &str, pairs: &[(String, String)]) -> Result<u8> {
    if pairs.is_empty() {
        return Err(USAGE.wrong("No changes specified"));
    }
    let jobs = jobs_of(which)?;
    let mut client = called.context.client().await?;
    let mut failures = Vec::new();
    for name in jobs {
        let v1::GetJobRequest { id, tasks } = request(&name);
        let limit = match pairs.iter().find(|(key, _)| key == "timelimit") {
            // More or less than it has.
            Some((_, value)) if value.starts_with(['+', '-']) => match job::get(&mut client, &name).await {
                Ok(row) => Some(row.limit_s),
                Err(status) => {
                    failures.push((name.to_string(), status));
                    continue;
                }
            },
            _ => None,
        };
        let update = v1::UpdateJobRequest {
            id,
            tasks,
            ..update(pairs, limit)?
        };
        if let Err(status) = client.update_job(update).await {
            failures.push((name.to_string(), status));
        }
    }
    Ok(told(&failures))
}

/// What the pairs say; `limit` is the time limit that a job has, seconds, where it is to have more or less.
fn update(pairs: &[(String, String)], limit: Option<u64>) -> Result<v1::UpdateJobRequest> {
    let mut update = v1::UpdateJobRequest::default();
    for (key, value) in pairs {
        let wrong = |why: &str| USAGE.wrong(&format!("Invalid {key} value {value}: {why}"));
        match key.as_str() {
            "nice" => update.nice = Some(value.parse().map_err(|_| wrong("a whole number"))?),
            "timelimit" => {
                let (sign, text) = match value.strip_prefix(['+', '-']) {
                    Some(text) => (value.chars().next(), text),
                    None => (None, value.as_str()),
                };
                let seconds = units::parse_time(text).map_err(|rule| wrong(&rule))?.as_secs();
                let had = limit.unwrap_or(0);
                update.time_limit_s = Some(match sign {
                    Some('+') => had.saturating_add(seconds),
                    Some(_) => had.saturating_sub(seconds).max(1),
                    None => seconds,
                });
            }
            "starttime" | "eligibletime" => {
                let at = start::parse_begin(value).map_err(|rule| wrong(&rule))?;
                update.begin_ms = Some(if value == "now" { 0 } else { at });
            }
            "dependency" => {
                let conditions = if value.is_empty() {
                    v1::Conditions::default()
                } else {
                    start::parse_dependencies(value).map_err(|rule| wrong(&rule))?
                };
                update.conditions = Some(conditions);
            }
            "arraytaskthrottle" => {
                update.array_throttle = Some(value.parse().map_err(|_| wrong("a number of tasks"))?);
            }
            // Slurm's way to say so.
            "priority" if value == "0" => update.hold = Some(true),
            "hold" => update.hold = Some(matches!(value.to_ascii_lowercase().as_str(), "1" | "yes")),
            "mailtype" => {
                let types: MailTypes = value
                    .parse()
                    .map_err(|error: BadMailType| wrong(&error.to_string()))?;
                update.mail_type = Some(types.to_string());
            }
            "mailuser" => update.mail_user = Some(value.clone()),
            "comment" | "admincomment" | "extra" | "wckey" | "requeue" => {
                say(format_args!("scontrol: {key} is ignored: it is not kept"));
            }
            other => {
                return Err(CliError::usage(format!("{other} of a job cannot be changed here")).hint(
                    "Nice, TimeLimit, StartTime, Dependency, ArrayTaskThrottle, MailType, MailUser and Priority=0 can, while it waits",
                ));
            }
        }
    }
    Ok(update)
}

async fn node_update(called: &Called, which: &str, pairs: &[(String, String)]) -> Result<u8> {
    let names = carrel_core::model::host_list::expanded(which);
    let names = names.map_err(|error| CliError::usage(format!("Invalid hostlist: {error}")))?;
    let value = |wanted: &str| {
        pairs
            .iter()
            .find(|(key, _)| key == wanted)
            .map(|(_, value)| value.as_str())
    };
    if let Some((key, _)) = pairs
        .iter()
        .find(|(key, _)| !matches!(key.as_str(), "state" | "reason"))
    {
        return Err(
            CliError::usage(format!("{key} of a node cannot be changed by this command here"))
                .hint("`carrel node` changes features, and more"),
        );
    }
    let state = value("state").unwrap_or_default().to_ascii_uppercase();
    let action = match state.as_str() {
        "DRAIN" | "DOWN" | "FAIL" => v1::NodeAction::Drain,
        "RESUME" | "UNDRAIN" | "IDLE" => v1::NodeAction::Resume,
        "" => return Err(USAGE.wrong("update of a node says State=DRAIN or State=RESUME")),
        other => {
            return Err(USAGE
                .wrong(&format!("Invalid state: {other}"))
                .hint("DRAIN and RESUME are there"));
        }
    };
    let reason = value("reason").unwrap_or_default().trim_matches('"').to_owned();
    if action == v1::NodeAction::Drain && reason.is_empty() {
        return Err(CliError::usage("You must specify a reason when DRAINING a node").hint("Reason=\"…\""));
    }
    let mut client = called.context.client().await?;
    for name in names {
        let request = v1::UpdateNodeRequest {
            name,
            action: action.into(),
            reason: reason.clone(),
            ..v1::UpdateNodeRequest::default()
        };
        client.update_node(request).await?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, limit: Option<u64>) -> Result<v1::UpdateJobRequest> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let pairs = pairs(&words)?;
        update(&pairs[1..], limit)
    }

    #[test]
    fn changes_are_pairs() {
        let change = read(
            "JobId=12 Nice=5 TimeLimit=1:00:00 ArrayTaskThrottle=3 Dependency=afterok:4",
            None,
        );
        let change = change.expect("read");
        assert_eq!(
            (change.nice, change.time_limit_s, change.array_throttle),
            (Some(5), Some(3_600), Some(3))
        );
        assert_eq!(change.conditions.map(|all| all.dependencies.len()), Some(1));
        let mail = read("JobId=12 MailType=end,fail MailUser=me@example.org", None).expect("read");
        assert_eq!(
            (mail.mail_type.as_deref(), mail.mail_user.as_deref()),
            (Some("END,FAIL"), Some("me@example.org"))
        );
        assert!(read("JobId=12 MailType=sometimes", None).is_err());
        let more = read("job 12 TimeLimit+=30", Some(600)).expect("read");
        assert_eq!(more.time_limit_s, Some(2_400));
        assert_eq!(
            read("JobId=12 TimeLimit=-5", Some(600))
                .expect("read")
                .time_limit_s,
            Some(300)
        );
        assert_eq!(read("JobId=12 Priority=0", None).expect("read").hold, Some(true));
        for line in [
            "JobId=12 Nice=x",
            "JobId=12 NumNodes=4",
            "JobId=12 nonsense",
            "JobId",
        ] {
            assert!(read(line, None).is_err(), "{line}");
        }
    }
}
