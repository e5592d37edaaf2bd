//! What every command needs: the global options, the config, and the way to the broker.

use std::path::PathBuf;

use carrel_core::model::array::JobRef;
use carrel_core::model::ids::JobId;
use carrel_proto::v1;

use crate::config::Config;
use crate::connect::{self, Address, Client};
use crate::error::{CliError, Context as _, Kind, Result};
use crate::output::Format;
use crate::paths;

/// Options that every command takes.
#[derive(Clone, Debug, clap::Args)]
pub struct GlobalArgs {
    /// The broker: unix:/path/to/broker.sock or https://host:port
    #[arg(
        long,
        global = true,
        env = "CARREL_BROKER",
        value_name = "ADDRESS",
        help_heading = "Global options"
    )]
    pub broker: Option<Address>,
    /// How data is printed
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        help_heading = "Global options"
    )]
    pub output: Format,
}

/// The global options and the user's config.
#[derive(Debug)]
pub struct Context {
    globals: GlobalArgs,
    /// The user's config.
    pub config: Config,
}

impl Context {
    /// Reads the config.
    pub fn load(globals: GlobalArgs) -> Result<Self> {
        Ok(Self {
            globals,
            config: Config::load()?,
        })
    }

    /// Print JSON.
    pub fn json(&self) -> bool {
        match self.globals.output {
            Format::Json => true,
            Format::Text => false,
        }
    }

    /// Where the broker is.
    pub fn address(&self) -> Result<Address> {
        connect::find(self.globals.broker.as_ref(), &self.config)
    }

    /// Whether this runs inside a session and speaks to the broker as that session.
    pub fn is_inside(&self) -> bool {
        self.address().is_ok_and(|address| address.is_inside())
    }

    /// Connects to the broker.
    pub async fn client(&self) -> Result<Client> {
        connect::connect(&self.address()?).await
    }

    /// The user's SSH config file: `--ssh-config`, `CARREL_SSH_CONFIG`, the config, `~/.ssh/config`.
    pub fn ssh_config(&self, flag: Option<PathBuf>) -> Result<PathBuf> {
        match flag.or_else(|| self.config.ssh_config.clone()) {
            Some(path) => Ok(path),
            None => Ok(paths::home()?.join(".ssh/config")),
        }
    }
}

/// This program's own path, for aliases and child processes.
pub fn carrel() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own path")
}

/// A session, and a rank of its gang: `dev`, `dev.1`, `dev:1`, `dev.alice` (another user's), `dev.alice:1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// As the broker wants it.
    pub session: String,
    /// Rank; 0 when none is named.
    pub rank: u32,
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rank {
            0 => f.write_str(&self.session),
            rank => write!(f, "{}:{rank}", self.session),
        }
    }
}

impl std::str::FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (session, rank) = match text.rsplit_once([':', '.']) {
            Some((session, rank)) if !rank.is_empty() && rank.bytes().all(|b| b.is_ascii_digit()) => {
                (session, rank.parse().map_err(|_| format!("{rank} is no rank"))?)
            }
            Some(_) | None => (text, 0),
        };
        Ok(Self {
            session: parse_session(session)?,
            rank,
        })
    }
}

/// Checks what names a session: `dev`, `dev.alice`, `#12`.
pub fn parse_session(text: &str) -> Result<String, String> {
    if let Some(id) = text.strip_prefix('#') {
        return id
            .parse::<u64>()
            .map(|_| text.to_owned())
            .map_err(|_| format!("{text} is no session id"));
    }
    let (name, user) = text
        .split_once('.')
        .map_or((text, None), |(name, user)| (name, Some(user)));
    name.parse::<carrel_core::model::ids::SessionName>()
        .map_err(|e| e.to_string())?;
    if let Some(user) = user {
        user.parse::<carrel_core::model::ids::UserName>()
            .map_err(|e| e.to_string())?;
    }
    Ok(text.to_owned())
}

/// Checks the name of a session to be made.
pub fn parse_new_session(text: &str) -> Result<String, String> {
    text.parse::<carrel_core::model::ids::SessionName>()
        .map(|_| text.to_owned())
        .map_err(|e| e.to_string())
}

/// Asks for a job, an array or tasks of one.
pub fn request(name: &JobRef) -> v1::GetJobRequest {
    v1::GetJobRequest {
        id: name.job.0,
        tasks: name.tasks.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

/// What names a job: its id, or a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOrSession {
    /// A job, an array or tasks of one; or else a session whose name has only digits.
    Job(JobRef),
    /// A session.
    Session(String),
}

impl std::str::FromStr for JobOrSession {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<JobRef>() {
            Ok(name) => Ok(Self::Job(name)),
            Err(error) if text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('_') => {
                Err(error.to_string())
            }
            Err(_) => parse_session(text).map(Self::Session),
        }
    }
}

/// The session that is meant where none is named: the one that this runs in.
pub async fn own_session(context: &Context, client: &mut Client) -> Result<v1::Session> {
    if !context.is_inside() {
        return Err(CliError::usage("which session? Name it")
            .hint("`carrel ps -s` lists yours; inside a session, none named means that one"));
    }
    // It is all that a session sees.
    let request = v1::ListSessionsRequest { all_users: false };
    let sessions = client.list_sessions(request).await?.into_inner().sessions;
    sessions
        .into_iter()
        .next()
        .ok_or_else(|| CliError::new(Kind::NotFound, "the broker does not know this session any more"))
}

/// What is meant: by its name, or where none is given the session that this runs in.
pub async fn find(context: &Context, client: &mut Client, what: Option<&JobOrSession>) -> Result<Found> {
    match what {
        Some(what) => what.find(client).await,
        None => Ok(Found::Session(Box::new(own_session(context, client).await?))),
    }
}

