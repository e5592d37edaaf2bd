//! Partitions, and the nodes that are in them.

use std::collections::BTreeSet;

use carrel_core::model::host_list;
use carrel_core::model::ids::NodeName;
use carrel_core::model::partition::Partition;
use carrel_core::queue::Holder;
use carrel_proto::v1::{self, ListPartitionsRequest, ListPartitionsResponse};
use tonic::Status;

use super::Call;
use super::list_accounts::held;

pub(super) async fn list_partitions(
    call: Call,
    _: ListPartitionsRequest,
) -> Result<ListPartitionsResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let now = call.context.clock.now();
    let message = |partition: &Partition| {
        let nodes: BTreeSet<NodeName> = state.nodes_in(&partition.nodes).cloned().collect();
        let text = |name: Option<String>| name.unwrap_or_default();
        v1::Partition {
            name: partition.name.to_string(),
            description: partition.description.clone(),
            default: partition.default,
            only: text(partition.nodes.only.as_ref().map(host_list::format)),
            without: host_list::format(&partition.nodes.without),
            features: text(partition.nodes.features.as_ref().map(ToString::to_string)),
            nodes: host_list::format(&nodes),
            node_count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
            priority: partition.priority,
            default_time_s: partition.default_time.map_or(0, |time| time.as_secs()),
            accounts: partition.accounts.iter().map(ToString::to_string).collect(),
            qos: text(partition.qos.as_ref().map(ToString::to_string)),
            limits: Some((&partition.limits).into()),
            per_user: Some((&partition.per_user).into()),
            held: Some(held(state, &Holder::Partition(partition.name.clone()), now)),
        }
    };
    let partitions = state.partitions.values();
    Ok(ListPartitionsResponse {
        partitions: partitions.map(|partition| message(partition)).collect(),
    })
}
