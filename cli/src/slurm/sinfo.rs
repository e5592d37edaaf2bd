//! `sinfo`: partitions and their nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use carrel_core::model::host_list;
use carrel_proto::v1;
use serde_json::{Value as Json, json};

use super::format::{self, Field, Layout, Part};
use super::options::Takes::{Nothing, Perhaps, Value};
use super::options::{Given, NO_MORE_TALK, NONE, ONE_CLUSTER, Usage, refused, taken, used};
use super::{Called, job, words};
use crate::error::Result;
use crate::output;

/// The command.
pub const USAGE: Usage = Usage {
    name: "sinfo",
    line: "[OPTIONS]",
    about: "Lists partitions and the states of their nodes.",
    options: &[
        taken('a', "all", Nothing, "no partition is hidden"),
        used('d', "dead", Nothing, "nodes that do not answer"),
        taken('e', "exact", Nothing, "nodes are told apart by what is shown"),
        taken(NONE, "federation", Nothing, ONE_CLUSTER),
        taken('F', "future", Nothing, "there are no nodes to come"),
        used('o', "format", Value, "what is shown: \"%P %a %l %D %t %N\""),
        used(
            'O',
            "Format",
            Value,
            "the same by long names: nodelist:20,statelong",
        ),
        used(NONE, "help", Nothing, "this text"),
        taken(NONE, "hide", Nothing, "no partition is hidden"),
        used('i', "iterate", Value, "again every so many seconds"),
        used(NONE, "json", Perhaps, "as JSON, with Slurm's names"),
        taken(NONE, "local", Nothing, ONE_CLUSTER),
        used('l', "long", Nothing, "more of each"),
        taken('M', "clusters", Value, ONE_CLUSTER),
        used('n', "nodes", Value, "these nodes"),
        used(NONE, "noconvert", Nothing, "units are as they are"),
        used('N', "Node", Nothing, "a line for each node"),
        used('h', "noheader", Nothing, "no header"),
        used('p', "partition", Value, "these partitions"),
        used('r', "responding", Nothing, "nodes that answer"),
        used('R', "list-reasons", Nothing, "why nodes are down or drained"),
        refused(
            'T',
            "reservation",
            Nothing,
            "`carrel admin reservation list` lists them",
        ),
        used('S', "sort", Value, "in this order: P,-t,N"),
        used('t', "states", Value, "in these states: idle,mix"),
        used('s', "summarize", Nothing, "a line for each partition"),
        used(NONE, "usage", Nothing, "how it is called"),
        taken('v', "verbose", Nothing, NO_MORE_TALK),
        used('V', "version", Nothing, "the version"),
        refused(NONE, "yaml", Perhaps, "--json is there"),
    ],
};

const USUAL: &str = "%9P %.5a %.10l %.6D %.6t %N";
const SUMMARY: &str = "%9P %.5a %.10l %.16F %N";
const LONG: &str = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N";
const BY_NODE: &str = "%10N %.6D %.9P %.6t";
const BY_NODE_LONG: &str = "%10N %.6D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E";
const REASONS: &str = "%20E %9u %19H %N";

/// What the cluster has.
pub struct World {
    /// Its nodes, by name.
    pub nodes: Vec<v1::Node>,
    /// Its partitions.
    pub partitions: Vec<v1::Partition>,
    /// Time limit of jobs that ask for none, and the longest, seconds.
    pub default_time_s: u64,
    longest_s: u64,
}

impl World {
    /// As it is now.
    pub async fn of(called: &Called) -> Result<Self> {
        let mut client = called.context.client().await?;
        let mut nodes = client
            .list_nodes(v1::ListNodesRequest {})
            .await?
            .into_inner()
            .nodes;
        nodes.sort_by(|a, b| host_list::natural(&a.name, &b.name));
        let partitions = client.list_partitions(v1::ListPartitionsRequest {}).await?;
        let mut partitions = partitions.into_inner().partitions;
        if partitions.is_empty() {
            // Where operators have made none, all nodes are one.
            let all = nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>();
            partitions.push(v1::Partition {
                name: "all".to_owned(),
                default: true,
                nodes: all.join(","),
                node_count: u32::try_from(all.len()).unwrap_or(u32::MAX),
                ..v1::Partition::default()
            });
        }
        let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.into_inner();
        Ok(Self {
            nodes,
            partitions,
            default_time_s: cluster.default_time_s,
            longest_s: cluster.max_time_s,
        })
    }

