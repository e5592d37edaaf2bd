//! `carrel queue`: what waits, in order.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_proto::v1;

use crate::context::Context;
use crate::error::Result;
use crate::terminal::say;
use crate::{output, plan, units, view};

/// List what waits, the next one first.
///
/// Everybody's. Those that may not start yet (held, begun later, waiting for another job) come last. `carrel explain
/// JOB` says more of one: what it lacks on which node, and with --priority how its place came to be.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel queue\n  \
    carrel queue --start -u $USER             when yours start\n  \
    carrel queue --all -p h100                what runs there, too\n  \
    carrel queue --output json | jq '.[] | select(.reason | startswith(\"Assoc\"))'")]
pub struct QueueArgs {
    /// Also say when they start, in UTC: "by", at the latest: nobody behind makes it later; "about", if every job
    /// runs until its deadline
    #[arg(long)]
    pub start: bool,
    /// Also what runs
    #[arg(short, long)]
    pub all: bool,
    /// Only this user's
    #[arg(
        short,
        long,
        value_name = "USER",
        default_value = "",
        hide_default_value = true
    )]
    pub user: String,
    /// Only on this account
    #[arg(
        short = 'A',
        long,
        value_name = "ACCOUNT",
        default_value = "",
        hide_default_value = true
    )]
    pub account: String,
    /// Only in this partition
    #[arg(
        short,
        long,
        value_name = "PARTITION",
        default_value = "",
        hide_default_value = true
    )]
    pub partition: String,
}

/// Runs the verb.
pub async fn run(context: &Context, args: QueueArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let request = v1::ListQueueRequest {
        running: args.all,
        start: args.start,
        user: args.user,
        account: args.account,
        partition: args.partition,
    };
    let answer = client.list_queue(request).await?.into_inner();
    if context.json() {
        output::json(
            &answer
                .jobs
                .into_iter()
                .map(view::QueuedJob::from)
                .collect::<Vec<_>>(),
        )?;
    } else if answer.jobs.is_empty() {
        say("carrel: nothing waits");
    } else {
        output::text(table(&answer.jobs, args.start, now()))?;
    }
    if answer.left_out > 0 {
        say(format_args!(
            "carrel: {} more jobs are not shown",
            answer.left_out
        ));
    }
    Ok(0)
}

fn table(jobs: &[v1::QueuedJob], start: bool, now_ms: i64) -> String {
    let header = [
        "JOB",
        "NAME",
        "USER",
        "ACCOUNT",
        "PARTITION",
        "QOS",
        "STATE",
        "TIME",
        "PRIORITY",
        "START",
        "ASKS FOR",
        "REASON",
    ];
    let shown = |column: &str| match column {
        "START" => start,
        // What waits is all in one state.
        "STATE" => jobs.iter().any(|job| job.state() != v1::JobState::Pending),
        _ => true,
    };
    let pick = |row: [String; 12]| -> Vec<String> {
        let cells = header.iter().zip(row);
        cells
            .filter(|(column, _)| shown(column))
            .map(|(_, cell)| cell)
            .collect()
    };
    let rows = jobs.iter().map(|job| pick(row(job, now_ms)));
    output::grid(pick(header.map(str::to_owned)), rows)
}

fn row(job: &v1::QueuedJob, now_ms: i64) -> [String; 12] {
    let terms = job.terms.clone().unwrap_or_default();
    let priority = match job.priority {
        Some(_) if job.top => "top".to_owned(),
        Some(points) => points.to_string(),
        None => String::new(),
    };
    let asks = job.request.as_ref().map(plan::units_of).unwrap_or_default();
    let asks = if job.nodes.is_empty() {
        asks
    } else {
        format!("{asks} on {}", job.nodes)
    };
    [
        view::label(job.id, job.array.as_ref(), job.state()),
        job.name.clone(),
        job.user.clone(),
        terms.account,
        terms.partition,
        terms.qos,
        view::job_state(job.state()).to_owned(),
        units::clock(Duration::from_secs(job.time_limit_s)),
        priority,
        begins(job, now_ms),
        asks,
        job.reason.clone(),
    ]
}

/// "by 14:05", "about 16:00", "unknown"; of another day with the date.
fn begins(job: &v1::QueuedJob, now_ms: i64) -> String {
    let Some(start) = job.start_ms else {
        return "unknown".to_owned();
    };
    let (whole, today) = (units::rfc3339(start), units::rfc3339(now_ms));
    let (day, time) = whole.split_once('T').unwrap_or(("", &whole));
    let time = time.get(..5).unwrap_or(time);
    let at = if today.starts_with(day) {
        time.to_owned()
    } else {
        format!("{day} {time}")
    };
    match job.start_kind() {
        v1::StartKind::Promised => format!("by {at}"),
        v1::StartKind::Forecast => format!("about {at}"),
        v1::StartKind::Started => format!("at {at}"),
        v1::StartKind::Unspecified => "unknown".to_owned(),
    }
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64, start: Option<i64>, kind: v1::StartKind, reason: &str) -> v1::QueuedJob {
        v1::QueuedJob {
            id,
            name: "dev".into(),
            user: "alice".into(),
            state: v1::JobState::Pending.into(),
            terms: Some(v1::Terms {
                account: "physics".into(),
                qos: "normal".into(),
                partition: "all".into(),
                nice: 0,
                reservation: String::new(),
            }),
            request: Some(v1::ResourceRequest {
                nodes: 2,
                gpus_per_node: 8,
                ..v1::ResourceRequest::default()
            }),
            time_limit_s: 4 * 3_600,
            priority: (!reason.starts_with("Job")).then_some(100_123),
            reason: reason.into(),
            start_ms: start,
            start_kind: kind.into(),
            ..v1::QueuedJob::default()
        }
    }

    #[test]
    fn the_queue_says_what_kind_of_start_it_is() {
        let now = 1_767_225_600_000;
        let jobs = [
            job(7, Some(now + 300_000), v1::StartKind::Promised, "Resources"),
            job(
                8,
                Some(now + 90_000_000),
                v1::StartKind::Forecast,
                "Priority: behind job 7",
            ),
            job(9, None, v1::StartKind::Unspecified, "JobHeldUser"),
        ];
        insta::assert_snapshot!(table(&jobs, true, now), @r"
        JOB  NAME  USER   ACCOUNT  PARTITION  QOS     TIME     PRIORITY  START                   ASKS FOR                  REASON
        7    dev   alice  physics  all        normal  4:00:00  100123    by 00:05                2 nodes with 8 GPUs each  Resources
        8    dev   alice  physics  all        normal  4:00:00  100123    about 2026-01-02 01:00  2 nodes with 8 GPUs each  Priority: behind job 7
        9    dev   alice  physics  all        normal  4:00:00            unknown                 2 nodes with 8 GPUs each  JobHeldUser
        ");
    }
}
