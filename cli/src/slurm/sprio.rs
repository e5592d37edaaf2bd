//! `sprio`: how places in the queue came to be.

use carrel_proto::v1::{self, JobState};

use super::format::{self, Field};
use super::job::{self, Row};
use super::options::Takes::{Nothing, Perhaps, Value};
use super::options::{Given, NO_MORE_TALK, NONE, ONE_CLUSTER, Usage, refused, taken, used};
use super::{Called, user_name};
use crate::context::request;
use crate::error::Result;
use crate::output;

/// The command.
pub const USAGE: Usage = Usage {
    name: "sprio",
    line: "[OPTIONS]",
    about: "Lists jobs that wait, with what their priority is made of.",
    options: &[
        taken(NONE, "federation", Nothing, ONE_CLUSTER),
        used('o', "format", Value, "what is shown: \"%.15i %.8u %.10Y %.10F\""),
        used(NONE, "help", Nothing, "this text"),
        used('j', "jobs", Value, "these jobs"),
        refused(NONE, "json", Perhaps, "`carrel explain --output json` is there"),
        taken(NONE, "local", Nothing, ONE_CLUSTER),
        used('l', "long", Nothing, "more of each"),
        taken('M', "clusters", Value, ONE_CLUSTER),
        used('h', "noheader", Nothing, "no header"),
        used('n', "norm", Nothing, "factors in place of points"),
        used('p', "partition", Value, "in these partitions"),
        taken(NONE, "sibling", Nothing, ONE_CLUSTER),
        refused('S', "sort", Value, "they stand in their order"),
        used(NONE, "usage", Nothing, "how it is called"),
        used('u', "user", Value, "of these users"),
        taken('v', "verbose", Nothing, NO_MORE_TALK),
        used('V', "version", Nothing, "the version"),
        used('w', "weights", Nothing, "what each factor counts"),
    ],
};

const USUAL: &str = "%.15i %.9r %.8u %.10Y %.10A %.10F %.10P %.10Q %.10N";
const NORM: &str = "%.15i %.9r %.8u %.10a %.10f %.10p %.10q %.10N";

/// A job that waits, and its factors.
struct Line {
    job: Row,
    priority: v1::Priority,
}

impl Line {
    fn factor(&self, name: &str) -> Option<&v1::PriorityFactor> {
        self.priority
            .factors
            .iter()
            .find(|factor| factor.name.eq_ignore_ascii_case(name))
    }

    fn points(&self, name: &str) -> String {
        self.factor(name).map_or(0, |factor| factor.points).to_string()
    }

    fn share(&self, name: &str) -> String {
        format!("{:.7}", self.factor(name).map_or(0.0, |factor| factor.factor))
    }
}

const fn field(
    letter: char,
    name: &'static str,
    header: &'static str,
    value: fn(&Line) -> String,
) -> Field<Line> {
    Field {
        letter: Some(letter),
        name,
        header,
        width: 0,
        value,
    }
}

const FIELDS: &[Field<Line>] = &[
    field('a', "age-norm", "AGE", |line| line.share("age")),
    field('A', "age", "AGE", |line| line.points("age")),
    field('f', "fairshare-norm", "FAIRSHARE", |line| {
        line.share("fair-share")
    }),
    field('F', "fairshare", "FAIRSHARE", |line| line.points("fair-share")),
    field('i', "jobid", "JOBID", |line| line.job.label()),
    field('j', "jobsize-norm", "JOBSIZE", |_| "0.0000000".to_owned()),
    field('J', "jobsize", "JOBSIZE", |_| "0".to_owned()),
    field('N', "nice", "NICE", |line| line.job.terms.nice.to_string()),
    field('o', "account", "ACCOUNT", |line| line.job.terms.account.clone()),
    field('p', "partition-norm", "PARTITION", |line| line.share("partition")),
    field('P', "partition", "PARTITION", |line| line.points("partition")),
    field('q', "qos-norm", "QOS", |line| line.share("qos")),
    field('Q', "qos", "QOS", |line| line.points("qos")),
    field('n', "qosname", "QOSNAME", |line| line.job.terms.qos.clone()),
    field('r', "partitionname", "PARTITION", |line| {
        line.job.terms.partition.clone()
    }),
    field('S', "site", "SITE", |_| "0".to_owned()),
    field('t', "tres-norm", "TRES", |_| String::new()),
    field('T', "tres", "TRES", |_| String::new()),
    field('u', "user", "USER", |line| line.job.user.clone()),
    field('Y', "priority", "PRIORITY", |line| {
        line.priority.total.to_string()
    }),
    field('y', "priority-norm", "PRIORITY", |line| {
        format!("{:.14}", line.priority.total as f64 / f64::from(u32::MAX))
    }),
];

