//! Lists of nodes and pods, as the traces have them: text with commas and a line of names.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::ensure;

use super::cluster::WHOLE;
use crate::lists::{Row, read};

/// Most models of GPUs: bits of a mask.
const MAX_MODELS: usize = 64;
/// Most GPUs of a node: bits of a mask.
const MAX_GPUS: usize = 64;

/// Columns that a list of nodes has.
const NODE_COLUMNS: [&str; 4] = ["cpu_milli", "memory_mib", "gpu", "model"];
/// Columns that every list of pods has.
const POD_COLUMNS: [&str; 3] = ["cpu_milli", "memory_mib", "num_gpu"];

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// CPUs, thousandths.
    pub cpu_milli: u64,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Number of GPUs.
    pub gpus: usize,
    /// Their model, by number.
    pub model: u32,
}

/// What a pod asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    /// CPUs, thousandths.
    pub cpu_milli: u64,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Number of GPUs.
    pub gpus: usize,
    /// Of each of them, thousandths.
    pub gpu_milli: u32,
    /// Models that will do, a bit each; none: any.
    pub models: u64,
}

impl Pod {
    /// Of all its GPUs, thousandths.
    pub fn milli(&self) -> u64 {
        self.gpus as u64 * u64::from(self.gpu_milli)
    }

    /// GPUs of a model will do.
    pub fn allows(&self, model: u32) -> bool {
        self.models == 0 || self.models >> model & 1 == 1
    }
}

/// A cluster, and what is asked of it.
#[derive(Debug)]
pub struct Trace {
    /// In the order of the list.
    pub nodes: Vec<Node>,
    /// Names of the models that nodes have or pods ask for.
    pub models: Vec<String>,
    /// Pods that differ.
    pub classes: Vec<Pod>,
    /// The list: for each pod, which of the classes it is.
    pub pods: Vec<usize>,
}

impl Trace {
    /// Reads both lists.
    pub fn read(nodes: &Path, pods: &Path) -> anyhow::Result<Self> {
        let mut models = Models::default();
        let node_list = read(nodes, &NODE_COLUMNS, |row| node(row, &mut models))?;
        let pod_list = read(pods, &POD_COLUMNS, |row| pod(row, &mut models))?;
        let mut numbers: BTreeMap<&Pod, usize> = pod_list.iter().map(|pod| (pod, 0)).collect();
        for (number, class) in numbers.values_mut().enumerate() {
            *class = number;
        }
        let trace = Self {
            nodes: node_list,
            models: models.0,
            pods: pod_list.iter().map(|pod| numbers[pod]).collect(),
            classes: numbers.into_keys().cloned().collect(),
        };
        ensure!(trace.gpus() > 0, "{}: no node has GPUs", nodes.display());
        let asked: u64 = trace.classes.iter().map(Pod::milli).sum();
        ensure!(asked > 0, "{}: no pod asks for GPUs", pods.display());
        Ok(trace)
    }

    /// GPUs of all nodes.
    pub fn gpus(&self) -> u64 {
        self.nodes.iter().map(|node| node.gpus as u64).sum()
    }

    /// GPUs of all nodes, thousandths.
    pub fn milli(&self) -> u64 {
        self.gpus() * u64::from(WHOLE)
    }
}

/// Names, by number.
#[derive(Debug, Default)]
struct Models(Vec<String>);

impl Models {
    fn number(&mut self, name: &str) -> anyhow::Result<u32> {
        let known = self.0.iter().position(|known| known == name);
        let number = known.unwrap_or(self.0.len());
        ensure!(number < MAX_MODELS, "there are more than {MAX_MODELS} models");
        if known.is_none() {
            self.0.push(name.to_owned());
        }
        Ok(number as u32)
    }
}

fn node(row: &Row<'_>, models: &mut Models) -> anyhow::Result<Node> {
    let gpus = row.number("gpu")? as usize;
    ensure!(
        gpus <= MAX_GPUS,
        "gpu: a node has at most {MAX_GPUS}, and not {gpus}"
    );
    let model = row.text("model").unwrap_or_default();
    ensure!(gpus == 0 || !model.is_empty(), "model: is empty");
    Ok(Node {
        cpu_milli: row.number("cpu_milli")?.into(),
        memory_mib: row.number("memory_mib")?.into(),
        gpus,
        model: models.number(model)?,
    })
}

fn pod(row: &Row<'_>, models: &mut Models) -> anyhow::Result<Pod> {
    let gpus = row.number("num_gpu")? as usize;
    ensure!(
        gpus <= MAX_GPUS,
        "num_gpu: a pod has at most {MAX_GPUS}, and not {gpus}"
    );
    let gpu_milli = match row.text("gpu_milli") {
        _ if gpus == 0 => 0,
        // Without the column, whole ones.
        None => WHOLE,
        Some(_) => row.number("gpu_milli")?,
    };
    let right = if gpus == 0 { 0..=0 } else { 1..=WHOLE };
    ensure!(
        right.contains(&gpu_milli),
        "gpu_milli: {gpu_milli} is not from 1 to {WHOLE}"
    );
    let mut mask = 0;
    for model in row.text("gpu_spec").unwrap_or_default().split('|') {
        if gpus > 0 && !model.is_empty() {
            mask |= 1 << models.number(model)?;
        }
    }
    Ok(Pod {
        cpu_milli: row.number("cpu_milli")?.into(),
        memory_mib: row.number("memory_mib")?.into(),
        gpus,
        gpu_milli,
        models: mask,
    })
}