    /// Nodes of a partition.
    pub fn members(&self, partition: &v1::Partition) -> Vec<&v1::Node> {
        let names = host_list::expanded(&partition.nodes).unwrap_or_default();
        let names: std::collections::BTreeSet<&str> = names.iter().map(String::as_str).collect();
        self.nodes
            .iter()
            .filter(|node| names.contains(node.name.as_str()))
            .collect()
    }

    /// Partitions that a node is in.
    pub fn partitions_of(&self, node: &str) -> Vec<String> {
        let has = |partition: &&v1::Partition| self.members(partition).iter().any(|one| one.name == node);
        self.partitions
            .iter()
            .filter(has)
            .map(|one| one.name.clone())
            .collect()
    }

    /// The longest time limit of a partition's jobs, seconds; 0: any.
    pub fn max_time_s(&self, partition: &v1::Partition) -> u64 {
        let own = partition.limits.as_ref().and_then(|limits| limits.time_s);
        own.map_or(self.longest_s, |own| own.min(self.longest_s))
    }
}

/// Slurm's word for a node's state: of one that we call FOUND it knows nothing.
pub fn state(node: &v1::Node) -> String {
    match node.state.as_str() {
        "FOUND" => "FUTURE".to_owned(),
        "MAINT" => "MAINT".to_owned(),
        other => other.to_owned(),
    }
}

/// "idle", "mix", "alloc", "drain".
fn short_state(node: &v1::Node) -> String {
    match node.state.as_str() {
        "IDLE" => "idle",
        "MIXED" => "mix",
        "ALLOCATED" => "alloc",
        "RESERVED" => "resv",
        "MAINT" => "maint",
        "DOWN" => "down",
        "DRAINING" => "drng",
        "DRAINED" => "drain",
        "FOUND" => "futr",
        other => return other.to_ascii_lowercase(),
    }
    .to_owned()
}

/// "gpu:h100:8"; the model as its shortest word.
pub fn gres(node: &v1::Node) -> String {
    let gpus = node.inventory.iter().flat_map(|has| &has.gpus);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for gpu in gpus {
        *counts.entry(model_word(&gpu.model)).or_default() += 1;
    }
    let parts = counts.iter().map(|(model, count)| format!("gpu:{model}:{count}"));
    parts.collect::<Vec<_>>().join(",")
}

/// The same of what is held.
pub fn gres_used(node: &v1::Node) -> String {
    let gpus = node
        .inventory
        .iter()
        .flat_map(|has| &has.gpus)
        .zip(&node.gpu_holders);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (gpu, held) in gpus {
        *counts.entry(model_word(&gpu.model)).or_default() += usize::from(!held.holders.is_empty());
    }
    let parts = counts.iter().map(|(model, count)| format!("gpu:{model}:{count}"));
    parts.collect::<Vec<_>>().join(",")
}

/// "NVIDIA H100 80GB HBM3": "h100".
fn model_word(model: &str) -> String {
    let words = model.split([' ', '-']).map(str::to_ascii_lowercase);
    let has = |word: &str| {
        word.contains(|c: char| c.is_ascii_digit()) && word.contains(|c: char| c.is_ascii_alphabetic())
    };
    let mut named = words.filter(|word| word != "nvidia" && has(word) && !word.ends_with("gb"));
    named.next().unwrap_or_else(|| "gpu".to_owned())
}

/// A line: a partition, and those of its nodes that are alike in what is shown.
#[derive(Clone)]
pub struct Line {
    partition: v1::Partition,
    max_time_s: u64,
    nodes: Vec<v1::Node>,
}

const fn field(
    letter: char,
    name: &'static str,
    header: &'static str,
    value: fn(&Line) -> String,
) -> Field<Line> {
    Field {
        letter: if letter == NONE { None } else { Some(letter) },
        name,
        header,
        width: 0,
        value,
    }
}

