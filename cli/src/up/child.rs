//! A program that `carrel up` runs beside it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::context;
use crate::error::{CliError, Context as _, Result};

/// How many of a log's last lines are shown when its program dies.
const LAST_LINES: usize = 15;

/// A running program with its log.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    log: PathBuf,
    child: Child,
}

impl Program {
    /// Starts it, out of reach of the terminal's signals, its output in `log`.
    pub fn start(name: &'static str, path: &Path, args: &[OsString], log: PathBuf) -> Result<Self> {
        Self::start_with(name, path, args, &[], log)
    }

    fn start_with(
        name: &'static str,
        path: &Path,
        args: &[OsString],
        env: &[(&str, &str)],
        log: PathBuf,
    ) -> Result<Self> {
        let what = format!("cannot start {}", path.display());
        let file = std::fs::File::create(&log).context(format_args!("cannot write {}", log.display()))?;
        let mut command = Command::new(path);
        command
            .args(args)
            .stdin(Stdio::null())
            .stderr(file.try_clone().context(&what)?)
            .stdout(file);
        command
            .envs(env.iter().copied())
            .process_group(0)
            .kill_on_drop(true);
        end_with_parent(&mut command);
        let child = command.spawn().context(&what)?;
        Ok(Self { name, log, child })
    }

    /// The error that it has ended, with the last words of its log; none while it runs.
    pub fn death(&mut self) -> Option<CliError> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(self.ended(status)),
            Ok(None) | Err(_) => None,
        }
    }

    /// Waits until it ends by itself. Safe to cancel.
    pub async fn ended_by_itself(&mut self) -> CliError {
        match self.child.wait().await {
            Ok(status) => self.ended(status),
            Err(error) => CliError::failed(format!("cannot wait for {}: {error}", self.name)),
        }
    }

    fn ended(&self, status: ExitStatus) -> CliError {
        let last = last_lines(&self.log);
        let last = if last.is_empty() {
            String::new()
        } else {
            format!(":\n{last}")
        };
        CliError::failed(format!("the {} has ended ({status}){last}", self.name))
            .hint(format!("its log is {}", self.log.display()))
    }

    /// Asks it to end; kills it when it has not within `patience`.
    pub async fn end(&mut self, patience: Duration) {
        let Some(pid) = self.child.id().and_then(|id| i32::try_from(id).ok()) else {
            return;
        };
        let pid = nix::unistd::Pid::from_raw(pid);
        // One that has ended meanwhile is what is wanted.
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok();
        if tokio::time::timeout(patience, self.child.wait()).await.is_err() {
            self.child.kill().await.ok();
        }
    }
}

/// Runs a program to its end, its output in `log`. What nobody else may see goes into `env`.
pub async fn run(
    name: &'static str,
    path: &Path,
    args: &[OsString],
    env: &[(&str, &str)],
    log: PathBuf,
) -> Result<()> {
    let mut program = Program::start_with(name, path, args, env, log)?;
    let status = program
        .child
        .wait()
        .await
        .context(format_args!("cannot wait for {name}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(program.ended(status))
    }
}

/// One of Carrel's programs: in `$CARREL_PROGRAMS`, next to this one, or on the path.
pub fn find(name: &str) -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("CARREL_PROGRAMS") {
        let path = Path::new(&dir).join(name);
        let missing =
            || CliError::failed(format!("{} is not there", path.display())).hint("see CARREL_PROGRAMS");
        return if path.is_file() { Ok(path) } else { Err(missing()) };
    }
    let own = context::carrel()?;
    if let Some(beside) = own
        .parent()
        .map(|dir| dir.join(name))
        .filter(|path| path.is_file())
    {
        return Ok(beside);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            CliError::failed(format!(
                "{name} is neither beside {} nor on the path",
                own.display()
            ))
            .hint("`cargo build` makes all of Carrel's programs; packages install them together")
        })
}

fn last_lines(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(LAST_LINES);
    lines[from..]
        .iter()
        .map(|line| format!("  {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Nothing is left when this program is killed outright.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn end_with_parent(command: &mut Command) {
    let set = || {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
        Ok(())
    };
    // SAFETY: the closure makes one system call, prctl(2), which is async-signal-safe, and touches
    // no memory that other threads of the forked process could have left locked.
    unsafe {
        command.pre_exec(set);
    }
}

#[cfg(not(target_os = "linux"))]
fn end_with_parent(_command: &mut Command) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_dies_shows_its_last_words() {
        let temp = tempfile::tempdir().unwrap();
        let args = [
            "-c".into(),
            "echo starting; echo no such device >&2; exit 3".into(),
        ];
        let error = run("agent", Path::new("/bin/sh"), &args, &[], temp.path().join("log"))
            .await
            .unwrap_err();
        assert!(error.message.contains("no such device"), "{error}");
        assert!(error.message.contains("exit status: 3"), "{error}");
    }

    #[tokio::test]
    async fn a_program_that_ignores_the_request_is_killed() {
        let temp = tempfile::tempdir().unwrap();
        let ready = temp.path().join("ready");
        let script = format!(
            "trap '' TERM; touch {}; while :; do sleep 0.1; done",
            ready.display()
        );
        let args = ["-c".into(), script.into()];
        let mut program =
            Program::start("agent", Path::new("/bin/sh"), &args, temp.path().join("log")).unwrap();
        while !ready.exists() {
            assert!(program.death().is_none());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        program.end(Duration::from_millis(50)).await;
        assert!(program.death().is_some());
    }
}
