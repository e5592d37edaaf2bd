//! Nodes, by name.

use carrel_proto::v1::{ListNodesRequest, ListNodesResponse};
use tonic::Status;

use super::{Call, convert};

pub(super) async fn list_nodes(call: Call, _: ListNodesRequest) -> Result<ListNodesResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    Ok(ListNodesResponse {
        nodes: state
            .nodes
            .keys()
            .map(|name| convert::node(state, name))
            .collect(),
    })
}
