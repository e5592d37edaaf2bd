//! `carrel ps`: jobs and sessions.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_proto::v1;

use crate::context::Context;
use crate::error::Result;
use crate::grant;
use crate::output;
use crate::units;
use crate::view;

/// A job that has no more than this left is marked.
const SOON_MS: i64 = 10 * 60 * 1_000;

/// List jobs and sessions.
///
/// Your own live jobs. Sessions that are stopped, and so have none, are among the --sessions, and
/// so are those that others share with you.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel ps\n  \
    carrel ps -s                           your sessions, stopped ones too\n  \
    carrel ps -a --output json | jq '.[] | select(.state == \"PENDING\") | .reason'")]
pub struct PsArgs {
    /// Everybody's
    #[arg(short, long)]
    pub all: bool,
    /// Also jobs that have ended lately; `carrel history` has them all
    #[arg(short, long)]
    pub ended: bool,
    /// Sessions instead of jobs
    #[arg(short, long, conflicts_with = "ended")]
    pub sessions: bool,
}

/// Runs the verb.
pub async fn run(context: &Context, args: PsArgs) -> Result<u8> {
    let mut client = context.client().await?;
    if args.sessions {
        let request = v1::ListSessionsRequest { all_users: args.all };
        let sessions = client.list_sessions(request).await?.into_inner().sessions;
        if context.json() {
            output::json(&sessions.into_iter().map(view::Session::from).collect::<Vec<_>>())?;
        } else {
            let me = client
                .get_cluster(v1::GetClusterRequest {})
                .await?
                .into_inner()
                .user;
            let me = me.unwrap_or_default().name;
            let rows = sessions.iter().map(|session| session_row(session, &me));
            let header = ["NAME", "USER", "STATE", "JOB", "IMAGE", "REASON"];
            print(&header, rows.collect(), "sessions")?;
        }
        return Ok(0);
    }
    let request = v1::ListJobsRequest {
        all_users: args.all,
        ended: args.ended,
    };
    let jobs = client.list_jobs(request).await?.into_inner().jobs;
    if context.json() {
        output::json(&jobs.into_iter().map(view::Job::from).collect::<Vec<_>>())?;
    } else {
        let header = ["JOB", "NAME", "USER", "STATE", "TIME", "LEFT", "WHERE, OR WHY"];
        print(&header, jobs.iter().map(job_row).collect(), "jobs")?;
    }
    Ok(0)
}

fn print<const N: usize>(header: &[&str; N], rows: Vec<[String; N]>, what: &str) -> Result<()> {
    if rows.is_empty() {
        crate::terminal::say(format_args!("carrel: no {what}"));
        return Ok(());
    }
    output::text(output::table(*header, rows))
}

fn job_row(job: &v1::Job) -> [String; 7] {
    let time = job
        .started_ms
        .map(|started| span(started, job.ended_ms.unwrap_or_else(now)))
        .unwrap_or_default();
    let left = match (job.deadline_ms, job.ended_ms) {
        (Some(deadline), None) => span(now(), deadline),
        _ => String::new(),
    };
    let mut place = grant::describe(job, &[]);
    let says_more = place.is_empty() || job.state() != v1::JobState::Running;
    if says_more && !job.reason.is_empty() {
        place = if place.is_empty() {
            job.reason.clone()
        } else {
            format!("{place}: {}", job.reason)
        };
    }
    let soon = matches!((job.deadline_ms, job.ended_ms), (Some(at), None) if at - now() <= SOON_MS);
    if soon && job.state() == v1::JobState::Running {
        place += &format!("; ends soon: `carrel extend {}`", job.name);
    }
    if let Some(activity) = job.activity.as_ref().filter(|activity| activity.warned) {
        place += &format!(
            "; {}: use it, or `carrel extend {}`",
            output::visible(&activity.held_by),
            job.name
        );
    }
    if job.queue_position > 0 {
        place += &format!(" ({} in the queue)", units::ordinal(job.queue_position));
    }
    let state = view::job_state(job.state()).to_owned();
    [
        view::label(job.id, job.array.as_ref(), job.state()),
        job.name.clone(),
        job.user.clone(),
        state,
        time,
        left,
        place,
    ]
}

/// A session as `me` sees it: another's is named as it is to be called.
fn session_row(session: &v1::Session, me: &str) -> [String; 6] {
    let live = session.state() != v1::SessionState::Stopped;
    let job = session
        .job
        .as_ref()
        .filter(|_| live)
        .map(|job| job.id.to_string())
        .unwrap_or_default();
    let state = view::session_state(session.state()).to_owned();
    let name = if session.user == me {
        session.name.clone()
    } else {
        format!("{}.{}", session.name, session.user)
    };
    [
        name,
        session.user.clone(),
        state,
        job,
        session.image.clone(),
        session.reason.clone(),
    ]
}

fn span(from_ms: i64, to_ms: i64) -> String {
    units::clock(Duration::from_millis(u64::try_from(to_ms - from_ms).unwrap_or(0)))
}

fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as i64)
}
