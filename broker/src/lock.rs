//! One broker a state directory.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

const LOCK_FILE: &str = "lock";
/// Others may pass through to the socket, and see nothing.
const DIRECTORY_MODE: u32 = 0o711;

/// A state directory that is ours until this is dropped, or the process dies.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: Flock<fs::File>,
}

impl StateDir {
    /// Makes the directory if need be, and takes it.
    ///
    /// An error names the process that holds it.
    pub fn take(path: &Path) -> Result<Self> {
        let what = || format!("cannot use the state directory {}", path.display());
        if !path.exists() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(DIRECTORY_MODE)
                .create(path)
                .with_context(what)?;
            // Whatever the umask is.
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(DIRECTORY_MODE))
                .with_context(what)?;
        }
        // Absolute: what is handed to others must not depend on our working directory.
        let path = fs::canonicalize(path).with_context(what)?;
        let lock_file = path.join(LOCK_FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_file)
            .with_context(|| format!("cannot open {}", lock_file.display()))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                lock.set_len(0)?;
                writeln!(lock, "{}", std::process::id())
                    .with_context(|| format!("cannot write {}", lock_file.display()))?;
                Ok(Self { path, _lock: lock })
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                // Without the number the message is still true.
                file.read_to_string(&mut holder).ok();
                let holder = match holder.trim() {
                    "" => "another broker".to_owned(),
                    pid => format!("another broker (process {pid})"),
                };
                bail!(
                    "{holder} uses the state directory {}: stop it first, or give this one a --state of its own",
                    path.display()
                );
            }
            Err((_, error)) => Err(error).with_context(|| format!("cannot lock {}", lock_file.display())),
        }
    }

    /// The directory, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
