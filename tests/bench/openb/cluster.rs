//! What is free, kept apart from every policy: none can take what is not there.

use anyhow::ensure;

use super::trace::{Node, Pod, Trace};

/// A whole GPU, thousandths.
pub const WHOLE: u32 = 1000;

/// What of a node is free.
#[derive(Clone, Debug)]
pub struct Free {
    /// CPUs, thousandths.
    pub cpu_milli: u64,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Of each GPU, thousandths.
    pub gpus: Vec<u32>,
    /// The model of its GPUs, by number.
    pub model: u32,
}

impl Free {
    fn new(node: &Node) -> Self {
        Self {
            cpu_milli: node.cpu_milli,
            memory_mib: node.memory_mib,
            gpus: vec![WHOLE; node.gpus],
            model: node.model,
        }
    }

    /// A pod could run there.
    pub fn fits(&self, pod: &Pod) -> bool {
        self.cpu_milli >= pod.cpu_milli
            && self.memory_mib >= pod.memory_mib
            && (pod.gpus == 0 || pod.allows(self.model))
            && self.with_room(pod).count() >= pod.gpus
    }

    /// GPUs that have room for a pod's part of one, the first first.
    pub fn with_room(&self, pod: &Pod) -> impl Iterator<Item = usize> {
        let wanted = pod.gpu_milli;
        let gpus = self.gpus.iter().enumerate();
        gpus.filter(move |(_, free)| **free >= wanted).map(|(gpu, _)| gpu)
    }

    /// Takes a pod's share of CPUs and memory, and of these GPUs.
    pub fn take(&mut self, pod: &Pod, gpus: &[usize]) {
        self.cpu_milli -= pod.cpu_milli;
        self.memory_mib -= pod.memory_mib;
        for gpu in gpus {
            self.gpus[*gpu] -= pod.gpu_milli;
        }
    }

    /// Of all its GPUs, thousandths.
    pub fn milli(&self) -> u64 {
        self.gpus.iter().map(|free| u64::from(*free)).sum()
    }
}

/// Where a pod goes.
#[derive(Clone, Debug)]
pub struct Place {
    /// Number of the node.
    pub node: usize,
    /// Numbers of its GPUs.
    pub gpus: Vec<usize>,
}

/// How pods are given places.
pub trait Policy {
    /// The place of a pod of a kind; none: it fits nowhere.
    fn choose(&mut self, cluster: &Cluster, class: usize, pod: &Pod) -> anyhow::Result<Option<Place>>;

    /// A place was taken.
    fn taken(&mut self, _cluster: &Cluster, _place: &Place) -> anyhow::Result<()> {
        Ok(())
    }
}

/// All nodes.
#[derive(Debug)]
pub struct Cluster {
    /// What is free of each, in the order of the list.
    pub nodes: Vec<Free>,
}

impl Cluster {
    /// Nothing is taken yet.
    pub fn new(trace: &Trace) -> Self {
        Self {
            nodes: trace.nodes.iter().map(Free::new).collect(),
        }
    }

    /// Unallocated GPUs, thousandths.
    pub fn free_milli(&self) -> u64 {
        self.nodes.iter().map(Free::milli).sum()
    }

    /// Gives a pod a place that is really free.
    pub fn take(&mut self, pod: &Pod, place: &Place) -> anyhow::Result<()> {
        let node = &mut self.nodes[place.node];
        let mut gpus = place.gpus.clone();
        gpus.sort_unstable();
        gpus.dedup();
        let room = gpus
            .iter()
            .all(|gpu| node.gpus.get(*gpu).is_some_and(|free| *free >= pod.gpu_milli));
        ensure!(
            node.fits(pod) && room && gpus.len() == pod.gpus && place.gpus.len() == pod.gpus,
            "a place that is not free: {place:?} of {node:?} for {pod:?}"
        );
        node.take(pod, &gpus);
        Ok(())
    }
}
