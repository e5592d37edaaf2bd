//! `carrel history`: jobs that are over, and those that run.

use std::time::Duration;

use carrel_core::model::array::{BadJobRef, JobRef};
use carrel_proto::v1;
use clap::ValueEnum;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::terminal::say;
use crate::{output, times, units, view};

/// Jobs of one answer.
const PAGE: u32 = 500;

/// List jobs that are over, and those that run, as sacct does.
///
/// Your own since midnight (UTC), those that run first, then what ended last. A job is listed if it was waiting,
/// running or ending at some time between --starttime and --endtime; those that still wait only with --state PENDING
/// (`carrel queue` lists them). `carrel show JOB` has the whole of one.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel history                                    yours, since midnight\n  \
    carrel history -S 7d -s FAILED,TIMEOUT,NODE_FAIL  what went wrong in a week\n  \
    carrel history -a -A physics -S 2026-11-01 -E 2026-12-01\n  \
    carrel history 1741 1742_3\n  \
    carrel history -S 30d -n 0 --output json | jq 'map(.gpu_milli * .elapsed_seconds) | add / 3600000'")]
pub struct HistoryArgs {
    /// These jobs, whenever they were; of an array all its tasks, or one: 17_3, 17_[3-7]
    #[arg(value_name = "JOB")]
    pub jobs: Vec<JobRef>,
    /// These jobs, as in sacct: 17,18_3
    #[arg(short, long = "jobs", value_name = "JOB,…", value_parser = parse_jobs)]
    pub job_list: Vec<JobList>,
    /// Not what was over before this: 7d (ago), now-2h, today, 16:00, 2026-12-24T16:00, in UTC [default: today]
    #[arg(short = 'S', long, value_name = "TIME", value_parser = parse_time)]
    pub starttime: Option<i64>,
    /// Nor what was submitted later than this [default: now]
    #[arg(short = 'E', long, value_name = "TIME", value_parser = parse_time)]
    pub endtime: Option<i64>,
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
    /// In these partitions
    #[arg(short = 'p', long, value_name = "PARTITION,…", value_delimiter = ',')]
    pub partition: Vec<String>,
    /// In these states
    #[arg(
        short,
        long,
        value_name = "STATE,…",
        value_delimiter = ',',
        ignore_case = true
    )]
    pub state: Vec<StateName>,
    /// Of these names
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub name: Vec<String>,
    /// So many at most; 0: all
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100)]
    pub limit: u32,
    /// Go on after what a list said that was cut short
    #[arg(long, value_name = "PLACE", default_value = "", hide_default_value = true)]
    pub after: String,
}

/// A job's state, by Slurm's name or its short form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StateName {
    /// Waits
    #[value(alias = "PD")]
    Pending,
    /// Its containers are being made
    #[value(alias = "CF")]
    Configuring,
    /// Runs
    #[value(alias = "R")]
    Running,
    /// Is being ended
    #[value(alias = "CG")]
    Completing,
    /// Ended well
    #[value(alias = "CD")]
    Completed,
    /// Ended with another exit code than 0, or could not start
    #[value(alias = "F")]
    Failed,
    /// Ended by a user before it ran
    #[value(alias = "CA")]
    Cancelled,
    /// Reached its deadline
    #[value(alias = "TO")]
    Timeout,
    /// Gave way to another
    #[value(alias = "PR")]
    Preempted,
    /// Lost its node
    #[value(alias = "NF")]
    NodeFail,
    /// Wanted more memory than it had
    #[value(alias = "OOM")]
    OutOfMemory,
}

impl From<StateName> for v1::JobState {
    fn from(name: StateName) -> Self {
        match name {
            StateName::Pending => Self::Pending,
            StateName::Configuring => Self::Configuring,
            StateName::Running => Self::Running,
            StateName::Completing => Self::Completing,
            StateName::Completed => Self::Completed,
            StateName::Failed => Self::Failed,
            StateName::Cancelled => Self::Cancelled,
            StateName::Timeout => Self::Timeout,
            StateName::Preempted => Self::Preempted,
            StateName::NodeFail => Self::NodeFail,
            StateName::OutOfMemory => Self::OutOfMemory,
        }
    }
}

/// Jobs with commas between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobList(Vec<JobRef>);

/// Commas in brackets are a set's.
fn parse_jobs(text: &str) -> Result<JobList, String> {
    let mut in_brackets = false;
    let parts = text.split(|c: char| {
        in_brackets = c == '[' || (in_brackets && c != ']');
        c == ',' && !in_brackets
    });
    let jobs = parts.map(|part| part.parse().map_err(|error: BadJobRef| error.to_string()));
    jobs.collect::<Result<_, _>>().map(JobList)
}

fn parse_time(text: &str) -> Result<i64, String> {
    times::gone_by(text, times::now_ms())
}