/// Runs it.
pub async fn run(called: &Called, given: Given) -> Result<u8> {
    if let Some(word) = given.words.first() {
        return Err(USAGE.wrong(&format!("Unrecognized option: {word}")));
    }
    let format = match given.value("format") {
        Some(format) => format,
        None if given.has("norm") => NORM,
        None => USUAL,
    };
    let layout = format::letters(format, FIELDS)?;
    let names =
        job::names(&given.all("jobs")).map_err(|error| USAGE.wrong(&format!("Invalid job id: {error}")))?;
    let users: Vec<String> = given.list("user").iter().map(|user| user_name(user)).collect();
    let partitions = given.list("partition");
    let mut client = called.context.client().await?;
    let mut rows = job::list(&mut client, false).await?;
    rows.retain(|row| {
        row.state == JobState::Pending
            && (names.is_empty() || names.iter().any(|name| row.is(name)))
            && (users.is_empty() || users.contains(&row.user))
            && (partitions.is_empty() || partitions.contains(&row.terms.partition))
    });
    let mut lines = Vec::new();
    for job in rows {
        let name = carrel_core::model::ids::JobId(job.id).into();
        let explained = match client.explain_job(request(&name)).await {
            Ok(explained) => explained.into_inner(),
            // It has started, or ended, meanwhile.
            Err(status) if status.code() == tonic::Code::NotFound => continue,
            Err(status) => return Err(status.into()),
        };
        if let Some(priority) = explained.priority {
            lines.push(Line { job, priority });
        }
    }
    let mut text = String::new();
    if !given.has("noheader") {
        text += &format::line(&layout, None);
    }
    if given.has("weights") {
        let weights = lines.first().map(|line| &line.priority.factors);
        let weights = weights
            .into_iter()
            .flatten()
            .map(|factor| format!("{} {}", factor.name, factor.weight));
        return output::text(format!("Weights: {}\n", weights.collect::<Vec<_>>().join(", "))).map(|()| 0);
    }
    text.extend(lines.iter().map(|line| format::line(&layout, Some(line))));
    output::text(text).map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::waits;
    use super::*;

    #[test]
    fn factors_are_columns() {
        let factor = |name: &str, factor, weight, points| v1::PriorityFactor {
            name: name.into(),
            factor,
            weight,
            points,
        };
        let line = Line {
            job: waits(),
            priority: v1::Priority {
                total: 1_250,
                factors: vec![
                    factor("fair-share", 0.5, 2_000, 1_000),
                    factor("age", 0.25, 1_000, 250),
                ],
                ..v1::Priority::default()
            },
        };
        let layout = format::letters(USUAL, FIELDS).expect("a format");
        let text = format::line(&layout, None) + &format::line(&layout, Some(&line));
        insta::assert_snapshot!(text, @r"
                  JOBID PARTITION     USER   PRIORITY        AGE  FAIRSHARE  PARTITION        QOS       NICE
             12_[4-8%5]       all nobody-k       1250        250       1000          0          0          0
        ");
    }
}
