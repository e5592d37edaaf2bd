//! Constraints that contradict each other, or name what is not there, are refused before anything waits.

use std::collections::BTreeSet;

use crate::broker::{Reject, RejectKind, State};
use crate::model::constraints::Constraints;
use crate::model::host_list;
use crate::model::ids::NodeName;
use crate::model::resources::ResourceRequest;

/// Nodes that one request may name: its job is kept with them. More are said by a feature.
const MAX_NAMED: usize = 16_384;
/// Unknown nodes that a refusal names.
const SHOWN: usize = 5;

impl State {
    /// Refuses what no cluster could keep, and nodes that this one does not have.
    pub(crate) fn must_make_sense(&self, request: &ResourceRequest) -> Result<(), Reject> {
        let mut named = BTreeSet::new();
        for component in request.components() {
            self.component_must_make_sense(component)?;
            if let Some(twice) = component
                .constraints
                .nodelist
                .iter()
                .find(|name| !named.insert(*name))
            {
                let message = format!("two components name node {twice}; each has nodes of its own");
                return Err(Reject::new(RejectKind::Invalid, message));
            }
        }
        Ok(())
    }

    fn component_must_make_sense(&self, request: &ResourceRequest) -> Result<(), Reject> {
        let Constraints {
            nodelist,
            exclude,
            features: _,
            switches: _,
            segment,
            contiguous: _,
        } = &request.constraints;
        let invalid = |message: String, hint: &str| Err(Reject::new(RejectKind::Invalid, message).hint(hint));
        let named = nodelist.len() + exclude.len();
        if named > MAX_NAMED {
            return invalid(
                format!("--nodelist and --exclude name {named} nodes, {MAX_NAMED} at most"),
                "ask for a feature of the nodes instead, with --constraint",
            );
        }
        for (flag, names) in [("--nodelist", nodelist), ("--exclude", exclude)] {
            let unknown = names.iter().filter(|name| !self.nodes.contains_key(*name));
            let unknown: Vec<&NodeName> = unknown.collect();
            if !unknown.is_empty() {
                let shown = host_list::format(unknown.iter().copied().take(SHOWN));
                let message = match unknown.len() {
                    1 => format!("there is no node {shown} ({flag})"),
                    count if count <= SHOWN => format!("there are no nodes {shown} ({flag})"),
                    count => format!("there are no nodes {shown} and {} more ({flag})", count - SHOWN),
                };
                return invalid(message, "`carrel nodes` lists this cluster's nodes");
            }
        }
        if nodelist.len() > request.nodes as usize {
            return invalid(
                format!(
                    "--nodelist names {} nodes, and {} are asked for",
                    nodelist.len(),
                    request.nodes
                ),
                "all nodes of --nodelist become the job's: ask for at least as many with --nodes",
            );
        }
        if let Some(both) = nodelist.intersection(exclude).next() {
            return invalid(
                format!("node {both} is in --nodelist and in --exclude"),
                "leave it out of one of them",
            );
        }
        if *segment > 1 && !request.nodes.is_multiple_of(*segment) {
            return invalid(
                format!("{} nodes are no multiple of --segment={segment}", request.nodes),
                "every segment has as many nodes",
            );
        }
        Ok(())
    }
}
