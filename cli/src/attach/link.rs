//! One connection to a terminal: the system's SSH client as a child, its output watched.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use carrel_core::terminal::{Mark, Marks, Request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use super::follower::Follower;
use super::said::Said;
use crate::error::{Context as _, Result};
use crate::shell::{REPORT_VARIABLE, Reported, SSH_FAILED, reported, terminate};
use crate::signals::{Signal, Signals};
use crate::ssh::alias;
use crate::ssh::client::{Route, cannot_start};
use crate::stdio;

/// Read from ssh at once.
const READ: usize = 64 * 1024;
/// How long ssh's stderr is read after its end: its proxy holds it a moment longer.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The terminal's command ended.
    Exited(Exit),
    /// The session would not show it: why.
    Refused(String),
    /// The person left it, by SSH's `~.`.
    Left,
    /// It broke, or never was: why.
    Lost(String),
    /// This program was told to end.
    Signal(Signal),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(u8),
    /// By a signal of this number.
    Signal(i32),
}

/// Shows a terminal until the connection ends. `quiet`: nobody wants to know why it does not come
/// about. `attached` is called when it has.
pub async fn run(
    route: &Route,
    request: &Request,
    quiet: bool,
    follower: &mut Follower,
    signals: &mut Signals,
    attached: impl FnMut(),
) -> Result<End> {
    let report = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    let host = alias::name_of(&route.session);
    // At this level it says whether the person or the network ended the connection.
    let mut ssh = Command::from(route.command_at("INFO")?);
    ssh.args(["-t", "-s", "--", &host]).arg(request.to_string());
    ssh.env(REPORT_VARIABLE, report.path());
    ssh.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = ssh.spawn().map_err(|error| cannot_start(&error))?;
    let mut link = Link {
        follower,
        attached,
        marks: Marks::default(),
        said: Said::new(&host, quiet),
        exit: None,
        refused: None,
        shown: Bytes::new(),
    };
    match link.follow(&mut child, signals).await? {
        Ended::Signal(signal) => Ok(End::Signal(signal)),
        Ended::Status(status) => Ok(link.end(status, reported(report.path()))),
    }
}

enum Ended {
    Status(ExitStatus),
    Signal(Signal),
}

struct Link<'a, F> {
    follower: &'a mut Follower,
    attached: F,
    marks: Marks,
    said: Said,
    exit: Option<Exit>,
    refused: Option<String>,
    /// On its way to the user's terminal.
    shown: Bytes,
}

impl<F: FnMut()> Link<'_, F> {
    async fn follow(&mut self, child: &mut Child, signals: &mut Signals) -> Result<Ended> {
        let mut output = child.stdout.take();
        let mut errors = child.stderr.take();
        let mut terminal = stdio::output();
        let (mut read, mut heard) = (BytesMut::new(), BytesMut::new());
        let mut status = None;
        let mut last_moment = None;
        loop {
            if errors.is_none() && !self.follower.is_attached() {
                // Nothing will say where it belongs.
                output = None;
            }
            if let Some(status) = status
                && self.shown.is_empty()
                && output.is_none()
                && errors.is_none()
            {
                return Ok(Ended::Status(status));
            }
            // Output is taken once it is known where it belongs.
            let reads = self.shown.is_empty() && self.follower.is_attached();
            // Every arm is safe to cancel: reads happen whole or not at all, what is half written
            // stays in `shown`, and a child's exit and signals are kept until they are taken.
            tokio::select! {
                length = fill(&mut errors, &mut heard) => {
                    if length == 0 {
                        errors = None;
                    }
                    self.hear(&heard.split());
                }
                length = fill(&mut output, &mut read), if reads => {
                    if length == 0 {
                        output = None;
                    }
                    self.follower.output(&read);
                    self.shown = [&self.shown[..], &read.split()].concat().into();
                }
                written = terminal.write(&self.shown), if !self.shown.is_empty() => {
                    match written {
                        Ok(count) if count > 0 => self.shown.advance(count),
                        // Nobody looks any more: a hangup is on its way.
                        Ok(_) | Err(_) => self.shown.clear(),
                    }
                    if self.shown.is_empty() {
                        terminal.flush().await.ok();
                    }
                }
                exited = child.wait(), if status.is_none() => {
                    status = Some(exited.context("cannot wait for ssh")?);
                    last_moment = Some(tokio::time::Instant::now() + AFTERWARDS);
                }
                () = until(last_moment) => {
                    last_moment = None;
                    errors = None;
                }
                signal = signals.next() => {
                    // At a terminal in raw mode the key goes to the session; what comes here, a
                    // `kill`, is not for it.
                    if signal == Signal::Interrupt && self.follower.is_attached() {
                        continue;
                    }
                    terminate(child);
                    child.wait().await.context("cannot wait for ssh")?;
                    return Ok(Ended::Signal(signal));
                }
            }
        }
    }

    /// Takes in what comes on ssh's stderr.
    fn hear(&mut self, heard: &[u8]) {
        let (marks, rest) = self.marks.take(heard);
        self.said.take(&rest, self.follower.is_attached());
        for mark in marks {
            match &mark {
                Mark::At { .. } => {
                    let first = !self.follower.is_attached();
                    let before = self.follower.place(&mark);
                    if first {
                        (self.attached)();
                        self.shown = before.into();
                    }
                }
                Mark::Exited { status, signal: 0 } => {
                    self.exit = Some(Exit::Code(u8::try_from(*status).unwrap_or(SSH_FAILED)));
                }
                Mark::Exited { signal, .. } => self.exit = Some(Exit::Signal(*signal)),
                Mark::Refused(reason) => self.refused = Some(reason.clone()),
            }
        }
    }

    fn end(self, status: ExitStatus, reported: Option<Reported>) -> End {
        if let Some(reason) = self.refused {
            return End::Refused(reason);
        }
        if let Some(exit) = self.exit {
            return End::Exited(exit);
        }
        if let Some(Reported::NoConnection(why) | Reported::Broken(why)) = reported {
            return End::Lost(why);
        }
        let attached = self.follower.is_attached();
        match (status.code().map(u8::try_from), self.said.last()) {
            (Some(Ok(code)), _) if attached && code != SSH_FAILED => End::Exited(Exit::Code(code)),
            (_, Some(why)) => End::Lost(why),
            (Some(_), None) if attached && self.said.is_closed() => End::Left,
            (Some(_), None) => End::Lost("the SSH client ended".into()),
            (None, None) => {
                let signal = status.signal().unwrap_or(0);
                End::Lost(format!("the SSH client was ended by signal {signal}"))
            }
        }
    }
}

/// Reads some; 0: the end. Never, if there is nothing to read from. Safe to cancel.
async fn fill(from: &mut Option<impl tokio::io::AsyncRead + Unpin>, into: &mut BytesMut) -> usize {
    into.reserve(READ);
    match from {
        Some(pipe) => pipe.read_buf(into).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}

async fn until(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
