//! Waiting for a session to run, whatever the broker does meanwhile.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_core::model::array::JobRef;
use carrel_core::model::ids::JobId;
use carrel_proto::v1;
use tonic::Code;

use crate::connect::Client;
use crate::context::request;
use crate::error::{CliError, Result};
use crate::grant;
use crate::output::visible;
use crate::progress::Progress;
use crate::signals::{Signal, Signals};
use crate::{terminal, units, view};

/// Between attempts to reach a broker that went away: from this …
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// … doubling up to this.
const RETRY_LAST: Duration = Duration::from_secs(2);
/// How long a request is repeated while the broker is away (it restarts in under a second).
const REQUEST_PATIENCE: Duration = Duration::from_secs(20);

/// Columns of a living line before its text: what turns, and the time.
const BEFORE_LINE: usize = 6;
/// A line of so many columns has room for more than the reason.
const WIDE: usize = 70;
/// How often the time that is left is said anew.
const TIME_AGAIN: Duration = Duration::from_secs(20);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The session runs.
    Running,
    /// The job is over before it ran.
    Over,
    /// The person, or the system, wants to leave.
    Left(Signal),
    /// The limit has passed.
    TimedOut,
}

/// A limit to a wait.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// As long as it takes.
    None,
    /// Until it runs.
    Running(Duration),
    /// Until resources are granted; once they are, as long as it takes.
    Granted(Duration),
}

/// Waits until the job of `session` runs, showing why it does not. Returns the session as last seen.
pub async fn until_running(
    client: &mut Client,
    mut session: v1::Session,
    limit: Limit,
    progress: &mut Progress,
    signals: &mut Signals,
) -> Result<(v1::Session, End)> {
    let job = session.job.as_ref().map_or(0, |job| job.id);
    let mut watcher = Watcher::new(client.clone(), &session);
    let begun = tokio::time::Instant::now();
    let mut granted = false;
    loop {
        match stage(&session, job) {
            Stage::Running | Stage::Granted if !granted => {
                granted = true;
                grant::announce(client, &session, progress).await;
                continue;
            }
            Stage::Running => return Ok((session, End::Running)),
            Stage::Over => return Ok((session, End::Over)),
            Stage::Granted | Stage::Waiting => show(&session, progress),
        }
        let end = match limit {
            Limit::Running(limit) => Some(begun + limit),
            Limit::Granted(limit) if !granted => Some(begun + limit),
            Limit::Granted(_) | Limit::None => None,
        };
        // Each arm is safe to cancel: signals are kept, and the watcher holds its stream itself.
        tokio::select! {
            biased;
            signal = signals.next() => return Ok((session, End::Left(signal))),
            next = watcher.next() => match next? {
                Event::Now(now) => session = *now,
                Event::Gone => return Ok((gone(client, session, job).await, End::Over)),
                Event::Away => progress.show("away", "the broker does not answer; waiting for it"),
            },
            () = sleep_until(end) => return Ok((session, End::TimedOut)),
            () = tokio::time::sleep(TIME_AGAIN) => {}
            // What was held back in the first moments is shown when they are over.
            () = tokio::time::sleep_until(progress.patience_ends()), if !is_past(progress.patience_ends()) => {}
        }
    }
}

fn is_past(time: tokio::time::Instant) -> bool {
    tokio::time::Instant::now() >= time
}

async fn sleep_until(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// How far a session's job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Granted,
    Running,
    Over,
}

fn stage(session: &v1::Session, job: u64) -> Stage {
    let Some(live) = session.job.as_ref().filter(|live| live.id == job) else {
        return Stage::Over;
    };
    use v1::JobState as S;
    match live.state() {
        S::Pending | S::Unspecified => Stage::Waiting,
        S::Configuring => Stage::Granted,
        S::Running | S::Suspended => match session.state() {
            v1::SessionState::Pending | v1::SessionState::Starting => Stage::Granted,
            v1::SessionState::Running | v1::SessionState::Parked => Stage::Running,
            v1::SessionState::Stopping | v1::SessionState::Stopped => Stage::Over,
            v1::SessionState::Unspecified => Stage::Waiting,
        },
        S::Completing
        | S::Completed
        | S::Failed
        | S::Cancelled
        | S::Timeout
        | S::Preempted
        | S::NodeFail
        | S::OutOfMemory => Stage::Over,
    }
}

