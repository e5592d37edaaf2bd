//! What can go wrong with the store.

use std::path::PathBuf;

use nix::errno::Errno;
use rusqlite::{Connection, ErrorCode, ffi};

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no room for the write. Nothing of it was kept; what was kept before is whole.
    #[error("the disk that holds {} is full ({reason})", path.display())]
    Full {
        /// The store's file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Another program's database.
    #[error("{} is not a Carrel store", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Written by a later version of this program.
    #[error(
        "{} has schema version {found}; this broker knows versions up to {known}: use the version of \
         Carrel that wrote it, or a later one",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// A record that cannot be read back.
    #[error("a record of table {table} in {} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The record's table.
        table: &'static str,
        /// What is wrong with it.
        #[source]
        error: serde_json::Error,
    },
    /// A record that cannot be written.
    #[error("a record cannot be encoded")]
    Encode(#[from] serde_json::Error),
    /// The file could not be made or opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: std::io::Error,
    },
    /// Anything else that SQLite says.
    #[error("the store {} failed", path.display())]
    Failed {
        /// The file.
        path: PathBuf,
        /// What it says.
        #[source]
        error: rusqlite::Error,
    },
}

/// Sorts an error of a write into a full disk and anything else.
pub(super) fn classify(connection: &Connection, path: PathBuf, error: rusqlite::Error) -> StoreError {
    let full = match error.sqlite_error() {
        Some(cause) if cause.code == ErrorCode::DiskFull => true,
        // A quota or a limit on the file's size comes as a failed write; a broken
        // disk does as well, and only the system's error number tells them apart.
        Some(cause) if is_write(cause.extended_code) => is_no_room(system_errno(connection)),
        _ => false,
    };
    if full {
        StoreError::Full {
            path,
            reason: error.to_string(),
        }
    } else {
        StoreError::Failed { path, error }
    }
}

fn is_write(extended_code: i32) -> bool {
    matches!(
        extended_code,
        ffi::SQLITE_IOERR_WRITE | ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_TRUNCATE
    )
}

fn is_no_room(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG)
}

#[allow(unsafe_code)]
fn system_errno(connection: &Connection) -> Errno {
    // SAFETY: the handle is that of an open connection, borrowed for the call;
    // the function only reads a number from it.
    let number = unsafe { ffi::sqlite3_system_errno(connection.handle()) };
    Errno::from_raw(number)
}
