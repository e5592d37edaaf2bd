//! What is kept: one SQLite file. Nothing is acknowledged before [`Store::commit`] has returned.

mod audit;
mod error;
mod history;
mod load;
mod migrate;
mod newest;
mod runs;
mod usage;
mod write;

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use carrel_core::broker::Change;
use rusqlite::{Connection, TransactionBehavior};

pub use audit::{AUDIT_PAGE, AuditFilter, AuditLog, AuditRow};
pub use error::StoreError;
pub use history::{Entry, History, HistoryFilter, HistoryPage, Place};
pub use migrate::SCHEMA_VERSION;
pub use usage::{By, UsageFilter, UsageKey, UsageSum};

/// The store's file in the state directory.
pub const STORE_FILE: &str = "broker.db";
/// Prepared statements kept: all of them.
const STATEMENTS: usize = 48;
/// Pages of the write-ahead log (4 KiB each) before they are moved into the
/// main file. From then on the log is overwritten instead of growing, which
/// makes a commit faster by a third (ext4): soon, at 4 MiB.
const CHECKPOINT_PAGES: u32 = 1024;

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens the store of a state directory, makes it if there is none, and
    /// brings it to this program's schema.
    ///
    /// The caller holds the directory's lock.
    pub fn open(state: &Path) -> Result<Self, StoreError> {
        let path = state.join(STORE_FILE);
        make_private(&path).map_err(|error| StoreError::Open {
            path: path.clone(),
            error,
        })?;
        let connection = Connection::open(&path).map_err(|error| StoreError::Failed {
            path: path.clone(),
            error,
        })?;
        let mut store = Self { connection, path };
        store.prepare().map_err(|error| store.failure(error))?;
        migrate::migrate(&mut store)?;
        Ok(store)
    }

    /// Every entity, in any order.
    pub fn load(&self) -> Result<Vec<Change>, StoreError> {
        load::load(self)
    }

    /// Keeps all changes or none; after success they are on disk.
    pub fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        match self.write(changes) {
            Ok(()) => Ok(()),
            Err(write::WriteError::Sqlite(error)) => Err(self.failure(error)),
            Err(write::WriteError::Encode(error)) => Err(error.into()),
        }
    }

    /// What to tell who asks for a change while there is no room.
    pub fn no_room(&self) -> String {
        format!(
            "the disk of the broker's state directory ({}) is full",
            self.path.with_file_name("").display()
        )
    }

    fn write(&mut self, changes: &[Change]) -> Result<(), write::WriteError> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        for change in newest::newest(changes) {
            write::write(&transaction, change)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn prepare(&self) -> rusqlite::Result<()> {
        let connection = &self.connection;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        // An operator's shell may read along, or make a backup, for a moment.
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "trusted_schema", "OFF")
    }

    fn failure(&self, error: rusqlite::Error) -> StoreError {
        error::classify(&self.connection, self.path.clone(), error)
    }
}

/// SQLite gives its other files the mode of the main one.
fn make_private(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))
}
