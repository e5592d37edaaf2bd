//! What was held, by whom and when: sums over runs of jobs, the running ones up to now.

use std::collections::{BTreeMap, BTreeSet};

use carrel_core::model::activity::Used;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{History, StoreError};

/// Milliseconds of a day.
const DAY: i64 = 86_400_000;

/// What is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// Users.
    User,
    /// Accounts.
    Account,
    /// Days of UTC.
    Day,
    /// Models of GPUs.
    Model,
}

/// What is wanted; an empty list is no condition.
#[derive(Clone, Debug, Default)]
pub struct UsageFilter {
    /// From then, Unix milliseconds.
    pub since_ms: i64,
    /// Until then, and no later than now.
    pub until_ms: i64,
    /// Of these users.
    pub users: Vec<String>,
    /// On these accounts.
    pub accounts: Vec<String>,
    /// Told apart by these.
    pub by: BTreeSet<By>,
}

/// What one sum is of; none where it is not told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsageKey {
    /// When the day begins, Unix milliseconds.
    pub day_ms: Option<i64>,
    /// Account.
    pub account: Option<String>,
    /// User.
    pub user: Option<String>,
    /// Model of GPU; empty: none was held.
    pub model: Option<String>,
}

/// What was held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSum {
    /// Thousandths of GPUs times milliseconds.
    pub gpu: u128,
    /// Thousandths of GPU-equivalents times milliseconds.
    pub billed: u128,
    /// Runs of jobs that have a part in it.
    pub runs: u64,
    /// How much of it was used, as far as that was measured; of each run spread evenly over its time.
    pub used: Option<Used>,
}

impl History {
    /// What was held. Reads what ran in that time, and what began earlier by no more than the longest run.
    /// Waits for the disk: not for an asynchronous thread.
    pub fn usage(
        &self,
        filter: &UsageFilter,
        now_ms: i64,
        most: usize,
    ) -> Result<Option<BTreeMap<UsageKey, UsageSum>>, StoreError> {
        let filter = UsageFilter {
            until_ms: filter.until_ms.min(now_ms),
            ..filter.clone()
        };
        self.read(|connection| {
            // All is read as of one moment.
            let transaction = connection.unchecked_transaction()?;
            let sums = sums(&transaction, &filter, now_ms, most)?;
            transaction.commit()?;
            Ok(sums)
        })
    }
}

const COLUMNS: &str =
    "started_ms, ended_ms, user, account, model, gpu_milli, billing_milli, job, used_busy, used_measured";

/// None: they are more than that.
fn sums(
    connection: &Connection,
    filter: &UsageFilter,
    now_ms: i64,
    most: usize,
) -> rusqlite::Result<Option<BTreeMap<UsageKey, UsageSum>>> {
    let longest: Option<i64> = connection
        .query_row(
            "SELECT ended_ms - started_ms FROM runs WHERE ended_ms - started_ms IS NOT NULL
             ORDER BY ended_ms - started_ms DESC LIMIT 1",
            [],
            |row| row.get(0),
        )
        .optional()?;
    let earliest = filter.since_ms.saturating_sub(longest.unwrap_or(0));
    let mut sums = Sums {
        filter,
        now_ms,
        sums: BTreeMap::new(),
        last: None,
    };
    for (condition, from) in [
        ("started_ms >= ?1 AND started_ms < ?2", earliest),
        (
            "ended_ms IS NULL AND started_ms < ?1 AND started_ms < ?2",
            earliest,
        ),
    ] {
        let sql = format!("SELECT {COLUMNS} FROM runs WHERE {condition} ORDER BY started_ms, job, model");
        let mut statement = connection.prepare(&sql)?;
        let mut rows = statement.query(params![from, filter.until_ms])?;
        while let Some(row) = rows.next()? {
            sums.add(row)?;
            if sums.sums.len() > most {
                return Ok(None);
            }
        }
    }
    Ok(Some(sums.sums))
}

struct Sums<'a> {
    filter: &'a UsageFilter,
    now_ms: i64,
    sums: BTreeMap<UsageKey, UsageSum>,
    /// The run before: when it began, and of which job. Its rows follow each other.
    last: Option<(i64, i64)>,
}

impl Sums<'_> {
    fn add(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        let UsageFilter {
            since_ms,
            until_ms,
            users,
            accounts,
            by,
        } = self.filter;
        let started: i64 = row.get(0)?;
        let ended: Option<i64> = row.get(1)?;
        let (user, account) = (row.get_ref(2)?.as_str()?, row.get_ref(3)?.as_str()?);
        let is = |wanted: &[String], own: &str| wanted.is_empty() || wanted.iter().any(|one| one == own);
        let (from, to) = (started.max(*since_ms), ended.unwrap_or(*until_ms).min(*until_ms));
        if from >= to || !is(users, user) || !is(accounts, account) {
            return Ok(());
        }
        let model = row.get_ref(4)?.as_str()?;
        let gpu: u128 = row.get::<_, i64>(5)?.unsigned_abs().into();
        let billed: u128 = row.get::<_, i64>(6)?.unsigned_abs().into();
        let whole = u128::from(ended.unwrap_or(self.now_ms).abs_diff(started));
        let used: Option<(i64, i64)> = row.get::<_, Option<i64>>(8)?.zip(row.get(9)?);
        let run = (started, row.get(7)?);
        // Of a run on several models each has a row; it is one where they are not told apart.
        let counts = self.last.replace(run) != Some(run) || by.contains(&By::Model);
        let told = |what: By, name: &str| by.contains(&what).then(|| name.to_owned());
        let mut key = UsageKey {
            day_ms: None,
            account: told(By::Account, account),
            user: told(By::User, user),
            model: told(By::Model, model),
        };
        let mut at = from;
        while at < to {
            let day = at.div_euclid(DAY) * DAY;
            let end = if by.contains(&By::Day) {
                to.min(day + DAY)
            } else {
                to
            };
            key.day_ms = by.contains(&By::Day).then_some(day);
            let time = u128::from(end.abs_diff(at));
            let sum = self.sums.entry(key.clone()).or_default();
            sum.gpu += gpu * time;
            sum.billed += billed * time;
            sum.runs += u64::from(counts);
            if let Some((busy, measured)) = used {
                let part = |of: i64| {
                    let part = u128::from(of.unsigned_abs()) * time / whole.max(1);
                    u64::try_from(part).unwrap_or(u64::MAX)
                };
                sum.used.get_or_insert_default().add(Used {
                    busy: part(busy),
                    measured: part(measured),
                });
            }
            at = end;
        }
        Ok(())
    }
}
