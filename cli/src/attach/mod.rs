//! A terminal of a session, shown here until it ends or is left; attached again by itself when
//! the connection breaks.

mod follower;
mod link;
mod said;

use std::io::Write as _;
use std::time::Duration;

use carrel_core::terminal::{Attach, Request, Which};

pub use self::link::Exit;

use self::follower::Follower;
use self::link::End;
use crate::connect::{Address, Client};
use crate::error::Result;
use crate::progress::Progress;
use crate::signals::{Signal, Signals};
use crate::ssh::access::Access;
use crate::ssh::client::Route;
use crate::terminal::{is_interactive, say};
use crate::wait;

/// Wait before the second attempt in a row; doubled from one to the next.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Longest wait between attempts.
const RETRY_LAST: Duration = Duration::from_secs(5);
/// How long the broker is asked whether the job still runs, before the next attempt.
const QUESTION: Duration = Duration::from_secs(3);

/// How a terminal was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// Its command ended.
    Exited(Exit),
    /// It goes on: the person left by SSH's `~.`.
    Detached,
    /// It goes on: the person did not want to wait for a connection any more.
    GivenUp,
    /// Its job has ended.
    Over,
    /// The session would not show it: why.
    Refused(String),
    /// No connection was ever made: why.
    NoConnection(String),
    /// This program was told to end.
    Signal(Signal),
}

/// The way to terminals of a session.
#[derive(Debug)]
pub struct Way<'a> {
    /// The broker, and where it is.
    pub client: &'a mut Client,
    /// Where it is.
    pub address: &'a Address,
    /// To the session's node.
    pub route: Route,
}

/// Shows a terminal.
pub async fn run(way: &mut Way<'_>, mut asked: Attach, signals: &mut Signals) -> Result<Left> {
    asked.marks = true;
    let mut follower = Follower::default();
    let mut outage: Option<Outage> = None;
    loop {
        follower.connect(asked.seen);
        let request = Request::Attach(asked.clone());
        let quiet = outage.is_some();
        let back = || {
            if let Some(outage) = outage.take() {
                outage.over();
            }
        };
        let end = link::run(&way.route, &request, quiet, &mut follower, signals, back).await?;
        if follower.is_attached() && !matches!(end, End::Exited(_)) {
            // A screen that nobody draws on any more is given back.
            let mut stdout = std::io::stdout();
            stdout
                .write_all(&follower.leave())
                .and_then(|()| stdout.flush())
                .ok();
        }
        let why = match (end, follower.shown()) {
            (End::Exited(exit), _) => return Ok(Left::Exited(exit)),
            (End::Left, _) => return Ok(Left::Detached),
            (End::Refused(why), _) => return Ok(Left::Refused(why)),
            (End::Signal(Signal::Interrupt), Some(_)) => return Ok(Left::GivenUp),
            (End::Signal(signal), _) => return Ok(Left::Signal(signal)),
            (End::Lost(why), None) => return Ok(Left::NoConnection(why)),
            (End::Lost(why), Some(shown)) => {
                asked.which = Which::Number(shown.terminal);
                asked.job = Some(shown.job);
                asked.seen = follower.seen();
                way.route.start = false;
                why
            }
        };
        if !is_interactive() {
            // It broke because the window was closed, and there is nowhere to show it.
            return Ok(Left::Signal(Signal::HangUp));
        }
        let outage = outage.get_or_insert_with(|| Outage::begin(&way.route.session, &why));
        if let Some(left) = outage.pause(way, asked.job, &why, signals).await {
            return Ok(left);
        }
    }
}

/// A time without a connection.
struct Outage {
    progress: Progress,
    retry: Option<Duration>,
}

impl Outage {
    fn begin(session: &str, why: &str) -> Self {
        say(format_args!(
            "carrel: the connection to {session} is lost: {why}; reattaching (Ctrl-C gives up; what runs there goes on)"
        ));
        Self {
            progress: Progress::begin(),
            retry: None,
        }
    }

    /// Waits before the next attempt, the first time not at all. Gives how it was left, if there
    /// will be none.
    async fn pause(
        &mut self,
        way: &mut Way<'_>,
        job: Option<u64>,
        why: &str,
        signals: &mut Signals,
    ) -> Option<Left> {
        if self.retry.is_some() {
            self.progress.show(why, &format!("Reattaching: {why}"));
        }
        let preparing = async {
            tokio::time::sleep(self.retry.unwrap_or_default()).await;
            tokio::time::timeout(QUESTION, is_over(way, job))
                .await
                .unwrap_or(false)
        };
        // Safe to cancel: it only asks.
        let over = tokio::select! {
            over = preparing => over,
            signal = signals.next() => return Some(match signal {
                Signal::Interrupt => Left::GivenUp,
                Signal::Terminate | Signal::HangUp => Left::Signal(signal),
            }),
        };
        self.retry = Some(
            self.retry
                .map_or(RETRY_FIRST, |retry| (retry * 2).min(RETRY_LAST)),
        );
        over.then_some(Left::Over)
    }

    fn over(mut self) {
        self.progress.end();
        // ssh has the terminal in raw mode by now.
        drop(write!(std::io::stderr(), "carrel: reattached\r\n"));
    }
}

/// Whether the job is known to be over. Sees to the certificate as well, which may have expired.
async fn is_over(way: &mut Way<'_>, job: Option<u64>) -> bool {
    if let Some(id) = job {
        match way
            .client
            .get_job(crate::context::request(
                &carrel_core::model::ids::JobId(id).into(),
            ))
            .await
        {
            Ok(job) if wait::is_over(job.get_ref().state()) => return true,
            Err(status) if status.code() == tonic::Code::NotFound => return true,
            // A broker that is away says nothing about the session.
            Ok(_) | Err(_) => {}
        }
    }
    // Without it, ssh says what is wrong.
    drop(Access::prepare(way.client, way.address).await);
    false
}
