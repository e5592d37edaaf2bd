//! Reservations.

use carrel_proto::v1;
use serde::Serialize;

use crate::units::rfc3339;

/// A reservation.
#[derive(Debug, Serialize)]
pub struct Reservation {
    name: String,
    description: String,
    by: String,
    /// It is in force.
    active: bool,
    /// When it is in force, or next will be.
    start: String,
    end: String,
    /// "hourly", "daily", "weekly", "weekday", "weekend"; null: it does not come again.
    every: Option<&'static str>,
    /// A host list.
    nodes: String,
    node_count: u32,
    /// What it holds of each node.
    parts: Vec<Part>,
    /// It holds parts of its nodes only.
    partial: bool,
    /// None: all.
    users: Vec<String>,
    /// None: all.
    accounts: Vec<String>,
    maintenance: bool,
    overlap: bool,
    running: Vec<u64>,
    waiting: Vec<u64>,
}

/// What a reservation holds of a node.
#[derive(Debug, Serialize)]
struct Part {
    node: String,
    gpus: Vec<u32>,
    cpus: u32,
    memory_bytes: u64,
}

/// A reservation of a node.
#[derive(Debug, Serialize)]
pub struct NodeReservation {
    name: String,
    start: String,
    end: String,
    maintenance: bool,
    partial: bool,
}

/// When a reservation comes again.
pub fn recurrence(every: v1::Recurrence) -> Option<&'static str> {
    match every {
        v1::Recurrence::Unspecified | v1::Recurrence::Never => None,
        v1::Recurrence::Hourly => Some("hourly"),
        v1::Recurrence::Daily => Some("daily"),
        v1::Recurrence::Weekly => Some("weekly"),
        v1::Recurrence::Weekday => Some("weekday"),
        v1::Recurrence::Weekend => Some("weekend"),
    }
}

impl From<v1::ReservedPart> for Part {
    fn from(part: v1::ReservedPart) -> Self {
        Self {
            node: part.node,
            gpus: part.gpus,
            cpus: part.cpus,
            memory_bytes: part.memory_bytes,
        }
    }
}

impl From<v1::Reservation> for Reservation {
    fn from(one: v1::Reservation) -> Self {
        Self {
            every: recurrence(one.every()),
            name: one.name,
            description: one.description,
            by: one.by,
            active: one.active,
            start: rfc3339(one.start_ms),
            end: rfc3339(one.end_ms),
            nodes: one.nodes,
            node_count: one.node_count,
            parts: one.parts.into_iter().map(Part::from).collect(),
            partial: one.partial,
            users: one.users,
            accounts: one.accounts,
            maintenance: one.maintenance,
            overlap: one.overlap,
            running: one.running,
            waiting: one.waiting,
        }
    }
}

impl From<v1::NodeReservation> for NodeReservation {
    fn from(one: v1::NodeReservation) -> Self {
        Self {
            name: one.name,
            start: rfc3339(one.start_ms),
            end: rfc3339(one.end_ms),
            maintenance: one.maintenance,
            partial: one.partial,
        }
    }
}
