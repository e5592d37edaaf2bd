//! Nodes, by name.

use carrel_core::broker::{Caller, State};
use carrel_core::model::ids::JobId;
use carrel_proto::v1::{self, ListNodesRequest, ListNodesResponse};
use tonic::Status;

use super::{Call, convert};

pub(super) async fn list_nodes(call: Call, _: ListNodesRequest) -> Result<ListNodesResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let mut nodes: Vec<v1::Node> = state
        .nodes
        .keys()
        .map(|name| convert::node(state, name))
        .collect();
    for node in &mut nodes {
        let holders = node.gpu_holders.iter_mut().flat_map(|gpu| &mut gpu.holders);
        holders.for_each(|holder| name_holder(state, &call.asker.caller, holder));
    }
    Ok(ListNodesResponse { nodes })
}

/// Whose the job is, as the queue says it: a caller inside of a job learns no other's.
fn name_holder(state: &State, caller: &Caller, holder: &mut v1::GpuHolder) {
    let job = state.jobs.get(&JobId(holder.job));
    if let Some(job) = job.filter(|job| state.within_reach(caller, job)) {
        holder.user = job.owner.to_string();
        holder.name.clone_from(&job.name);
    }
}
