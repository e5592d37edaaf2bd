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
    let columns = crate::terminal::stdout_columns().unwrap_or(usize::MAX);
    if args.topology {
        let drawn = nodes.iter().map(|node| topology::draw(node, columns));
        output::text(drawn.collect::<Vec<_>>().join("\n"))?;
        return Ok(0);
    }
    output::text(table(&nodes, columns))?;
    Ok(0)
}

/// The nodes, one a row. Where so many columns are too few the names of blocks are cut, and reasons stand below.
fn table(nodes: &[v1::Node], columns: usize) -> String {
    let whole = grid(nodes.iter().map(|node| row(node, spot(node))).collect(), true);
    if output::fits(&whole, columns) {
        return whole;
    }
    let mut rows: Vec<[String; 8]> = nodes.iter().map(|node| row(node, short_spot(node))).collect();
    let below = rows.iter_mut().map(|row| {
        let reason = std::mem::take(&mut row[REASON]);
        if reason.is_empty() {
            String::new()
        } else {
            format!("{}: {}\n", row[0], output::visible(&reason))
        }
    });
    let below: String = below.collect();
    grid(rows, false) + &below
}

const HEADER: [&str; 8] = [
    "NODE",
    "STATE",
    "GPUS FREE",
    "CPUS FREE",
    "MEMORY FREE",
    "FEATURES",
    "FABRIC",
    "REASON",
];
/// The columns of which most clusters say nothing.
const SELDOM: [usize; 2] = [5, 6];
const REASON: usize = 7;

fn grid(rows: Vec<[String; 8]>, reasons: bool) -> String {
    let shown = |column: usize| match column {
        REASON => reasons,
        _ => !SELDOM.contains(&column) || rows.iter().any(|row| !row[column].is_empty()),
    };
    let shown: Vec<bool> = (0..HEADER.len()).map(shown).collect();
    let pick = |row: [String; 8]| -> Vec<String> {
        let cells = row.into_iter().zip(&shown);
        cells.filter(|(_, shown)| **shown).map(|(cell, _)| cell).collect()
    };
    output::grid(pick(HEADER.map(str::to_owned)), rows.into_iter().map(pick))
}

fn features(node: &v1::Node) -> String {
    node.features.join(",")
}

fn spot(node: &v1::Node) -> String {
    super::show::spot(&node.switch_path, &node.block)
}

/// The same with no more of a block's name than tells it from others: drivers name them by UUIDs.
fn short_spot(node: &v1::Node) -> String {
    const ENOUGH: usize = 12;
    let mut block = node.block.clone();
    if block.chars().count() > ENOUGH {
        block = block.chars().take(ENOUGH - 1).chain(['…']).collect();
    }
    super::show::spot(&node.switch_path, &block)
}

fn row(node: &v1::Node, spot: String) -> [String; 8] {
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
        features(node),
        spot,
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

/// "4/8 H100 80GB HBM3"; models in turn where there are several, and apart those in MIG mode, and those that jobs share:
/// free are of these those of which nobody has anything.
fn gpus(node: &v1::Node, inventory: &v1::Inventory) -> String {
    let held = node.gpu_holders.iter().map(|gpu| !gpu.holders.is_empty());
    let held = held.chain(std::iter::repeat(false));
    let mut models: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
    for (gpu, held) in inventory.gpus.iter().zip(held) {
        let model = gpu.model.trim_start_matches("NVIDIA ");
        let mode = match gpu.sharing() {
            _ if gpu.mig.is_some() => " in MIG mode",
            v1::Sharing::Unspecified => "",
            v1::Sharing::TimeSlice => " shared by time-slice",
            v1::Sharing::Mps => " shared by MPS",
        };
        let (free, total) = models.entry((model, mode)).or_default();
        *total += 1;
        *free += usize::from(!held && gpu.drained.is_empty());
    }
    if models.is_empty() {
        return "none".into();
    }
    let text = |((model, mode), (free, total))| format!("{free}/{total} {model}{mode}");
    models.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, reason: &str) -> v1::Node {
        v1::Node {
            name: name.into(),
            state: "IDLE".into(),
            reason: reason.into(),
            block: "7d0c8a52-31f3-4a0e-9c1e-5b9a77c9a3d1.3".into(),
            inventory: Some(v1::Inventory {
                gpus: vec![
                    v1::GpuInfo {
                        model: "NVIDIA L4".into(),
                        sharing: v1::Sharing::TimeSlice.into(),
                        ..v1::GpuInfo::default()
                    },
                    v1::GpuInfo {
                        model: "NVIDIA L4".into(),
                        ..v1::GpuInfo::default()
                    },
                ],
                ..v1::Inventory::default()
            }),
            ..v1::Node::default()
        }
    }

    /// Nothing is cut off where it may be read by a program, and no row is broken where a person reads it.
    #[test]
    fn a_narrow_terminal_has_reasons_below_the_table() {
        let nodes = [
            node("n1", ""),
            node("n2", "drained: a fan makes a noise, ticket 4711"),
        ];
        let whole = table(&nodes, usize::MAX);
        assert_eq!(whole.lines().count(), 3, "{whole}");
        assert!(
            whole.contains("block 7d0c8a52-31f3-4a0e-9c1e-5b9a77c9a3d1.3"),
            "{whole}"
        );
        assert!(whole.contains("1/1 L4, 1/1 L4 shared by time-slice"), "{whole}");
        assert!(
            whole.ends_with("  drained: a fan makes a noise, ticket 4711\n"),
            "{whole}"
        );
        let narrow = table(&nodes, 100);
        assert!(output::fits(&narrow, 100), "{narrow}");
        assert!(narrow.contains("block 7d0c8a52-31…"), "{narrow}");
        assert!(
            narrow.ends_with("\nn2: drained: a fan makes a noise, ticket 4711\n"),
            "{narrow}"
        );
    }
}