/// Whether a job is over, or about to be.
pub fn is_over(state: v1::JobState) -> bool {
    use v1::JobState as S;
    match state {
        S::Unspecified | S::Pending | S::Configuring | S::Running | S::Suspended => false,
        S::Completing
        | S::Completed
        | S::Failed
        | S::Cancelled
        | S::Timeout
        | S::Preempted
        | S::NodeFail
        | S::OutOfMemory => true,
    }
}

fn show(session: &v1::Session, progress: &mut Progress) {
    let Some(job) = &session.job else { return };
    let reason = visible(if job.reason.is_empty() {
        &session.reason
    } else {
        &job.reason
    });
    if job.state() == v1::JobState::Pending {
        let columns = terminal::stderr_columns().unwrap_or(usize::MAX);
        let left = columns.saturating_sub(BEFORE_LINE);
        // A line for each change of what is said, not of the time that is left.
        progress.show(
            &pending(job, &reason, None, usize::MAX),
            &pending(job, &reason, time_left(job), left),
        );
    } else {
        let steps: Vec<_> = job
            .nodes
            .iter()
            .filter(|n| !n.progress.is_empty())
            .map(step)
            .collect();
        let text = match (steps.is_empty(), reason.is_empty()) {
            (false, _) => format!("Starting job {}: {}", job.id, steps.join(", ")),
            (true, false) => format!("Starting job {}: {reason}", job.id),
            (true, true) => format!("Starting job {}", job.id),
        };
        // A percentage that grows is not worth a line each time.
        let key: String = text
            .chars()
            .filter(|c| !c.is_ascii_digit() && *c != '.')
            .collect();
        progress.show(&key, &text);
    }
}

/// How long a job waits at most, as it is promised.
fn time_left(job: &v1::Job) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let left = job.latest_start_ms? - i64::try_from(now.as_millis()).ok()?;
    Some(Duration::from_millis(u64::try_from(left).unwrap_or(0)))
}

/// Why a job waits, and how long at most, in so many columns if there are words for that; else in the fewest words,
/// with the reason last, since a terminal cuts the end off.
fn pending(job: &v1::Job, reason: &str, left: Option<Duration>, columns: usize) -> String {
    let place = (job.queue_position > 0).then(|| units::ordinal(job.queue_position));
    let time = left.map(|left| format!("about {}", units::about(left)));
    // What follows Slurm's word says it in full.
    let in_words = reason.split_once(": ").map_or(reason, |(_, words)| words);
    let line = |head: String, place: Option<String>, reason: &str| {
        let facts: Vec<String> = [head].into_iter().chain(place).chain(time.clone()).collect();
        let mut facts = facts
            .into_iter()
            .filter(|fact| !fact.is_empty())
            .collect::<Vec<_>>()
            .join(", ");
        if !reason.is_empty() {
            facts += ": ";
            facts += reason;
        }
        facts
    };
    let in_the_queue = place.as_ref().map(|place| format!("{place} in the queue"));
    let full = line(
        format!("Pending job allocation {}", job.id),
        in_the_queue.clone(),
        reason,
    );
    if full.chars().count() <= columns {
        return full;
    }
    let shorter = line(format!("Job {} waits", job.id), place.clone(), in_words);
    if shorter.chars().count() <= columns || columns >= WIDE {
        return shorter;
    }
    line(String::new(), place, in_words)
}

/// How far a node is: "h100-01: pulling image, 34 %".
fn step(node: &v1::NodeAllocation) -> String {
    let progress = visible(&node.progress);
    let named = progress
        .strip_prefix(node.node.as_str())
        .is_some_and(|rest| rest.starts_with(':'));
    if named {
        progress
    } else {
        format!("{}: {progress}", node.node)
    }
}

/// A session that has been removed: its job tells why.
async fn gone(client: &mut Client, mut session: v1::Session, job: u64) -> v1::Session {
    if let Ok(last) = client.get_job(request(&JobId(job).into())).await {
        session.job = Some(last.into_inner());
    }
    session.set_state(v1::SessionState::Stopped);
    session
}

/// Why a job ended, for people: "job 17 reached its time limit".
pub fn ending(job: &v1::Job) -> String {
    use v1::JobState as S;
    let what = match job.state() {
        S::Timeout => "reached its time limit",
        S::Cancelled => "was stopped",
        S::Failed => "failed",
        S::NodeFail => "was lost with its node",
        S::OutOfMemory => "ran out of memory",
        S::Preempted => "was preempted",
        S::Completing | S::Completed => "has ended",
        S::Unspecified | S::Pending | S::Configuring | S::Running | S::Suspended => "is over",
    };
    let (reason, called) = (
        visible(&job.reason),
        view::label(job.id, job.array.as_ref(), job.state()),
    );
    if reason.is_empty() {
        format!("job {called} {what}")
    } else {
        format!("job {called} {what}: {reason}")
    }
}

