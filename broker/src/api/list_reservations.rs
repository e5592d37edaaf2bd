//! Reservations, what they hold, and who is in them.

use carrel_core::broker::State;
use carrel_core::model::host_list;
use carrel_core::model::reservation::Reservation;
use carrel_core::model::resources::NodeAllocation;
use carrel_core::model::time::Timestamp;
use carrel_proto::v1::{self, ListReservationsRequest, ListReservationsResponse};
use tonic::Status;

use super::Call;

pub(super) async fn list_reservations(
    call: Call,
    _: ListReservationsRequest,
) -> Result<ListReservationsResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let now = call.context.clock.now();
    let all = state.reservations.values();
    Ok(ListReservationsResponse {
        reservations: all.filter_map(|one| reservation(state, one, now)).collect(),
    })
}

/// None: it has just ended.
fn reservation(state: &State, one: &Reservation, now: Timestamp) -> Option<v1::Reservation> {
    let span = one.times.next(now)?;
    let (running, waiting) = state.jobs_of(&one.name);
    let numbers = |jobs: Vec<carrel_core::model::ids::JobId>| jobs.into_iter().map(|job| job.0).collect();
    Some(v1::Reservation {
        name: one.name.to_string(),
        description: one.description.clone(),
        by: one.by.to_string(),
        start_ms: span.start.millis(),
        end_ms: span.end.millis(),
        active: span.start <= now,
        every: v1::Recurrence::from(one.times.every).into(),
        nodes: host_list::format(one.node_names()),
        node_count: u32::try_from(one.node_names().count()).unwrap_or(u32::MAX),
        parts: state
            .parts_of(one)
            .iter()
            .map(|part| reserved(state, part))
            .collect(),
        partial: one.parts.is_some(),
        users: one.users.iter().map(ToString::to_string).collect(),
        accounts: one.accounts.iter().map(ToString::to_string).collect(),
        maintenance: one.maintenance,
        overlap: one.overlap,
        running: numbers(running),
        waiting: numbers(waiting),
    })
}

fn reserved(state: &State, part: &NodeAllocation) -> v1::ReservedPart {
    let node = state.nodes.get(&part.node);
    let gpus = node.into_iter().flat_map(|node| &node.inventory.gpus);
    let gpus = gpus.filter(|gpu| part.gpus.iter().any(|unit| unit.gpu == gpu.uuid));
    v1::ReservedPart {
        node: part.node.to_string(),
        gpus: gpus.map(|gpu| gpu.index).collect(),
        cpus: part.cpus,
        memory_bytes: part.memory_bytes,
    }
}
