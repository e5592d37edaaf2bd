//! A shell or a command in a session, through the system's SSH client as a child.

use std::os::unix::process::ExitStatusExt as _;

use tokio::process::{Child, Command};

use crate::error::{CliError, Context as _, Result};
use crate::signals::{Signal, Signals};
use crate::ssh::alias;
use crate::ssh::client::{Route, cannot_start, shell_word};
use crate::terminal;

/// Names the file in which `carrel proxy` leaves how its stream ended.
pub const REPORT_VARIABLE: &str = "CARREL_PROXY_REPORT";
/// ssh's exit code when it, and not the command, failed.
pub const SSH_FAILED: u8 = 255;

/// How a shell was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// It, or its command, exited, with this code or 128 + signal.
    Exited(u8),
    /// No connection was made: why.
    NoConnection(String),
    /// The connection broke: why.
    Broken(String),
    /// This program was told to end.
    Signal(Signal),
}

/// Runs a shell (no `command`) or a command, with a terminal where a person is at both ends.
pub async fn run(route: &Route, command: &[String], signals: &mut Signals) -> Result<Left> {
    let report = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    let mut ssh = Command::from(route.command()?);
    ssh.arg(if terminal::is_interactive() { "-t" } else { "-T" });
    ssh.arg("--").arg(alias::name_of(&route.session));
    if !command.is_empty() {
        ssh.arg(command_line(command));
    }
    ssh.env(REPORT_VARIABLE, report.path());
    let mut child = ssh.spawn().map_err(|error| cannot_start(&error))?;
    let status = loop {
        // Both arms are safe to cancel: a child's exit and signals are kept until they are taken.
        tokio::select! {
            status = child.wait() => break status.context("cannot wait for ssh")?,
            signal = signals.next() => match signal {
                // The terminal sent it to ssh as well, and ssh knows what to do.
                Signal::Interrupt => {}
                Signal::Terminate => {
                    terminate(&child);
                    child.wait().await.context("cannot wait for ssh")?;
                    return Ok(Left::Signal(signal));
                }
                Signal::HangUp => return Ok(Left::Signal(signal)),
            }
        }
    };
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(SSH_FAILED),
        (None, signal) => 128_u8.saturating_add(signal.and_then(|s| u8::try_from(s).ok()).unwrap_or(127)),
    };
    if code != SSH_FAILED {
        return Ok(Left::Exited(code));
    }
    Ok(match reported(report.path()) {
        Some(Reported::NoConnection(why)) => Left::NoConnection(why),
        Some(Reported::Broken(why)) => Left::Broken(why),
        None => Left::Exited(code),
    })
}

/// What a proxy has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reported {
    /// No connection was made.
    NoConnection(String),
    /// The connection broke.
    Broken(String),
}

/// Reads a proxy's report; `None`: it left none, since its connection ended in order.
pub fn reported(path: &std::path::Path) -> Option<Reported> {
    let said = std::fs::read_to_string(path).unwrap_or_default();
    match said.split_once(' ') {
        Some(("none", why)) => Some(Reported::NoConnection(why.trim().to_owned())),
        Some(("broken", why)) => Some(Reported::Broken(why.trim().to_owned())),
        Some(_) | None => None,
    }
}

/// A command line for the shell at the other end that runs exactly these words.
///
/// The `sh` around them turns a death by signal into 128 + signal, of which SSH's client would make
/// 255; it outlives Ctrl-C, which is the command's affair.
fn command_line(command: &[String]) -> String {
    let words = command
        .iter()
        .map(|word| shell_word(word))
        .collect::<Vec<_>>()
        .join(" ");
    format!(r#"sh -c 'trap : INT QUIT; "$@"; exit $?' sh {words}"#)
}

/// Tells an ssh to end.
pub fn terminate(child: &Child) {
    let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()) else {
        return;
    };
    // One that has just exited by itself is no error.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).ok();
}

/// What a proxy leaves for the `carrel` that started its ssh.
#[derive(Clone, Copy, Debug)]
pub enum Report<'a> {
    /// No connection was made.
    NoConnection(&'a str),
    /// The connection broke.
    Broken(&'a str),
}

/// Leaves a report, if a `carrel` above asked for one.
pub fn report(what: Report<'_>) -> Result<()> {
    let Some(path) = std::env::var_os(REPORT_VARIABLE) else {
        return Ok(());
    };
    let text = match what {
        Report::NoConnection(why) => format!("none {why}\n"),
        Report::Broken(why) => format!("broken {why}\n"),
    };
    std::fs::write(path, text).map_err(|e| CliError::failed(format!("cannot leave a report: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> std::process::Output {
        let line = command_line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        std::process::Command::new("sh")
            .arg("-c")
            .arg(line)
            .output()
            .expect("sh")
    }

    #[test]
    fn words_arrive_as_they_are() {
        let words = ["a b", "$HOME", "*", "'", "\"", "\\", "", ";", "A=1", "ü"];
        let output = run(&[&["printf", "<%s>"][..], &words].concat());
        let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[test]
    fn exit_codes_and_signals_come_back() {
        assert_eq!(run(&["sh", "-c", "exit 42"]).status.code(), Some(42));
        assert_eq!(run(&["sh", "-c", "kill -TERM $$"]).status.code(), Some(143));
        assert_eq!(
            run(&["sh", "-c", "kill -INT $PPID; exit 3"]).status.code(),
            Some(3)
        );
        assert_eq!(run(&["no-such-command"]).status.code(), Some(127));
    }
}
