//! One agent a state directory.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Others may pass through to what is theirs, and list nothing.
const DIRECTORY_MODE: u32 = 0o711;

/// A state directory that is ours until this is dropped, or the process dies.
#[derive(Debug)]
pub struct StateLock {
    _lock: Flock<fs::File>,
}

impl StateLock {
    /// Makes the directory if need be, and takes it.
    ///
    /// # Errors
    /// Another process has it: names the process.
    pub fn take(state: &Path) -> Result<Self> {
        let what = || format!("cannot use the state directory {}", state.display());
        fs::DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(state)
            .with_context(what)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(state.join("lock"))
            .with_context(what)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                lock.set_len(0)?;
                writeln!(lock, "{}", std::process::id()).with_context(what)?;
                Ok(Self { _lock: lock })
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                // Without the number the message is still true.
                file.read_to_string(&mut holder).ok();
                let holder = match holder.trim() {
                    "" => String::new(),
                    pid => format!(" (process {pid})"),
                };
                bail!(
                    "an agent{holder} uses {} already: stop it first, or give --state another directory",
                    state.display()
                )
            }
            Err((_, error)) => Err(error).with_context(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_told_of_the_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = StateLock::take(dir.path()).expect("taken");
        let error = StateLock::take(dir.path()).expect_err("refused").to_string();
        assert!(
            error.contains(&format!("process {}", std::process::id())),
            "{error}"
        );
        drop(first);
        StateLock::take(dir.path()).expect("free again");
    }
}