/// What there is to show.
const FIELDS: &[Field<Line>] = &[
    field('a', "Available", "AVAIL", |_| "up".to_owned()),
    field('A', "NodeAI", "NODES(A/I)", |line| {
        let (held, idle, _, _) = line.node_counts();
        format!("{held}/{idle}")
    }),
    field('b', "Features_act", "ACTIVE_FEATURES", |line| {
        line.first(features)
    }),
    field('B', "MaxCPUsPerNode", "MAX_CPUS_PER_NODE", |_| {
        "UNLIMITED".to_owned()
    }),
    field('c', "CPUs", "CPUS", |line| {
        line.range(|node| u64::from(inventory(node).cpus))
    }),
    field('C', "CPUsState", "CPUS(A/I/O/T)", |line| {
        let (held, idle, other, all) = line.cpu_counts();
        format!("{held}/{idle}/{other}/{all}")
    }),
    field('d', "Disk", "TMP_DISK", |_| "0".to_owned()),
    field('D', "Nodes", "NODES", |line| line.nodes.len().to_string()),
    field('e', "FreeMem", "FREE_MEM", |line| {
        line.range(|node| inventory(node).memory_bytes.saturating_sub(node.memory_held) >> 20)
    }),
    field('E', "Reason", "REASON", |line| {
        line.first(|node| {
            if node.reason.is_empty() {
                "none".to_owned()
            } else {
                node.reason.clone()
            }
        })
    }),
    field('f', "Features", "AVAIL_FEATURES", |line| line.first(features)),
    field('F', "NodeAIOT", "NODES(A/I/O/T)", |line| {
        let (held, idle, other, all) = line.node_counts();
        format!("{held}/{idle}/{other}/{all}")
    }),
    field('g', "Groups", "GROUPS", |_| "all".to_owned()),
    field('G', "Gres", "GRES", |line| line.first(|node| some(gres(node)))),
    field('h', "OverSubscribe", "OVERSUBS", |_| "NO".to_owned()),
    field('H', "Timestamp", "TIMESTAMP", |_| "Unknown".to_owned()),
    field('I', "PriorityJobFactor", "PRIO_JOB_FACTOR", |line| {
        line.partition.priority.to_string()
    }),
    field('l', "Time", "TIMELIMIT", |line| limit(line.max_time_s)),
    field('L', "DefaultTime", "DEFAULTTIME", |line| {
        limit(line.partition.default_time_s)
    }),
    field('m', "Memory", "MEMORY", |line| {
        line.range(|node| inventory(node).memory_bytes >> 20)
    }),
    field('M', "PreemptMode", "PREEMPT_MODE", |_| "OFF".to_owned()),
    field('n', "NodeHost", "HOSTNAMES", Line::node_list),
    field('N', "NodeList", "NODELIST", Line::node_list),
    field('o', "NodeAddr", "NODE_ADDR", Line::node_list),
    field('O', "CPUsLoad", "CPU_LOAD", |_| "N/A".to_owned()),
    field('p', "PriorityTier", "PRIO_TIER", |_| "1".to_owned()),
    field('P', "Partition", "PARTITION", |line| {
        let mark = if line.partition.default { "*" } else { "" };
        format!("{}{mark}", line.partition.name)
    }),
    field('r', "Root", "ROOT", |_| "no".to_owned()),
    field('R', "PartitionName", "PARTITION", |line| {
        line.partition.name.clone()
    }),
    field('s', "Size", "JOB_SIZE", |_| "1-infinite".to_owned()),
    field('S', "AllocNodes", "ALLOCNODES", |_| "all".to_owned()),
    field('t', "StateCompact", "STATE", |line| line.first(short_state)),
    field('T', "StateLong", "STATE", |line| {
        line.first(|node| state(node).to_ascii_lowercase())
    }),
    field('u', "User", "USER", |_| "Unknown".to_owned()),
    field('U', "UserLong", "USER", |_| "Unknown".to_owned()),
    field('v', "Version", "VERSION", |line| {
        line.first(|node| node.version.clone())
    }),
    field('V', "Cluster", "CLUSTER", |_| "N/A".to_owned()),
    field('w', "Weight", "WEIGHT", |_| "1".to_owned()),
    field('X', "Sockets", "SOCKETS", |_| "1".to_owned()),
    field('Y', "Cores", "CORES", |line| {
        line.range(|node| u64::from(inventory(node).cpus))
    }),
    field('Z', "Threads", "THREADS", |_| "1".to_owned()),
    field('z', "SocketCoreThread", "S:C:T", |line| {
        line.first(|node| format!("1:{}:1", inventory(node).cpus))
    }),
    field(NONE, "GresUsed", "GRES_USED", |line| {
        line.first(|node| some(gres_used(node)))
    }),
    field(NONE, "AllocMem", "ALLOCMEM", |line| {
        line.range(|node| node.memory_held >> 20)
    }),
    field(NONE, "StateComplete", "STATE", |line| {
        line.first(|node| state(node).to_ascii_lowercase())
    }),
    field(NONE, "Comment", "COMMENT", |_| "(null)".to_owned()),
];

