//! Reading jobs that are over and have left the state, beside the writer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_core::model::array::{ArrayRecord, JobRef};
use carrel_core::model::ids::JobId;
use carrel_core::model::indices::IndexSet;
use carrel_core::model::job::{Job, JobState, Phase};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use serde::de::DeserializeOwned;

use super::{STORE_FILE, StoreError};

/// Records that one page looks at: it may return fewer than were wanted, and says from where to go on.
/// Some 100 ms; no search holds a thread for longer.
const LOOKED_AT: usize = 200_000;

/// What is known of a job without reading it whole.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its id.
    pub id: u64,
    /// When it was submitted, Unix milliseconds.
    pub submitted_ms: i64,
    /// When it ended, Unix milliseconds; [`Place::FIRST`]'s while it has not.
    pub ended_ms: i64,
    /// Its user.
    pub owner: &'a str,
    /// Its account.
    pub account: &'a str,
    /// Its partition.
    pub partition: &'a str,
    /// Slurm's name of its state.
    pub state: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its array, and its tasks of it.
    pub array: Option<(JobId, &'a IndexSet)>,
}

impl<'a> Entry<'a> {
    /// A job's.
    pub fn of(job: &'a Job) -> Self {
        Self {
            id: job.id.0,
            submitted_ms: job.submitted.millis(),
            ended_ms: match job.phase {
                Phase::Ended { at, .. } => at.millis(),
                Phase::Pending | Phase::Placed(_) => Place::FIRST.ended_ms,
            },
            owner: job.owner.as_str(),
            account: job.terms.account.as_str(),
            partition: job.terms.partition.as_str(),
            state: job.state().name(),
            name: &job.name,
            array: job.array.as_ref().map(|part| (part.array, &part.tasks)),
        }
    }

    /// Where it stands in the history.
    pub fn place(&self) -> Place {
        Place {
            ended_ms: self.ended_ms,
            id: self.id,
        }
    }
}

/// Where a job stands in the history. What has not ended comes first, then what ended last; of those that ended
/// at once the later id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// When it ended, Unix milliseconds.
    pub ended_ms: i64,
    /// Its id.
    pub id: u64,
}

impl Place {
    /// Before all jobs.
    pub const FIRST: Self = Self {
        ended_ms: i64::MAX,
        id: i64::MAX as u64,
    };
}

/// Which jobs are wanted; an empty list is no condition.
#[derive(Clone, Debug, Default)]
pub struct HistoryFilter {
    /// Those that were not over before this, Unix milliseconds.
    pub since_ms: i64,
    /// And were submitted before this.
    pub until_ms: i64,
    /// Of these users.
    pub users: Vec<String>,
    /// On these accounts.
    pub accounts: Vec<String>,
    /// In these partitions.
    pub partitions: Vec<String>,
    /// In one of these states; none: in any but PENDING.
    pub states: Vec<JobState>,
    /// With one of these names.
    pub names: Vec<String>,
    /// Only these, whenever they were known; of an array all its tasks, or those that are named.
    pub jobs: Vec<JobRef>,
}

impl HistoryFilter {
    /// Whether a job is wanted.
    pub fn takes(&self, job: &Entry<'_>) -> bool {
        let is = |wanted: &[String], own: &str| wanted.is_empty() || wanted.iter().any(|one| one == own);
        let in_time = job.submitted_ms < self.until_ms && job.ended_ms >= self.since_ms;
        let in_state = match self.states.as_slice() {
            [] => !self.jobs.is_empty() || job.state != JobState::Pending.name(),
            wanted => wanted.iter().any(|state| state.name() == job.state),
        };
        (if self.jobs.is_empty() {
            in_time
        } else {
            self.jobs.iter().any(|name| is_named(name, job))
        }) && in_state
            && is(&self.users, job.owner)
            && is(&self.accounts, job.account)
            && is(&self.partitions, job.partition)
            && is(&self.names, job.name)
    }
}

