//! Reading everything back.

use std::sync::Arc;

use carrel_core::broker::Change;
use carrel_core::model::ids::{Generation, JobId, JobKey, NodeName, SessionId};
use serde::de::DeserializeOwned;

use super::{Store, StoreError};

pub(super) fn load(store: &Store) -> Result<Vec<Change>, StoreError> {
    let mut changes = Vec::new();
    bodies(store, "cluster", |record| {
        changes.push(Change::PutCluster(Box::new(record)));
    })?;
    bodies(store, "users", |user| {
        changes.push(Change::PutUser(Arc::new(user)));
    })?;
    bodies(store, "tokens", |token| {
        changes.push(Change::PutToken(Arc::new(token)));
    })?;
    bodies(store, "node_tokens", |token| {
        changes.push(Change::PutNodeToken(Arc::new(token)));
    })?;
    bodies(store, "nodes", |node| {
        changes.push(Change::PutNode(Arc::new(node)));
    })?;
    bodies(store, "accounts", |account| {
        changes.push(Change::PutAccount(Arc::new(account)));
    })?;
    bodies(store, "people", |person| {
        changes.push(Change::PutPerson(Arc::new(person)));
    })?;
    bodies(store, "qos", |qos| changes.push(Change::PutQos(Arc::new(qos))))?;
    bodies(store, "partitions", |partition| {
        changes.push(Change::PutPartition(Arc::new(partition)));
    })?;
    bodies(store, "reservations", |reservation| {
        changes.push(Change::PutReservation(Arc::new(reservation)));
    })?;
    bodies(store, "sessions", |session| {
        changes.push(Change::PutSession(Arc::new(session)));
    })?;
    bodies(store, "past_use", |past| {
        changes.push(Change::PutPastUse(Arc::new(past)));
    })?;
    bodies(store, "past_demand", |(model, demand)| {
        changes.push(Change::PutPastDemand(model, Box::new(demand)));
    })?;
    bodies_where(store, "arrays", "over = 0", |array| {
        changes.push(Change::PutArray(Arc::new(array)));
    })?;
    bodies(store, "jobs", |job| changes.push(Change::PutJob(Arc::new(job))))?;
    rows_of_nodes(store, "removals", "session, 0", |node, session, _| {
        changes.push(Change::PutRemoval(node, SessionId(session)));
    })?;
    rows_of_nodes(store, "tombstones", "job, generation", |node, job, generation| {
        let key = JobKey {
            job: JobId(job),
            generation: Generation(generation),
        };
        changes.push(Change::PutTombstone(node, key));
    })?;
    Ok(changes)
}

/// Every body of a table.
fn bodies<T: DeserializeOwned>(
    store: &Store,
    table: &'static str,
    each: impl FnMut(T),
) -> Result<(), StoreError> {
    bodies_where(store, table, "TRUE", each)
}

/// Every body of a table's rows of which something is so.
fn bodies_where<T: DeserializeOwned>(
    store: &Store,
    table: &'static str,
    condition: &'static str,
    mut each: impl FnMut(T),
) -> Result<(), StoreError> {
    let failed = |error| store.failure(error);
    let mut statement = store
        .connection
        .prepare(&format!("SELECT body FROM {table} WHERE {condition}"))
        .map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let body = row
            .get_ref(0)
            .map_err(failed)?
            .as_str()
            .map_err(|error| failed(error.into()))?;
        let record = serde_json::from_str(body);
        each(record.map_err(|error| StoreError::Damaged {
            path: store.path.clone(),
            table,
            error,
        })?);
    }
    Ok(())
}

/// Every row of a table that says something of nodes in numbers.
fn rows_of_nodes(
    store: &Store,
    table: &'static str,
    numbers: &str,
    mut each: impl FnMut(NodeName, u64, u64),
) -> Result<(), StoreError> {
    let failed = |error| store.failure(error);
    let mut statement = store
        .connection
        .prepare(&format!("SELECT node, {numbers} FROM {table}"))
        .map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let node: String = row.get(0).map_err(failed)?;
        let first: i64 = row.get(1).map_err(failed)?;
        let second: i64 = row.get(2).map_err(failed)?;
        let node = node.parse().map_err(|error| StoreError::Damaged {
            path: store.path.clone(),
            table,
            error: <serde_json::Error as serde::de::Error>::custom(error),
        })?;
        each(node, first as u64, second as u64);
    }
    Ok(())
}