/// What differs from node to node without telling lines apart.
const SUMS: [&str; 14] = [
    "NodeAI",
    "NodeAIOT",
    "CPUsState",
    "CPUs",
    "Nodes",
    "NodeList",
    "Memory",
    "Cores",
    "AllocMem",
    "Available",
    "Time",
    "Partition",
    "PartitionName",
    "DefaultTime",
];

fn some(text: String) -> String {
    if text.is_empty() {
        "(null)".to_owned()
    } else {
        text
    }
}

fn limit(seconds: u64) -> String {
    match seconds {
        0 => "infinite".to_owned(),
        seconds => words::clock(seconds),
    }
}

fn features(node: &v1::Node) -> String {
    some(node.features.join(","))
}

fn inventory(node: &v1::Node) -> v1::Inventory {
    node.inventory.clone().unwrap_or_default()
}

/// It can be given nothing, whatever it holds.
fn is_out(node: &v1::Node) -> bool {
    !matches!(node.state.as_str(), "IDLE" | "MIXED" | "ALLOCATED")
}

impl Line {
    fn first(&self, value: impl Fn(&v1::Node) -> String) -> String {
        self.nodes.first().map_or_else(|| "n/a".to_owned(), value)
    }

    /// "8", or "8+" where some have more.
    fn range(&self, value: impl Fn(&v1::Node) -> u64) -> String {
        let values = || self.nodes.iter().map(&value);
        let (least, most) = (values().min().unwrap_or(0), values().max().unwrap_or(0));
        if least == most {
            least.to_string()
        } else {
            format!("{least}+")
        }
    }

    fn node_list(&self) -> String {
        let names: Vec<String> = self.nodes.iter().map(|node| node.name.clone()).collect();
        job::compressed(&names)
    }

    /// Allocated, idle, neither, all.
    fn node_counts(&self) -> (usize, usize, usize, usize) {
        let out = self.nodes.iter().filter(|node| is_out(node)).count();
        let idle = self.nodes.iter().filter(|node| node.state == "IDLE").count();
        (self.nodes.len() - out - idle, idle, out, self.nodes.len())
    }

    fn cpu_counts(&self) -> (u32, u32, u32, u32) {
        let mut counts = (0, 0, 0, 0);
        for node in &self.nodes {
            let all = inventory(node).cpus;
            let free = all.saturating_sub(node.cpus_held);
            counts.0 += node.cpus_held;
            if is_out(node) {
                counts.2 += free;
            } else {
                counts.1 += free;
            }
            counts.3 += all;
        }
        counts
    }
}

/// Runs it.
pub async fn run(called: &Called, mut given: Given) -> Result<u8> {
    for (variable, long) in [
        ("SINFO_FORMAT", "format"),
        ("SINFO_PARTITION", "partition"),
        ("SINFO_SORT", "sort"),
    ] {
        if let Some(value) = std::env::var(variable).ok().filter(|value| !value.is_empty())
            && !given.has(long)
            && !(long == "format" && given.has("Format"))
        {
            given.set(long, &value);
        }
    }
    if let Some(word) = given.words.first() {
        return Err(USAGE.wrong(&format!("Unrecognized option: {word}")));
    }
    let every = given.value("iterate").map(|text| {
        let seconds = text.parse::<u64>().ok().filter(|seconds| *seconds > 0);
        seconds.ok_or_else(|| USAGE.wrong(&format!("--iterate={text} is no number of seconds")))
    });
    let every = every.transpose()?;
    loop {
        let world = World::of(called).await?;
        show(&given, &world)?;
        match every {
            None => return Ok(0),
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        }
    }
}

fn show(given: &Given, world: &World) -> Result<()> {
    let layout = layout(given)?;
    let mut lines = lines(given, world, &layout)?;
    if let Some(by) = given.value("sort") {
        sort(&mut lines, by)?;
    }
    if given.has("json") {
        return output::json(&super::json::nodes(lines.iter().map(message).collect()));
    }
    let mut text = String::new();
    if !given.has("noheader") {
        text += &format::line(&layout, None);
    }
    text.extend(lines.iter().map(|line| format::line(&layout, Some(line))));
    output::text(text)
}

fn layout(given: &Given) -> Result<Layout<Line>> {
    if given.place("Format") > given.place("format") {
        return format::long(given.value("Format").unwrap_or_default(), FIELDS);
    }
    let text = match given.value("format") {
        Some(text) => text,
        None if given.has("list-reasons") => REASONS,
        None if given.has("summarize") => SUMMARY,
        None if given.has("Node") && given.has("long") => BY_NODE_LONG,
        None if given.has("Node") => BY_NODE,
        None if given.has("long") => LONG,
        None => USUAL,
    };
    format::letters(text, FIELDS)
}

