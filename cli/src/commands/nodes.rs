//! `carrel nodes`: the cluster's nodes.

use std::collections::BTreeMap;

use carrel_core::model::ids::NodeName;
use carrel_proto::v1;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::{output, topology, units, view};

/// List the cluster's nodes.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  carrel nodes\n  carrel nodes --topology n1\n  carrel nodes --output json | jq 'map(.gpus_free) | add'"
)]
pub struct NodesArgs {
    /// These nodes alone
    #[arg(value_name = "NODE")]
    pub nodes: Vec<NodeName>,
    /// Draw how the GPUs are joined, and who holds each
    #[arg(long)]
    pub topology: bool,
}

/// Runs the verb.
pub async fn run(context: &Context, args: NodesArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let mut nodes = client
        .list_nodes(v1::ListNodesRequest {})
        .await?
        .into_inner()
        .nodes;
    for wanted in &args.nodes {
        if !nodes.iter().any(|node| node.name == wanted.as_str()) {
            return Err(
                CliError::failed(format!("there is no node {wanted}")).hint("`carrel nodes` lists them")
            );
        }
    }
    nodes
        .retain(|node| args.nodes.is_empty() || args.nodes.iter().any(|wanted| node.name == wanted.as_str()));
    if context.json() {
        output::json(&nodes.into_iter().map(view::Node::from).collect::<Vec<_>>())?;
        return Ok(0);
    }
    if nodes.is_empty() {
        crate::terminal::say(
            "carrel: there are no nodes yet; `carrel node token` says how a host becomes one",
        );
        return Ok(0);
    }
    if args.topology {
        let drawn = nodes
            .iter()
            .map(|node| topology::draw(node, |job| format!("job {job}")));
        output::text(drawn.collect::<Vec<_>>().join("\n"))?;
        return Ok(0);
    }
    // Most clusters say nothing of either.
    let told = |node: &v1::Node| !features(node).is_empty() || !spot(node).is_empty();
    if !nodes.iter().any(told) {
        output::text(output::table(HEADER, nodes.iter().map(row)))?;
        return Ok(0);
    }
    let [name, state, gpus, cpus, memory, reason] = HEADER;
    let rows = nodes.iter().map(|node| {
        let [name, state, gpus, cpus, memory, reason] = row(node);
        [
            name,
            state,
            gpus,
            cpus,
            memory,
            features(node),
            spot(node),
            reason,
        ]
    });
    let header = [name, state, gpus, cpus, memory, "FEATURES", "FABRIC", reason];
    output::text(output::table(header, rows))?;
    Ok(0)
}

const HEADER: [&str; 6] = ["NODE", "STATE", "GPUS FREE", "CPUS FREE", "MEMORY FREE", "REASON"];

fn features(node: &v1::Node) -> String {
    node.features.join(",")
}

fn spot(node: &v1::Node) -> String {
    super::show::spot(&node.switch_path, &node.block)
}

fn row(node: &v1::Node) -> [String; 6] {
    let inventory = node.inventory.clone().unwrap_or_default();
    let cpus = format!(
        "{}/{}",
        inventory.cpus.saturating_sub(node.cpus_held),
        inventory.cpus
    );
    let free = inventory.memory_bytes.saturating_sub(node.memory_held);
    let memory = format!("{}/{}", units::bytes(free), units::bytes(inventory.memory_bytes));
    let mut reasons = vec![node.reason.clone(), inventory.gpu_note.clone()];
    match node.unknown.len() {
        0 => {}
        1 => reasons.push("1 job that no record knows, see `carrel found`".to_owned()),
        more => reasons.push(format!("{more} jobs that no record knows, see `carrel found`")),
    }
    reasons.extend(node.reservations.iter().map(reserved));
    let mut drained = inventory.gpus.iter().filter(|gpu| !gpu.drained.is_empty());
    if let Some(first) = drained.next() {
        reasons.push(format!("GPU {}: {}", first.index, first.drained));
        match drained.count() {
            0 => {}
            more => reasons.push(format!("{more} more GPUs drained, see --output json")),
        }
    }
    reasons.retain(|reason| !reason.is_empty());
    [
        node.name.clone(),
        node.state.clone(),
        gpus(node, &inventory),
        cpus,
        memory,
        reasons.join("; "),
    ]
}

/// "maintenance upgrade from 2026-12-24T08:00:00Z"
fn reserved(one: &v1::NodeReservation) -> String {
    let what = if one.maintenance {
        "maintenance"
    } else {
        "reserved"
    };
    let part = if one.partial { " in part" } else { "" };
    let from = units::rfc3339(one.start_ms);
    format!("{what}{part}: {} from {from}", one.name)
}

/// "4/8 H100 80GB HBM3"; models in turn where there are several, and apart those in MIG mode: free are of these
/// those of which nobody has anything.
fn gpus(node: &v1::Node, inventory: &v1::Inventory) -> String {
    let held = node.gpu_holders.iter().map(|gpu| !gpu.holders.is_empty());
    let held = held.chain(std::iter::repeat(false));
    let mut models: BTreeMap<(&str, bool), (usize, usize)> = BTreeMap::new();
    for (gpu, held) in inventory.gpus.iter().zip(held) {
        let model = gpu.model.trim_start_matches("NVIDIA ");
        let (free, total) = models.entry((model, gpu.mig.is_some())).or_default();
        *total += 1;
        *free += usize::from(!held && gpu.drained.is_empty());
    }
    if models.is_empty() {
        return "none".into();
    }
    let text = |(&(model, mig), (free, total)): (&(&str, bool), &(usize, usize))| {
        let mode = if mig { " in MIG mode" } else { "" };
        format!("{free}/{total} {model}{mode}")
    };
    models.iter().map(text).collect::<Vec<_>>().join(", ")
}