/// Whether a name means a job.
fn is_named(name: &JobRef, job: &Entry<'_>) -> bool {
    match (&name.tasks, job.array) {
        (None, None) => job.id == name.job.0,
        (None, Some((array, _))) => array == name.job || job.id == name.job.0,
        (Some(tasks), Some((array, own))) => array == name.job && own.common(tasks).next().is_some(),
        (Some(_), None) => false,
    }
}

/// Some of the jobs that are wanted, in their order.
#[derive(Debug, Default)]
pub struct HistoryPage {
    /// They.
    pub jobs: Vec<Job>,
    /// Everything up to here was looked at; none: that was all.
    pub looked_to: Option<Place>,
}

/// The history in a state directory's store. Reads never wait for the writer, nor it for them.
#[derive(Clone, Debug)]
pub struct History {
    path: PathBuf,
}

impl History {
    /// Of a state directory whose store is open.
    pub fn new(state: &Path) -> Self {
        Self {
            path: state.join(STORE_FILE),
        }
    }

    /// So many of the jobs that are wanted, after a place, or fewer.
    /// Waits for the disk: not for an asynchronous thread.
    pub fn page(&self, filter: &HistoryFilter, after: Place, most: usize) -> Result<HistoryPage, StoreError> {
        self.read(|connection| {
            if filter.jobs.is_empty() {
                return search(connection, filter, after, most);
            }
            let mut jobs: Vec<Job> = Vec::new();
            for name in &filter.jobs {
                jobs.extend(found(connection, filter, name, after, most + 1)?);
            }
            jobs.sort_by_key(|job| std::cmp::Reverse(Entry::of(job).place()));
            jobs.dedup_by_key(|job| job.id);
            let more = jobs.len() > most;
            jobs.truncate(most);
            let last = jobs.last().filter(|_| more);
            Ok(HistoryPage {
                looked_to: last.map(|job| Entry::of(job).place()),
                jobs,
            })
        })
    }

    /// Those of these jobs that there are.
    /// Waits for the disk: not for an asynchronous thread.
    pub fn jobs(&self, ids: &[JobId]) -> Result<Vec<Job>, StoreError> {
        self.read(|connection| {
            let jobs = ids.iter().map(|id| job(connection, id.0));
            jobs.filter_map(Result::transpose).collect()
        })
    }

    /// So many of the jobs that a name means, what ended last first.
    /// Waits for the disk: not for an asynchronous thread.
    pub fn named(&self, name: &JobRef, most: usize) -> Result<Vec<Job>, StoreError> {
        let filter = HistoryFilter {
            jobs: vec![name.clone()],
            ..HistoryFilter::default()
        };
        self.read(|connection| found(connection, &filter, name, Place::FIRST, most))
    }

    /// What is known of arrays that have left the state.
    /// Waits for the disk: not for an asynchronous thread.
    pub fn arrays(&self, ids: &[JobId]) -> Result<Vec<ArrayRecord>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached("SELECT body FROM arrays WHERE id = ?1")?;
            let mut found = Vec::new();
            for id in ids {
                let number = i64::try_from(id.0).unwrap_or(i64::MAX);
                found.extend(statement.query_row([number], read_body).optional()?);
            }
            Ok(found)
        })
    }

    /// Reads on a connection of its own.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let read = Connection::open_with_flags(&self.path, flags).and_then(|connection| {
            connection.busy_timeout(Duration::from_secs(5))?;
            read(&connection)
        });
        read.map_err(|error| StoreError::Failed {
            path: self.path.clone(),
            error,
        })
    }
}

fn job(connection: &Connection, id: u64) -> rusqlite::Result<Option<Job>> {
    let mut statement = connection.prepare_cached("SELECT body FROM history WHERE id = ?1")?;
    statement
        .query_row([i64::try_from(id).unwrap_or(i64::MAX)], read_body)
        .optional()
}