fn lines(given: &Given, world: &World, layout: &Layout<Line>) -> Result<Vec<Line>> {
    let partitions = given.list("partition");
    let named = given.value("nodes").unwrap_or_default();
    let named = host_list::expanded(named).map_err(|error| USAGE.wrong(&error.to_string()))?;
    let states = given.list("states");
    let is_in = |node: &v1::Node| {
        let is = |wanted: &String| {
            let wanted = wanted.to_ascii_lowercase();
            let wanted = wanted.trim_end_matches('*');
            let own = state(node).to_ascii_lowercase();
            own == wanted
                || short_state(node) == wanted
                || wanted == "all"
                || (wanted == "drain" && own.starts_with("drain"))
                || (wanted == "allocated" && own == "mixed")
        };
        states.is_empty() || states.iter().any(is)
    };
    let is_wanted = |node: &v1::Node| {
        (named.is_empty() || named.contains(&node.name))
            && is_in(node)
            && !(given.has("dead") && node.state != "DOWN")
            && !(given.has("responding") && node.state == "DOWN")
            && !(given.has("list-reasons") && node.reason.is_empty())
    };
    let apart: Vec<fn(&Line) -> String> = layout
        .iter()
        .filter_map(|part| match part {
            Part::Column(column) if !SUMS.contains(&column.field.name) => Some(column.field.value),
            Part::Column(_) | Part::Text(_) => None,
        })
        .collect();
    let mut lines: Vec<Line> = Vec::new();
    for partition in &world.partitions {
        if !partitions.is_empty() && !partitions.contains(&partition.name) {
            continue;
        }
        let one = |nodes: Vec<v1::Node>| Line {
            partition: partition.clone(),
            max_time_s: world.max_time_s(partition),
            nodes,
        };
        let first = lines.len();
        let mut groups: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        for node in world
            .members(partition)
            .into_iter()
            .filter(|node| is_wanted(node))
        {
            let alone = one(vec![node.clone()]);
            let mut key: Vec<String> = apart.iter().map(|value| value(&alone)).collect();
            if given.has("Node") {
                key.push(node.name.clone());
            }
            if let Some(at) = groups.get(&key) {
                lines[*at].nodes.push(node.clone());
            } else {
                groups.insert(key, lines.len());
                lines.push(alone);
            }
        }
        // A partition without nodes is one all the same.
        let no_choice =
            named.is_empty() && states.is_empty() && !given.has("list-reasons") && !given.has("Node");
        if lines.len() == first && no_choice && !given.has("dead") {
            lines.push(one(Vec::new()));
        }
    }
    if given.has("Node") {
        lines.sort_by(|a, b| host_list::natural(&a.node_list(), &b.node_list()));
    }
    Ok(lines)
}

fn sort(lines: &mut [Line], by: &str) -> Result<()> {
    let mut keys = Vec::new();
    for word in by.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (down, letter) = word.strip_prefix('-').map_or((false, word), |rest| (true, rest));
        let letter = letter.trim_start_matches(['+', '#']);
        let layout = format::letters(&format!("%{letter}"), FIELDS)?;
        let [Part::Column(column)] = layout.as_slice() else {
            return Err(USAGE.wrong(&format!("Invalid sort specification: {word}")));
        };
        keys.push((column.field, down));
    }
    lines.sort_by(|a, b| {
        let orders = keys.iter().map(|(field, down)| {
            let order = host_list::natural(&(field.value)(a), &(field.value)(b));
            if *down { order.reverse() } else { order }
        });
        orders.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    });
    Ok(())
}

fn message(line: &Line) -> Json {
    let (held, idle, other, all) = line.node_counts();
    let (cpus_held, cpus_idle, cpus_other, cpus) = line.cpu_counts();
    let names: Vec<&str> = line.nodes.iter().map(|node| node.name.as_str()).collect();
    json!({
        "cluster": "carrel",
        "node": {"state": [line.first(state)]},
        "nodes": {"allocated": held, "idle": idle, "other": other, "total": all, "hostnames": names, "nodes": names},
        "cpus": {"allocated": cpus_held, "idle": cpus_idle, "other": cpus_other, "total": cpus},
        "memory": {"maximum": line.nodes.iter().map(|node| inventory(node).memory_bytes >> 20).max().unwrap_or(0)},
        "gres": {"total": line.first(gres), "used": line.first(gres_used)},
        "features": {"total": line.first(|node| node.features.join(","))},
        "partition": {
            "name": line.partition.name,
            "partition": {"state": ["UP"]},
            "maximums": {"time": {"set": line.max_time_s > 0, "infinite": line.max_time_s == 0, "number": line.max_time_s / 60}},
        },
        "reason": {"description": line.nodes.first().map(|node| node.reason.clone()).unwrap_or_default()},
    })
}