/// The error when a session did not come to run.
pub fn over_error(session: &v1::Session) -> CliError {
    match &session.job {
        Some(job) => CliError::failed(ending(job)).hint(format!("`carrel explain {}` says more", job.id)),
        None => CliError::failed(format!("session {} is stopped: {}", session.name, session.reason)),
    }
}

/// Something that a watcher saw.
enum Event {
    Now(Box<v1::Session>),
    Gone,
    Away,
}

/// Follows a session over broken connections and restarts of the broker.
struct Watcher {
    client: Client,
    name: String,
    stream: Option<tonic::Streaming<v1::Session>>,
    retry: Duration,
    pause: Option<tokio::time::Instant>,
}

impl Watcher {
    fn new(client: Client, session: &v1::Session) -> Self {
        Self {
            client,
            name: id_of(session),
            stream: None,
            retry: RETRY_FIRST,
            pause: None,
        }
    }

    /// The next event. Safe to cancel: what is half done is begun again, and nothing is lost,
    /// since a watch begins with the session as it is.
    async fn next(&mut self) -> Result<Event> {
        sleep_until_past(self.pause).await;
        self.pause = None;
        if self.stream.is_none() {
            let request = v1::GetSessionRequest {
                name: self.name.clone(),
            };
            match self.client.watch_session(request).await {
                Ok(response) => self.stream = Some(response.into_inner()),
                Err(status) => return self.broken(status),
            }
        }
        let Some(stream) = &mut self.stream else {
            return Ok(Event::Away);
        };
        match stream.message().await {
            Ok(Some(session)) => {
                self.retry = RETRY_FIRST;
                Ok(Event::Now(Box::new(session)))
            }
            // Ended: removed, or the broker stops; the next watch tells which.
            Ok(None) => {
                self.stream = None;
                self.pause();
                Ok(Event::Away)
            }
            Err(status) => self.broken(status),
        }
    }

    fn broken(&mut self, status: tonic::Status) -> Result<Event> {
        self.stream = None;
        match status.code() {
            Code::NotFound => Ok(Event::Gone),
            code if is_passing(code) => {
                self.pause();
                Ok(Event::Away)
            }
            _ => Err(status.into()),
        }
    }

    fn pause(&mut self) {
        self.pause = Some(tokio::time::Instant::now() + self.retry);
        self.retry = (self.retry * 2).min(RETRY_LAST);
    }
}

async fn sleep_until_past(time: Option<tokio::time::Instant>) {
    if let Some(time) = time {
        tokio::time::sleep_until(time).await;
    }
}

/// A connection that broke or a broker that restarts; not an answer.
pub fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::Cancelled | Code::Unknown | Code::Aborted | Code::DeadlineExceeded
    )
}

/// What names exactly this session, whatever is renamed or made anew.
pub fn id_of(session: &v1::Session) -> String {
    format!("#{}", session.id)
}

/// Opens a session, again while the broker is away: the request's key sees that one is opened.
pub async fn open_session(
    client: &mut Client,
    request: v1::OpenSessionRequest,
) -> Result<v1::OpenSessionResponse> {
    let begun = tokio::time::Instant::now();
    let mut retry = RETRY_FIRST;
    loop {
        match client.open_session(request.clone()).await {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) if status.code() == Code::Unavailable && begun.elapsed() < REQUEST_PATIENCE => {
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(RETRY_LAST);
            }
            Err(status) => return Err(status.into()),
        }
    }
}

/// Submits a batch job, again while the broker is away: the request's key sees that it is one.
pub async fn submit_job(client: &mut Client, request: v1::SubmitJobRequest) -> Result<v1::Job> {
    let begun = tokio::time::Instant::now();
    let mut retry = RETRY_FIRST;
    loop {
        match client.submit_job(request.clone()).await {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) if is_passing(status.code()) && begun.elapsed() < REQUEST_PATIENCE => {
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(RETRY_LAST);
            }
            Err(status) => return Err(status.into()),
        }
    }
}

