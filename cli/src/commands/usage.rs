//! `carrel usage`: GPU-hours that were held.

use std::collections::BTreeSet;

use carrel_proto::v1;
use clap::ValueEnum;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::terminal::say;
use crate::{output, times, units, view};

/// Report the GPU-hours that jobs have held, as sreport does.
///
/// Your own of this month (UTC), those of running jobs up to now. GPU-HOURS is what was held, whatever was done with
/// it: slices and shares count as the part of a GPU that they are, and a job that was queued again counts each time
/// that it ran. USED is how much of that the GPUs were busy, where their driver measures it, and % how much of what was
/// held while it did; - is not measured, as of MIG slices. BILLED is the same as fair-share and limits count it: weighed by model and QOS, with what jobs
/// without GPUs hold.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel usage                               yours this month, by account\n  \
    carrel usage --by day -S 14d\n  \
    carrel usage -a --by account,user -S 2026-10-01 -E 2026-11-01\n  \
    carrel usage -a --by model --output json | jq .total.gpu_hours")]
pub struct UsageArgs {
    /// From then: 7d (ago), today, 2026-12-24T16:00, in UTC [default: the first of this month]
    #[arg(short = 'S', long, value_name = "TIME", value_parser = parse_time)]
    pub starttime: Option<i64>,
    /// Until then [default: now]
    #[arg(short = 'E', long, value_name = "TIME", value_parser = parse_time)]
    pub endtime: Option<i64>,
    /// What is told apart; days are those of UTC
    #[arg(
        short,
        long,
        value_name = "WHAT,…",
        value_delimiter = ',',
        default_value = "account"
    )]
    pub by: Vec<By>,
    /// Everybody's; for operators
    #[arg(
        short = 'a',
        long = "all-users",
        visible_alias = "allusers",
        conflicts_with = "user"
    )]
    pub all_users: bool,
    /// Of these users; another's for operators
    #[arg(short, long, value_name = "USER,…", value_delimiter = ',')]
    pub user: Vec<String>,
    /// On these accounts
    #[arg(
        short = 'A',
        long,
        visible_alias = "accounts",
        value_name = "ACCOUNT,…",
        value_delimiter = ','
    )]
    pub account: Vec<String>,
}

/// What is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum By {
    /// Days
    Day,
    /// Accounts
    Account,
    /// Users
    User,
    /// Models of GPUs
    Model,
}

impl From<By> for v1::UsageBy {
    fn from(by: By) -> Self {
        match by {
            By::Day => Self::Day,
            By::Account => Self::Account,
            By::User => Self::User,
            By::Model => Self::Model,
        }
    }
}

fn parse_time(text: &str) -> Result<i64, String> {
    times::gone_by(text, times::now_ms())
}

/// Runs the verb.
pub async fn run(context: &Context, args: UsageArgs) -> Result<u8> {
    let now = times::now_ms();
    let since = args.starttime.unwrap_or_else(|| times::first_of_month(now));
    let until = args.endtime.unwrap_or(now);
    if since >= until {
        return Err(CliError::usage("--starttime is not before --endtime"));
    }
    let by: BTreeSet<By> = args.by.into_iter().collect();
    let request = v1::GetUsageRequest {
        since_ms: since,
        until_ms: until,
        all_users: args.all_users,
        users: args.user,
        accounts: args.account,
        by: by.iter().map(|by| v1::UsageBy::from(*by).into()).collect(),
    };
    let mut client = context.client().await?;
    let rows = client.get_usage(request).await?.into_inner().rows;
    if context.json() {
        output::json(&view::Usage::new(since, until, &rows))?;
    } else if rows.is_empty() {
        say("carrel: nothing was held");
    } else {
        output::text(table(&rows, &by))?;
    }
    Ok(0)
}

fn table(rows: &[v1::UsageRow], by: &BTreeSet<By>) -> String {
    let mut header: Vec<String> = by
        .iter()
        .map(|by| match by {
            By::Day => "DAY",
            By::Account => "ACCOUNT",
            By::User => "USER",
            By::Model => "MODEL",
        })
        .map(str::to_owned)
        .collect();
    header.extend(["GPU-HOURS", "USED", "%", "BILLED", "RUNS"].map(str::to_owned));
    let cell = |row: &v1::UsageRow, by: &By| match by {
        By::Day => row.day_ms.map(day).unwrap_or_default(),
        By::Account => row.account.clone(),
        By::User => row.user.clone(),
        By::Model if row.model.is_empty() => "(no GPU)".to_owned(),
        By::Model => row.model.clone(),
    };
    let line =
        |names: Vec<String>, gpu: f64, measured: Option<v1::MeasuredUse>, billed: f64, runs: String| {
            let unknown = || "-".to_owned();
            let used = measured.map_or_else(unknown, |measured| format!("{:.2}", measured.used_gpu_hours));
            let share = measured.and_then(view::used_percent);
            let share = share.map_or_else(unknown, |share| format!("{share:.0}"));
            let numbers = [format!("{gpu:.2}"), used, share, format!("{billed:.2}"), runs];
            names.into_iter().chain(numbers).collect::<Vec<_>>()
        };
    let lines = rows.iter().map(|row| {
        let names = by.iter().map(|by| cell(row, by)).collect();
        line(
            names,
            row.gpu_hours,
            row.measured,
            row.billed_gpu_hours,
            row.runs.to_string(),
        )
    });
    let total = (rows.len() > 1).then(|| {
        let sum = |of: fn(&v1::UsageRow) -> f64| rows.iter().map(of).sum();
        let mut names = vec![String::new(); by.len()];
        if let Some(first) = names.first_mut() {
            "total".clone_into(first);
        }
        // A run of two days, or on two models, is in two lines.
        line(
            names,
            sum(|row| row.gpu_hours),
            view::measured_in_all(rows),
            sum(|row| row.billed_gpu_hours),
            String::new(),
        )
    });
    output::grid(header, lines.chain(total))
}

fn day(at: i64) -> String {
    units::rfc3339(at).chars().take(10).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_a_table_with_a_sum() {
        let row = |account: &str, day: i64, gpu_hours| v1::UsageRow {
            account: account.into(),
            day_ms: Some(1_767_225_600_000 + day * 86_400_000),
            gpu_hours,
            billed_gpu_hours: gpu_hours * 2.0,
            runs: 3,
            ..v1::UsageRow::default()
        };
        let mut rows = [row("physics", 0, 12.5), row("physics", 1, 100.0)];
        // What is not measured is not nothing.
        rows[1].measured = Some(v1::MeasuredUse {
            used_gpu_hours: 60.0,
            measured_gpu_hours: 80.0,
        });
        insta::assert_snapshot!(table(&rows, &[By::Account, By::Day].into()), @r"
        DAY         ACCOUNT  GPU-HOURS  USED   %   BILLED  RUNS
        2026-01-01  physics  12.50      -      -   25.00   3
        2026-01-02  physics  100.00     60.00  75  200.00  3
        total                112.50     60.00  75  225.00
        ");
        let rows = [v1::UsageRow {
            day_ms: None,
            ..row("physics", 0, 0.0)
        }];
        insta::assert_snapshot!(table(&rows, &[By::Model].into()), @r"
        MODEL     GPU-HOURS  USED  %  BILLED  RUNS
        (no GPU)  0.00       -     -  0.00    3
        ");
    }
}