#[cfg(test)]
mod tests {
    use super::super::options;
    use super::*;

    fn world() -> World {
        let node = |name: &str, state: &str, cpus_held: u32| v1::Node {
            name: name.into(),
            state: state.into(),
            reason: if state == "DRAINED" {
                "broken".into()
            } else {
                String::new()
            },
            cpus_held,
            inventory: Some(v1::Inventory {
                cpus: 8,
                memory_bytes: 4 << 30,
                gpus: vec![
                    v1::GpuInfo {
                        model: "NVIDIA H100 80GB HBM3".into(),
                        ..v1::GpuInfo::default()
                    };
                    2
                ],
                ..v1::Inventory::default()
            }),
            gpu_holders: vec![v1::GpuHolders::default(); 2],
            ..v1::Node::default()
        };
        World {
            nodes: vec![
                node("n1", "IDLE", 0),
                node("n2", "IDLE", 0),
                node("n3", "MIXED", 3),
                node("n4", "DRAINED", 0),
            ],
            partitions: vec![v1::Partition {
                name: "all".into(),
                default: true,
                nodes: "n[1-4]".into(),
                node_count: 4,
                ..v1::Partition::default()
            }],
            default_time_s: 3_600,
            longest_s: 7 * 86_400,
        }
    }

    fn listed(line: &[&str]) -> String {
        let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        let given = options::parse(&USAGE, &words, false).expect("read");
        let world = world();
        let layout = layout(&given).expect("a format");
        let lines = lines(&given, &world, &layout).expect("lines");
        let header = (!given.has("noheader")).then(|| format::line(&layout, None));
        let lines = lines.iter().map(|line| format::line(&layout, Some(line)));
        header.into_iter().chain(lines).collect()
    }

    #[test]
    fn nodes_that_are_alike_share_a_line() {
        insta::assert_snapshot!(listed(&[]), @r"
        PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
        all*         up 7-00:00:00      2   idle n[1-2]
        all*         up 7-00:00:00      1    mix n3
        all*         up 7-00:00:00      1  drain n4
        ");
        insta::assert_snapshot!(listed(&["-s"]), @r"
        PARTITION AVAIL  TIMELIMIT   NODES(A/I/O/T) NODELIST
        all*         up 7-00:00:00          1/2/1/4 n[1-4]
        ");
        assert_eq!(
            listed(&["-h", "-o", "%P %a %l %D %t %N", "-t", "idle,mix"]),
            "all* up 7-00:00:00 2 idle n[1-2]\nall* up 7-00:00:00 1 mix n3\n"
        );
    }

    #[test]
    fn a_node_has_a_line_of_its_own_where_wanted() {
        assert_eq!(
            listed(&["-hN", "-o", "%N|%c|%m|%G|%C|%R|%T"]),
            "n1|8|4096|gpu:h100:2|0/8/0/8|all|idle\n\
             n2|8|4096|gpu:h100:2|0/8/0/8|all|idle\n\
             n3|8|4096|gpu:h100:2|3/5/0/8|all|mixed\n\
             n4|8|4096|gpu:h100:2|0/0/8/8|all|drained\n"
        );
        assert_eq!(listed(&["-hR", "-o", "%E %N"]), "broken n4\n");
        assert_eq!(
            listed(&["-h", "-n", "n3,n9", "-O", "nodelist:4,statelong:6"]),
            "n3  mixed \n"
        );
        // Slurm's hosts and addresses, and what is free, tell nodes apart.
        assert_eq!(
            listed(&["-h", "-o", "%n %t"]),
            "n1 idle\nn2 idle\nn3 mix\nn4 drain\n"
        );
    }

    #[test]
    fn each_letter_and_name_stands_for_one_thing() {
        let letters: std::collections::BTreeSet<char> =
            FIELDS.iter().filter_map(|field| field.letter).collect();
        assert_eq!(
            letters.len(),
            FIELDS.iter().filter(|field| field.letter.is_some()).count()
        );
        let names: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
        assert!(SUMS.iter().all(|name| names.contains(name)));
    }
}