/// What a [`JobOrSession`] was found to be.
pub enum Found {
    /// A job by its id.
    Job(Box<v1::Job>),
    /// A session by its name.
    Session(Box<v1::Session>),
}

impl JobOrSession {
    /// Asks the broker.
    pub async fn find(&self, client: &mut Client) -> Result<Found> {
        let name = match self {
            Self::Job(name) => match client.get_job(request(name)).await {
                Ok(job) => return Ok(Found::Job(Box::new(job.into_inner()))),
                Err(status) if status.code() == tonic::Code::NotFound && name.tasks.is_none() => {
                    name.to_string()
                }
                Err(status) => return Err(status.into()),
            },
            Self::Session(name) => name.clone(),
        };
        match client
            .get_session(v1::GetSessionRequest { name: name.clone() })
            .await
        {
            Ok(session) => Ok(Found::Session(Box::new(session.into_inner()))),
            Err(status) if status.code() == tonic::Code::NotFound => match self {
                Self::Job(name) => Err(CliError::new(
                    Kind::NotFound,
                    format!("there is no job or session {name}"),
                )
                .hint("`carrel ps` lists yours")),
                Self::Session(_) => match batch_job(client, &name).await? {
                    Some(job) => Ok(Found::Job(Box::new(job))),
                    None => Err(no_session(&name, status)),
                },
            },
            Err(status) => Err(status.into()),
        }
    }
}

/// The caller's batch job of a name: of those that are not over, or else of those that have ended lately, the only one.
///
/// # Errors
/// There are several.
async fn batch_job(client: &mut Client, name: &str) -> Result<Option<v1::Job>> {
    let request = v1::ListJobsRequest {
        all_users: false,
        ended: true,
    };
    let jobs = client.list_jobs(request).await?.into_inner().jobs;
    only_of(jobs, name)
}

fn only_of(mut jobs: Vec<v1::Job>, name: &str) -> Result<Option<v1::Job>> {
    jobs.retain(|job| job.session == 0 && job.name == name);
    if jobs.iter().any(|job| job.ended_ms.is_none()) {
        jobs.retain(|job| job.ended_ms.is_none());
    }
    if jobs.len() > 1 {
        const SHOWN: usize = 10;
        let ids: Vec<String> = jobs.iter().take(SHOWN).map(|job| job.id.to_string()).collect();
        let message = format!("{} batch jobs are called {name}: {}", jobs.len(), ids.join(", "));
        return Err(CliError::failed(message).hint("say which, by its id"));
    }
    Ok(jobs.pop())
}

impl Found {
    /// The job as it was named; of a session its live or last one.
    pub fn job(&self, named: Option<&JobOrSession>) -> Result<JobRef> {
        match (self, named) {
            (Self::Job(_), Some(JobOrSession::Job(name))) => Ok(name.clone()),
            (Self::Job(job), _) => Ok(JobId(job.id).into()),
            (Self::Session(session), _) => session
                .job
                .as_ref()
                .map(|job| JobId(job.id).into())
                .ok_or_else(|| CliError::failed(format!("session {} has had no job yet", session.name))),
        }
    }
}

/// The broker knows no such session; its own hint, if it has one, is better than ours.
pub fn no_session(name: &str, status: tonic::Status) -> CliError {
    let mut error = CliError::from(status);
    if error.kind == Kind::NotFound && error.hint.is_none() {
        error.hint = Some(format!(
            "`carrel ps` lists your sessions; `carrel open {name}` makes one"
        ));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_arrays_are_told_from_sessions() {
        for job in ["12", "12_3", "12_[3-7,9]"] {
            let read: JobOrSession = job.parse().expect(job);
            assert_eq!(read, JobOrSession::Job(job.parse().expect(job)));
        }
        assert_eq!("dev".parse(), Ok(JobOrSession::Session("dev".into())));
        let said = "12_[9-3]".parse::<JobOrSession>().expect_err("backwards");
        assert!(said.contains("runs backwards"), "{said}");
    }

    /// A name that several have is no guess.
    #[test]
    fn batch_jobs_are_found_by_a_name_that_is_theirs_alone() {
        let job = |id, name: &str, ended: bool, session| v1::Job {
            id,
            name: name.into(),
            ended_ms: ended.then_some(1),
            session,
            ..v1::Job::default()
        };
        let jobs = vec![
            job(1, "train", true, 0),
            job(2, "train", false, 0),
            job(3, "eval", true, 0),
            job(4, "eval", true, 0),
            job(5, "dev", false, 9),
        ];
        let found = |name| only_of(jobs.clone(), name).map(|job| job.map(|job| job.id));
        assert_eq!(found("train").expect("the live one"), Some(2));
        assert_eq!(found("dev").expect("a session's is found otherwise"), None);
        let several = found("eval").expect_err("two");
        assert!(several.message.contains("3, 4"), "{several:?}");
    }

    #[test]
    fn members_of_gangs() {
        let member = |session: &str, rank| {
            Ok(Member {
                session: session.into(),
                rank,
            })
        };
        assert_eq!("dev".parse(), member("dev", 0));
        assert_eq!("dev.1".parse(), member("dev", 1));
        assert_eq!("dev:12".parse(), member("dev", 12));
        assert_eq!("dev.alice".parse(), member("dev.alice", 0));
        assert_eq!("dev.alice:1".parse(), member("dev.alice", 1));
        assert_eq!("#7:1".parse(), member("#7", 1));
        for bad in ["", "Dev", "-x", "dev:", "dev.99999999999", "#x", "a b", "dev/.."] {
            assert!(bad.parse::<Member>().is_err(), "{bad}");
        }
    }
}