/// A record in the first column.
fn read_body<T: DeserializeOwned>(row: &rusqlite::Row<'_>) -> rusqlite::Result<T> {
    let body = row.get_ref(0)?.as_str()?;
    serde_json::from_str(body).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, error.into())
    })
}

/// So many of the wanted jobs that a name means, after a place, in their order: of a large array not all are read.
fn found(
    connection: &Connection,
    filter: &HistoryFilter,
    name: &JobRef,
    after: Place,
    most: usize,
) -> rusqlite::Result<Vec<Job>> {
    // One task is a job by itself, or among those of one that is several.
    let one = name.tasks.as_ref().and_then(IndexSet::only);
    let own = if name.tasks.is_none() { "OR id = ?1" } else { "" };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT body FROM history
         WHERE (array = ?1 {own}) AND (?4 IS NULL OR task = ?4 OR task IS NULL) AND (ended_ms, id) < (?2, ?3)
         ORDER BY ended_ms DESC, id DESC"
    ))?;
    let integer = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![
        integer(name.job.0),
        after.ended_ms,
        integer(after.id),
        one
    ])?;
    let mut jobs = Vec::new();
    while jobs.len() < most
        && let Some(row) = rows.next()?
    {
        let job: Job = read_body(row)?;
        if is_named(name, &Entry::of(&job)) && filter.takes(&Entry::of(&job)) {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

/// Goes through an index, the last that ended first, and reads those that are wanted.
fn search(
    connection: &Connection,
    filter: &HistoryFilter,
    after: Place,
    most: usize,
) -> rusqlite::Result<HistoryPage> {
    let longest: Option<i64> = connection
        .query_row(
            "SELECT ended_ms - submitted_ms FROM history ORDER BY ended_ms - submitted_ms DESC LIMIT 1",
            [],
            |row| row.get(0),
        )
        .optional()?;
    let Some(longest) = longest else {
        return Ok(HistoryPage::default());
    };
    // What was submitted before that time has ended by then.
    let latest = Place {
        ended_ms: filter.until_ms.saturating_add(longest),
        ..Place::FIRST
    };
    let from = after.min(latest);
    let (index, owner) = match filter.users.as_slice() {
        [one] => ("INDEXED BY history_by_owner", Some(one.as_str())),
        _ => ("INDEXED BY history_by_end", None),
    };
    let of_owner = if owner.is_some() {
        "owner = ?4"
    } else {
        "?4 IS NULL"
    };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT id, submitted_ms, ended_ms, owner, account, partition, state, name FROM history {index}
         WHERE {of_owner} AND ended_ms >= ?1 AND (ended_ms, id) < (?2, ?3)
         ORDER BY ended_ms DESC, id DESC"
    ))?;
    let mut rows = statement.query(params![
        filter.since_ms,
        from.ended_ms,
        i64::try_from(from.id).unwrap_or(i64::MAX),
        owner
    ])?;
    let mut page = HistoryPage::default();
    let mut looked_at = 0;
    while let Some(row) = rows.next()? {
        let entry = Entry {
            id: row.get::<_, i64>(0)?.unsigned_abs(),
            submitted_ms: row.get(1)?,
            ended_ms: row.get(2)?,
            owner: row.get_ref(3)?.as_str()?,
            account: row.get_ref(4)?.as_str()?,
            partition: row.get_ref(5)?.as_str()?,
            state: row.get_ref(6)?.as_str()?,
            name: row.get_ref(7)?.as_str()?,
            // Only those that are named are looked at by it.
            array: None,
        };
        looked_at += 1;
        if filter.takes(&entry) {
            page.jobs.extend(job(connection, entry.id)?);
        }
        if page.jobs.len() >= most || looked_at >= LOOKED_AT {
            page.looked_to = Some(entry.place());
            break;
        }
    }
    Ok(page)
}
