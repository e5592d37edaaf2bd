//! Writing one change.

use carrel_core::broker::Change;
use carrel_core::model::job::{Job, Phase};
use carrel_core::model::time::Timestamp;
use rusqlite::{Transaction, params};
use serde::Serialize;

use super::runs;

/// What one write may fail with.
pub(super) enum WriteError {
    /// SQLite's.
    Sqlite(rusqlite::Error),
    /// A record without a JSON form.
    Encode(serde_json::Error),
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<serde_json::Error> for WriteError {
    fn from(error: serde_json::Error) -> Self {
        Self::Encode(error)
    }
}

/// SQLite's integers are signed. Ids and times never come near the half that is lost.
pub(super) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn body(record: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string(record)
}

fn ended(job: &Job) -> Option<Timestamp> {
    match &job.phase {
        Phase::Ended { at, .. } => Some(*at),
        Phase::Pending | Phase::Placed(_) => None,
    }
}

pub(super) fn write(transaction: &Transaction<'_>, change: &Change) -> Result<(), WriteError> {
    let run = |sql: &str, values: &[&dyn rusqlite::ToSql]| -> Result<(), WriteError> {
        transaction.prepare_cached(sql)?.execute(values)?;
        Ok(())
    };
    match change {
        Change::PutCluster(record) => run(
            "INSERT OR REPLACE INTO cluster (id, cluster, incarnation, body) VALUES (1, ?1, ?2, ?3)",
            params![
                record.id.0.as_ref(),
                integer(record.incarnation.number),
                body(record)?
            ],
        ),
        Change::PutUser(user) => run(
            "INSERT OR REPLACE INTO users (name, uid, body) VALUES (?1, ?2, ?3)",
            params![user.name.as_str(), user.uid, body(user)?],
        ),
        Change::DeleteUser(name) => run("DELETE FROM users WHERE name = ?1", params![name.as_str()]),
        Change::PutToken(token) => run(
            "INSERT OR REPLACE INTO tokens (id, owner, expires_ms, body) VALUES (?1, ?2, ?3, ?4)",
            params![
                token.id.as_ref(),
                token.user.as_str(),
                integer(token.expires.0),
                body(token)?
            ],
        ),
        Change::DeleteToken(id) => run("DELETE FROM tokens WHERE id = ?1", params![id.as_ref()]),
        Change::PutNodeToken(token) => run(
            "INSERT OR REPLACE INTO node_tokens (hash, expires_ms, body) VALUES (?1, ?2, ?3)",
            params![&token.hash[..], integer(token.expires.0), body(token)?],
        ),
        Change::DeleteNodeToken(hash) => run("DELETE FROM node_tokens WHERE hash = ?1", params![&hash[..]]),
        Change::PutNode(node) => run(
            "INSERT OR REPLACE INTO nodes (name, certificate, body) VALUES (?1, ?2, ?3)",
            params![node.name.as_str(), node.certificate, body(node)?],
        ),
        Change::DeleteNode(name) => run("DELETE FROM nodes WHERE name = ?1", params![name.as_str()]),
        Change::PutSession(session) => run(
            "INSERT OR REPLACE INTO sessions (id, owner, name, job, body) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                integer(session.id.0),
                session.owner.as_str(),
                session.name.as_str(),
                session.job.map(|job| integer(job.0)),
                body(session)?
            ],
        ),
        Change::DeleteSession(id) => run("DELETE FROM sessions WHERE id = ?1", params![integer(id.0)]),
        Change::PutJob(job) => {
            run(
                "INSERT OR REPLACE INTO jobs (id, session, owner, name, state, submitted_ms, ended_ms, body)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    integer(job.id.0),
                    job.session.map(|session| integer(session.0)),
                    job.owner.as_str(),
                    job.name,
                    job.state().name(),
                    integer(job.submitted.0),
                    ended(job).map(|at| integer(at.0)),
                    body(job)?
                ],
            )?;
            Ok(runs::write(transaction, job)?)
        }
        Change::ForgetJob(job) => {
            run("DELETE FROM jobs WHERE id = ?1", params![integer(job.id.0)])?;
            run(
                "INSERT OR REPLACE INTO history
                     (id, owner, account, partition, state, name, submitted_ms, ended_ms, array, task, body)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
                params![
                    integer(job.id.0),
                    job.owner.as_str(),
                    job.terms.account.as_str(),
                    job.terms.partition.as_str(),
                    job.state().name(),
                    job.name,
                    integer(job.submitted.0),
                    ended(job).map(|at| integer(at.0)),
                    job.array.as_ref().map(|part| integer(part.array.0)),
                    job.task().map(|(_, task)| task),
                    body(job)?
                ],
            )?;
            // For those that were written before there were rows for it.
            Ok(runs::write(transaction, job)?)
        }
        Change::PutArray(array) => run(
            "INSERT OR REPLACE INTO arrays (id, over, body) VALUES (?1, 0, ?2)",
            params![integer(array.id.0), body(array)?],
        ),
        Change::ForgetArray(array) => run(
            "INSERT OR REPLACE INTO arrays (id, over, body) VALUES (?1, 1, ?2)",
            params![integer(array.id.0), body(array)?],
        ),
        Change::PutPastUse(past) => run(
            "INSERT OR REPLACE INTO past_use (user, account, qos, partition, body)
             VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                past.key.user.as_str(),
                past.key.account.as_str(),
                past.key.qos.as_str(),
                past.key.partition.as_str(),
                body(past)?
            ],
        ),
        Change::PutPastDemand(model, demand) => run(
            "INSERT OR REPLACE INTO past_demand (model, body) VALUES (?1, ?2)",
            params![model, body(&(model, demand))?],
        ),
        Change::PutRemoval(node, session) => run(
            "INSERT OR REPLACE INTO removals (node, session) VALUES (?1, ?2)",
            params![node.as_str(), integer(session.0)],
        ),
        Change::DeleteRemoval(node, session) => run(
            "DELETE FROM removals WHERE node = ?1 AND session = ?2",
            params![node.as_str(), integer(session.0)],
        ),
        Change::PutTombstone(node, key) => run(
            "INSERT OR REPLACE INTO tombstones (node, job, generation) VALUES (?1, ?2, ?3)",
            params![node.as_str(), integer(key.job.0), integer(key.generation.0)],
        ),
        Change::DeleteTombstone(node, key) => run(
            "DELETE FROM tombstones WHERE node = ?1 AND job = ?2 AND generation = ?3",
            params![node.as_str(), integer(key.job.0), integer(key.generation.0)],
        ),
        Change::PutAccount(account) => run(
            "INSERT OR REPLACE INTO accounts (name, body) VALUES (?1, ?2)",
            params![account.name.as_str(), body(account)?],
        ),
        Change::DeleteAccount(name) => run("DELETE FROM accounts WHERE name = ?1", params![name.as_str()]),
        Change::PutPerson(person) => run(
            "INSERT OR REPLACE INTO people (user, body) VALUES (?1, ?2)",
            params![person.user.as_str(), body(person)?],
        ),
        Change::PutQos(qos) => run(
            "INSERT OR REPLACE INTO qos (name, body) VALUES (?1, ?2)",
            params![qos.name.as_str(), body(qos)?],
        ),
        Change::DeleteQos(name) => run("DELETE FROM qos WHERE name = ?1", params![name.as_str()]),
        Change::PutPartition(partition) => run(
            "INSERT OR REPLACE INTO partitions (name, body) VALUES (?1, ?2)",
            params![partition.name.as_str(), body(partition)?],
        ),
        Change::DeletePartition(name) => {
            run("DELETE FROM partitions WHERE name = ?1", params![name.as_str()])
        }
        Change::PutReservation(reservation) => run(
            "INSERT OR REPLACE INTO reservations (name, body) VALUES (?1, ?2)",
            params![reservation.name.as_str(), body(reservation)?],
        ),
        Change::DeleteReservation(name) => {
            run("DELETE FROM reservations WHERE name = ?1", params![name.as_str()])
        }
        Change::Audit(record) => run(
            "INSERT INTO audit (at_ms, user, origin, action, subject, outcome, detail)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                integer(record.at.0),
                record.user.as_ref().map_or("", |user| user.as_str()),
                record.origin.to_string(),
                record.action.name(),
                record.subject,
                record.outcome.name(),
                record.detail
            ],
        ),
        Change::TrimAudit(before, keep) => run(
            "DELETE FROM audit WHERE at_ms < ?1
                OR number <= (SELECT max(number) FROM audit) - ?2",
            params![integer(before.0), integer(*keep)],
        ),
    }
}
