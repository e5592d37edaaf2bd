//! Plugins that run on though their agent has died.
//!
//! What one of them does to a container's network would meet what the next agent does to it: an address that is given
//! out just after it was taken back. So each plugin holds a lock, with all programs that it starts, until it has ended,
//! and the next agent waits for them before it does anything to a network.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

/// How long they are waited for: they take some milliseconds, on a host that swaps seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks.
const POLL: Duration = Duration::from_millis(10);

/// The plugins of a state directory that run.
pub(super) struct UnderWay(PathBuf);

impl UnderWay {
    pub fn new(state_dir: &Path) -> Self {
        Self(state_dir.join("cni.lock"))
    }

    /// Has a program that is about to be started hold the lock, until it and whatever it starts have ended.
    pub fn held_by(&self, command: &mut Command) -> Result<()> {
        let lock = self.open()?;
        lock.lock_shared()
            .with_context(|| format!("locking {}", self.0.display()))?;
        stays_open(command, lock);
        Ok(())
    }

    /// Waits until none runs.
    pub async fn over(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_over()? {
            if Instant::now() > deadline {
                bail!(
                    "CNI plugins of an agent before this one have not ended within {} s",
                    PATIENCE.as_secs()
                );
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    fn is_over(&self) -> Result<bool> {
        match self.open()?.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("locking {}", self.0.display()))
            }
        }
    }

    fn open(&self) -> Result<File> {
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.0);
        opened.with_context(|| format!("opening {}", self.0.display()))
    }
}

/// A program inherits a file that no other one does.
#[allow(unsafe_code)]
fn stays_open(command: &mut Command, file: File) {
    // SAFETY: fcntl(2) is async-signal-safe and touches no memory of ours.
    unsafe {
        command.pre_exec(move || {
            fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty()))
                .map(drop)
                .map_err(std::io::Error::from)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// Also the programs of a program, when that one has died.
    #[tokio::test]
    async fn what_runs_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let under_way = UnderWay::new(dir.path());
        assert!(under_way.is_over().expect("a lock"));
        let mut command = Command::new("setsid");
        command.args(["--fork", "cat"]).stdin(Stdio::piped());
        under_way.held_by(&mut command).expect("a lock");
        let mut child = command.spawn().expect("setsid is there");
        drop(command);
        let input = child.stdin.take();
        assert!(child.wait().await.expect("its end").success());
        assert!(!under_way.is_over().expect("a lock"), "its child runs");
        drop(input);
        under_way.over().await.expect("its end");
    }
}