/// Runs the verb.
pub async fn run(context: &Context, args: HistoryArgs) -> Result<u8> {
    let now = times::now_ms();
    let since = args.starttime.unwrap_or_else(|| times::midnight(now));
    // What is submitted while this runs is not what was.
    let until = args.endtime.unwrap_or(now).saturating_add(1);
    if since >= until {
        return Err(CliError::usage("--starttime is not before --endtime"));
    }
    let listed = args.job_list.iter().flat_map(|list| &list.0);
    let named = args.jobs.iter().chain(listed);
    let mut request = v1::ListHistoryRequest {
        since_ms: since,
        until_ms: until,
        all_users: args.all_users,
        users: args.user,
        accounts: args.account,
        partitions: args.partition,
        states: args
            .state
            .into_iter()
            .map(|name| v1::JobState::from(name).into())
            .collect(),
        names: args.name,
        ids: Vec::new(),
        jobs: named.map(ToString::to_string).collect(),
        limit: 0,
        after: args.after,
    };
    let mut client = context.client().await?;
    let most = match args.limit {
        0 => usize::MAX,
        limit => limit as usize,
    };
    let mut jobs: Vec<v1::HistoryJob> = Vec::new();
    let next = loop {
        let left = most - jobs.len();
        request.limit = u32::try_from(left).unwrap_or(PAGE).min(PAGE);
        let answer = client.list_history(request.clone()).await?.into_inner();
        jobs.extend(answer.jobs);
        if answer.next.is_empty() || jobs.len() >= most {
            break answer.next;
        }
        request.after = answer.next;
    };
    if context.json() {
        output::json(&jobs.into_iter().map(view::HistoryJob::from).collect::<Vec<_>>())?;
    } else if jobs.is_empty() {
        say("carrel: no jobs");
    } else {
        output::text(table(&jobs))?;
    }
    if !next.is_empty() {
        say(format_args!(
            "carrel: there may be more: --after {next} goes on, -n 0 lists all"
        ));
    }
    Ok(0)
}

fn table(jobs: &[v1::HistoryJob]) -> String {
    let header = [
        "JOB",
        "NAME",
        "USER",
        "ACCOUNT",
        "PARTITION",
        "STATE",
        "START",
        "ELAPSED",
        "GPUS",
        "CPU",
        "MEMORY",
        "EXIT",
        "NODES",
        "WHY",
    ];
    output::table(header, jobs.iter().map(row))
}

fn row(job: &v1::HistoryJob) -> [String; 14] {
    let terms = job.terms.clone().unwrap_or_default();
    let used = view::HostUse::past(job);
    let started = job.started_ms.map(units::rfc3339).unwrap_or_default();
    [
        view::label(job.id, job.array.as_ref(), job.state()),
        job.name.clone(),
        job.user.clone(),
        terms.account,
        terms.partition,
        view::job_state(job.state()).to_owned(),
        started.trim_end_matches('Z').replace('T', " "),
        match job.started_ms {
            Some(_) => units::clock(Duration::from_millis(job.elapsed_ms)),
            None => String::new(),
        },
        match job.started_ms {
            Some(_) => units::thousandths(job.gpu_milli),
            None => String::new(),
        },
        used.and_then(view::HostUse::cpu_percent)
            .map_or_else(String::new, |percent| format!("{percent:.0} %")),
        used.and_then(view::HostUse::peak)
            .map(units::bytes)
            .unwrap_or_default(),
        job.exit_code.map(|code| code.to_string()).unwrap_or_default(),
        job.nodes.clone(),
        why(job),
    ]
}

fn why(job: &v1::HistoryJob) -> String {
    match job.restarts {
        0 => job.reason.clone(),
        1 => format!("{} (queued again once)", job.reason),
        often => format!("{} (queued again {often} times)", job.reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_a_table() {
        let job = |id, state: v1::JobState, exit_code| v1::HistoryJob {
            id,
            name: "train".into(),
            user: "alice".into(),
            state: state.into(),
            terms: Some(v1::Terms {
                account: "physics".into(),
                qos: "normal".into(),
                partition: "all".into(),
                nice: 0,
                reservation: String::new(),
            }),
            started_ms: Some(1_767_225_600_000),
            elapsed_ms: 3_725_000,
            gpu_milli: 2_500,
            nodes: "n[1-2]".into(),
            exit_code,
            reason: "its command ended".into(),
            ..v1::HistoryJob::default()
        };
        let waited = v1::HistoryJob {
            started_ms: None,
            nodes: String::new(),
            gpu_milli: 0,
            ..job(7, v1::JobState::Cancelled, None)
        };
        let again = v1::HistoryJob {
            restarts: 2,
            cpus: 4,
            host_use: Some(v1::HostUseInAll {
                sum: Some(v1::HostUse {
                    cpu_user_us: 3_725_000_000,
                    ..v1::HostUse::default()
                }),
                nodes: 2,
                memory_peak_bytes: 3 << 30,
                ..v1::HostUseInAll::default()
            }),
            ..job(9, v1::JobState::Failed, Some(3))
        };
        insta::assert_snapshot!(table(&[again, waited]), @r"
        JOB  NAME   USER   ACCOUNT  PARTITION  STATE      START                ELAPSED  GPUS  CPU   MEMORY  EXIT  NODES   WHY
        9    train  alice  physics  all        FAILED     2026-01-01 00:00:00  1:02:05  2.5   25 %  3G      3     n[1-2]  its command ended (queued again 2 times)
        7    train  alice  physics  all        CANCELLED                                                                  its command ended
        ");
    }

    #[test]
    fn jobs_are_listed_with_commas_between_them() {
        let read =
            |text| parse_jobs(text).map(|list| list.0.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(
            read("17,18_3,19_[1,3-7]").expect("a list"),
            ["17", "18_3", "19_[1,3-7]"]
        );
        assert!(read("17,").is_err() && read("x").is_err());
    }

    #[test]
    fn states_go_by_slurm_s_names() {
        for state in StateName::value_variants() {
            let name = state.to_possible_value().expect("it has a name");
            assert_eq!(name.get_name(), view::job_state(v1::JobState::from(*state)));
        }
        assert_eq!(StateName::from_str("oom", true), Ok(StateName::OutOfMemory));
    }
}
