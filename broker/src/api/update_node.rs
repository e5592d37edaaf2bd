//! Drains, resumes, adopts or removes a node, or changes its features.

use carrel_core::broker::{FeatureChange, Input};
use carrel_core::model::ids::NodeName;
use carrel_proto::v1::{Node, NodeAction, UpdateNodeRequest};
use tonic::Status;

use super::refuse::{bad_name, invalid};
use super::{Call, convert};

/// Longest reason for draining.
const MAX_REASON: usize = 256;

pub(super) async fn update_node(call: Call, request: UpdateNodeRequest) -> Result<Node, Status> {
    let name: NodeName = request.name.parse().map_err(bad_name)?;
    if request.reason.chars().count() > MAX_REASON {
        return Err(invalid(format!("a reason has at most {MAX_REASON} characters")));
    }
    let caller = call.asker.caller.clone();
    let before = call.snapshot();
    let input = match NodeAction::try_from(request.action) {
        Ok(NodeAction::Drain) => {
            let reason = if request.reason.is_empty() {
                "no reason given".to_owned()
            } else {
                request.reason
            };
            Input::DrainNode(caller, name.clone(), reason)
        }
        Ok(NodeAction::Resume) => Input::ResumeNode(caller, name.clone()),
        Ok(NodeAction::Remove) => {
            if let Some(record) = before.state().nodes.get(&name) {
                let noted = call
                    .context
                    .gateways
                    .note_removal(record, call.context.clock.now());
                noted.map_err(|error| Status::internal(format!("{error:#}")))?;
            }
            Input::RemoveNode(caller, name.clone())
        }
        Ok(NodeAction::Feature) => {
            let change = FeatureChange {
                add: request.add_features.into_iter().collect(),
                remove: request.remove_features.into_iter().collect(),
            };
            Input::ChangeFeatures(caller, name.clone(), change)
        }
        Ok(NodeAction::Adopt) => Input::AdoptNode(caller, name.clone()),
        Ok(NodeAction::Unspecified) | Err(_) => {
            return Err(invalid("the request does not say what to do with the node"));
        }
    };
    call.input(input).await?;
    tracing::info!(node = %name, action = request.action, "a node was updated");
    let after = call.snapshot();
    // Of a node that was removed: what it last was.
    let state = if after.state().nodes.contains_key(&name) {
        after.state()
    } else {
        before.state()
    };
    Ok(convert::node(state, &name))
}
