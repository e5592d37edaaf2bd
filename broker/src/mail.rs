//! Sends mail to users of batch jobs: runs the operator's program, once for each mail.
//!
//! The core decides what is sent; nothing here changes the cluster's state, and the writer never waits for it: what does
//! not fit in the queue is dropped. Delivery is at most once by design, as with Slurm's `MailProg`: what waits when the
//! broker ends is lost, and a program that fails is not run again.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use carrel_core::broker::Mail;
use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStderr, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::limits::{MAIL_TIMEOUT, MAX_MAIL_PROGRAMS, MAX_WAITING_MAILS};

/// What is told of a program that fails, of what it wrote, bytes.
const MAX_COMPLAINT: usize = 1_024;
/// After its end a program's last words are read for so long.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Where programs that it starts are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Hands mail over to be sent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Mailer(Option<mpsc::Sender<Mail>>);

impl Mailer {
    /// Takes a mail; never waits.
    pub fn send(&self, mail: Mail) {
        let Some(waiting) = &self.0 else { return };
        if let Err(error) = waiting.try_send(mail) {
            let (mpsc::error::TrySendError::Full(mail) | mpsc::error::TrySendError::Closed(mail)) = error;
            tracing::warn!(
                job = mail.job.0,
                "a mail is dropped: {MAX_WAITING_MAILS} wait to be sent, or the broker stops"
            );
        }
    }
}

/// The service that sends; [`run`](Self::run) is its life.
#[derive(Debug)]
pub struct Sending {
    program: Option<PathBuf>,
    waiting: mpsc::Receiver<Mail>,
}

/// With the operator's program, if he named one.
pub fn start(program: Option<PathBuf>) -> (Mailer, Sending) {
    let (sender, waiting) = mpsc::channel(MAX_WAITING_MAILS);
    let mailer = Mailer(program.is_some().then_some(sender));
    (mailer, Sending { program, waiting })
}

impl Sending {
    /// Sends until cancelled; programs that run then are killed.
    pub async fn run(mut self, cancel: CancellationToken) {
        let Some(program) = self.program else { return };
        let mut running = JoinSet::new();
        loop {
            // Each arm only waits: a mail that is taken is sent.
            tokio::select! {
                mail = self.waiting.recv(), if running.len() < MAX_MAIL_PROGRAMS => {
                    let Some(mail) = mail else { return };
                    let program = program.clone();
                    running.spawn(async move {
                        match run_program(&program, &mail).await {
                            Ok(()) => tracing::debug!(job = mail.job.0, event = mail.event.name(), "a mail is sent"),
                            Err(error) => tracing::warn!(job = mail.job.0, event = mail.event.name(), "a mail is not sent: {error:#}"),
                        }
                    });
                }
                Some(_) = running.join_next() => {}
                () = cancel.cancelled() => return,
            }
        }
    }
}

/// Reads what a program complains of until nobody can any more: the first of it is kept.
async fn listen(stderr: Option<ChildStderr>, said: &mut Vec<u8>) {
    let Some(mut stderr) = stderr else { return };
    let mut chunk = [0; MAX_COMPLAINT];
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        let room = MAX_COMPLAINT.saturating_sub(said.len());
        said.extend_from_slice(&chunk[..count.min(room)]);
    }
}

/// `PROGRAM -s SUBJECT USER`, as Slurm runs it, with an empty body and the job's variables alone.
async fn run_program(program: &Path, mail: &Mail) -> Result<()> {
    let mut child = Command::new(program)
        .args(["-s", &mail.subject, &mail.to])
        .env_clear()
        .env("PATH", PATH)
        .envs(&mail.env)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{} cannot be started", program.display()))?;
    let group = child.id();
    let mut said = Vec::new();
    let ended = {
        let mut reading = pin!(listen(child.stderr.take(), &mut said));
        let ended = async {
            // Each arm may be cancelled: what is read stays read.
            tokio::select! {
                status = child.wait() => {
                    // Its last words; what it left behind may hold the pipe open for longer.
                    tokio::time::timeout(LAST_WORDS, &mut reading).await.ok();
                    status
                }
                () = &mut reading => child.wait().await,
            }
        };
        tokio::time::timeout(MAIL_TIMEOUT, ended).await
    };
    let Ok(status) = ended else {
        if let Some(group) = group.and_then(|group| i32::try_from(group).ok()) {
            let group = nix::unistd::Pid::from_raw(group);
            nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).ok();
        }
        bail!(
            "{} ran for longer than {} s and was killed",
            program.display(),
            MAIL_TIMEOUT.as_secs()
        );
    };
    let status = status.context("its end is not known")?;
    if !status.success() {
        let said = String::from_utf8_lossy(&said);
        let first = said.lines().next().unwrap_or_default().escape_debug();
        bail!("{} ended with {status}: {first}", program.display());
    }
    Ok(())
}
