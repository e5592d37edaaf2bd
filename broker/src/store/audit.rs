//! Reading the audit log, beside the writer.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, Row, params};

use super::{STORE_FILE, StoreError};

/// Records of one page: a reader that falls behind holds no more of them.
pub const AUDIT_PAGE: usize = 500;

/// A record of the audit log, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// Grows from record to record.
    pub number: u64,
    /// When, Unix milliseconds.
    pub at_ms: i64,
    /// Who; empty: nobody who is known.
    pub user: String,
    /// From where.
    pub origin: String,
    /// What.
    pub action: String,
    /// To what.
    pub subject: String,
    /// "done" or "refused".
    pub outcome: String,
    /// More about it.
    pub detail: String,
}

/// Which records are wanted.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Not from before this, Unix milliseconds.
    pub since_ms: i64,
    /// Only of this user; empty: of all.
    pub user: String,
    /// Only this action; empty: every one.
    pub action: String,
}

/// The audit log of a state directory. Reads never wait for the writer, nor it for them.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
}

impl AuditLog {
    /// Of a state directory whose store is open.
    pub fn new(state: &Path) -> Self {
        Self {
            path: state.join(STORE_FILE),
        }
    }

    /// The first [`AUDIT_PAGE`] records after a number.
    /// Waits for the disk: not for an asynchronous thread.
    pub fn page(&self, after: u64, filter: &AuditFilter) -> Result<Vec<AuditRow>, StoreError> {
        self.read(after, filter).map_err(|error| StoreError::Failed {
            path: self.path.clone(),
            error,
        })
    }

    fn read(&self, after: u64, filter: &AuditFilter) -> rusqlite::Result<Vec<AuditRow>> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        let mut statement = connection.prepare(
            "SELECT number, at_ms, user, origin, action, subject, outcome, detail FROM audit
             WHERE number > ?1 AND at_ms >= ?2
               AND (?3 = '' OR user = ?3 OR subject = 'user ' || ?3)
               AND (?4 = '' OR action = ?4)
             ORDER BY number LIMIT ?5",
        )?;
        let values = params![
            i64::try_from(after).unwrap_or(i64::MAX),
            filter.since_ms,
            filter.user,
            filter.action,
            AUDIT_PAGE as i64
        ];
        statement.query_map(values, row)?.collect()
    }
}

fn row(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    Ok(AuditRow {
        number: row.get::<_, i64>(0)?.unsigned_abs(),
        at_ms: row.get(1)?,
        user: row.get(2)?,
        origin: row.get(3)?,
        action: row.get(4)?,
        subject: row.get(5)?,
        outcome: row.get(6)?,
        detail: row.get(7)?,
    })
}
