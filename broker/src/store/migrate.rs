//! Bringing a store to this program's schema.

use super::{Store, StoreError};

/// In order; a store of version n has had the first n. Never changed once released.
const MIGRATIONS: [&str; 8] = [
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
    include_str!("migrations/0006.sql"),
    include_str!("migrations/0007.sql"),
    include_str!("migrations/0008.sql"),
];
/// This program's schema.
pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;
/// "CRRL": marks the file as ours.
const APPLICATION_ID: i64 = 0x4352_524c;

pub(super) fn migrate(store: &mut Store) -> Result<(), StoreError> {
    let pragma = |name: &str| {
        store
            .connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
    };
    let (application, version) = pragma("application_id")
        .and_then(|application| Ok((application, pragma("user_version")?)))
        .map_err(|error| store.failure(error))?;
    let tables: i64 = store
        .connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|error| store.failure(error))?;
    if application != APPLICATION_ID && (application != 0 || tables > 0) {
        return Err(StoreError::Foreign {
            path: store.path.clone(),
        });
    }
    if version > SCHEMA_VERSION {
        let (path, known) = (store.path.clone(), SCHEMA_VERSION);
        return Err(StoreError::Newer {
            path,
            found: version,
            known,
        });
    }
    let done = usize::try_from(version).unwrap_or(0);
    for (index, sql) in MIGRATIONS.iter().enumerate().skip(done) {
        run(store, sql, index as i64 + 1).map_err(|error| store.failure(error))?;
    }
    Ok(())
}

/// One step, with the version that it leads to, in one transaction.
fn run(store: &mut Store, sql: &str, version: i64) -> rusqlite::Result<()> {
    let transaction = store.connection.transaction()?;
    transaction.execute_batch(sql)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", version)?;
    transaction.commit()
}