/// A job as it is now, asked for again while the broker is away.
pub async fn patiently(client: &mut Client, name: &JobRef) -> Result<v1::Job> {
    let begun = tokio::time::Instant::now();
    loop {
        match client.get_job(request(name)).await {
            Ok(job) => return Ok(job.into_inner()),
            Err(status) if is_passing(status.code()) && begun.elapsed() < REQUEST_PATIENCE => {
                tokio::time::sleep(RETRY_FIRST).await;
            }
            Err(status) => return Err(status.into()),
        }
    }
}

/// Waits until a job is over, or all tasks of an array, for as long as the broker is away as well. Inside a job there is
/// no watching, and it is asked for now and then.
pub async fn until_over(client: &mut Client, name: &JobRef, inside: bool) -> Result<v1::Job> {
    const AGAIN: Duration = Duration::from_secs(1);
    if !inside {
        return watch_until(client, name, |job| job.ended_ms.is_some()).await;
    }
    loop {
        match client.get_job(request(name)).await {
            Ok(job) if job.get_ref().ended_ms.is_some() => return Ok(job.into_inner()),
            Ok(_) => {}
            Err(status) if is_passing(status.code()) => {}
            Err(status) => return Err(status.into()),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Waits until a job is in another state than it was, or waits for another run.
pub async fn until_changed(client: &mut Client, name: &JobRef, was: &v1::Job) -> Result<()> {
    let differs = |job: &v1::Job| job.state != was.state || job.restarts != was.restarts;
    watch_until(client, name, differs).await.map(drop)
}

async fn watch_until(
    client: &mut Client,
    name: &JobRef,
    is_it: impl Fn(&v1::Job) -> bool,
) -> Result<v1::Job> {
    let mut retry = RETRY_FIRST;
    loop {
        let status = match client.watch_job(request(name)).await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(job)) if is_it(&job) => return Ok(job),
                        Ok(Some(_)) => retry = RETRY_FIRST,
                        Ok(None) => break None,
                        Err(status) => break Some(status),
                    }
                }
            }
            Err(status) => Some(status),
        };
        if let Some(status) = status
            && !is_passing(status.code())
        {
            return Err(status.into());
        }
        tokio::time::sleep(retry).await;
        retry = (retry * 2).min(RETRY_LAST);
    }
}

/// Stops a session's job, again while the broker is away, or says that the command that it was there for has ended
/// with a code. One that is over already is no error.
pub async fn stop_job(client: &mut Client, session: &v1::Session, job: u64, code: Option<u8>) -> Result<()> {
    let begun = tokio::time::Instant::now();
    let mut retry = RETRY_FIRST;
    loop {
        let request = v1::StopSessionRequest {
            name: id_of(session),
            job,
            exit_code: code.map(u32::from),
        };
        match client.stop_session(request).await {
            Ok(_) => return Ok(()),
            Err(status) => match status.code() {
                Code::NotFound | Code::FailedPrecondition => return Ok(()),
                code if is_passing(code) && begun.elapsed() < REQUEST_PATIENCE => {
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(RETRY_LAST);
                }
                _ => {
                    let hint = format!("it may still hold its GPUs: carrel stop {}", session.name);
                    let error = CliError::from(status);
                    let message = format!("job {job} could not be stopped: {}", error.message);
                    return Err(CliError::new(error.kind, message).hint(hint));
                }
            },
        }
    }
}

/// The session of a response; every broker sends one.
pub fn session_of(response: v1::OpenSessionResponse) -> Result<(v1::Session, bool)> {
    let session = response
        .session
        .ok_or_else(|| CliError::failed("the broker's answer holds no session"))?;
    Ok((session, response.started))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place, the time and the beginning of the reason stand on any terminal.
    #[test]
    fn a_wait_is_told_in_what_room_there_is() {
        let job = v1::Job {
            id: 14,
            queue_position: 1,
            ..v1::Job::default()
        };
        let reason = "Resources: no 2 free GPUs joined by NVLink on 2 nodes, not in --nodelist on 3 nodes";
        let told = |columns: usize| {
            let line = pending(&job, reason, Some(Duration::from_mins(20)), columns);
            line.chars().take(columns).collect::<String>()
        };
        assert_eq!(
            told(usize::MAX),
            format!("Pending job allocation 14, 1st in the queue, about 20 min: {reason}")
        );
        assert_eq!(
            told(74),
            "Job 14 waits, 1st, about 20 min: no 2 free GPUs joined by NVLink on 2 node"
        );
        assert_eq!(told(34), "1st, about 20 min: no 2 free GPUs ");
        let untold = pending(&job, "", None, usize::MAX);
        assert_eq!(untold, "Pending job allocation 14, 1st in the queue");
    }
}
