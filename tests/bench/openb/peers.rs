//! Policies that look at free resources only.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng, seq::SliceRandom};

use super::cluster::{Cluster, Free, Place, Policy, WHOLE};
use super::trace::{Pod, Trace};

/// [`FirstFit`] in the figures.
pub const FIRST_FIT: &str = "first_fit";
/// [`BestFit`] in the figures.
pub const BEST_FIT: &str = "best_fit";
/// [`Random`] in the figures.
pub const RANDOM: &str = "random";

fn fitting<'a>(cluster: &'a Cluster, pod: &'a Pod) -> impl Iterator<Item = (usize, &'a Free)> {
    let nodes = cluster.nodes.iter().enumerate();
    nodes.filter(|(_, free)| free.fits(pod))
}

/// The first node of the list that has room, and its first GPUs.
#[derive(Debug)]
pub struct FirstFit;

impl Policy for FirstFit {
    fn choose(&mut self, cluster: &Cluster, _class: usize, pod: &Pod) -> anyhow::Result<Option<Place>> {
        let first = fitting(cluster, pod).next();
        Ok(first.map(|(node, free)| Place {
            node,
            gpus: free.with_room(pod).take(pod.gpus).collect(),
        }))
    }
}

/// The node that is left with the least, CPUs and GPUs each as a share of the largest node's, and its GPUs with
/// the least free.
#[derive(Debug)]
pub struct BestFit {
    /// The largest node's, thousandths.
    cpu_milli: u128,
    /// The largest node's, thousandths.
    gpu_milli: u128,
}

impl BestFit {
    /// For the trace's nodes.
    pub fn new(trace: &Trace) -> Self {
        let most = |of: fn(&super::trace::Node) -> u64| trace.nodes.iter().map(of).max().unwrap_or(0);
        Self {
            cpu_milli: most(|node| node.cpu_milli).into(),
            gpu_milli: most(|node| node.gpus as u64 * u64::from(WHOLE)).into(),
        }
    }

    /// What a node is left with, as a share of the largest, times both of its sizes.
    fn left(&self, free: &Free, pod: &Pod) -> u128 {
        let cpu = u128::from(free.cpu_milli - pod.cpu_milli);
        let gpu = u128::from(free.milli() - pod.milli());
        cpu * self.gpu_milli + gpu * self.cpu_milli
    }
}

impl Policy for BestFit {
    fn choose(&mut self, cluster: &Cluster, _class: usize, pod: &Pod) -> anyhow::Result<Option<Place>> {
        let least = fitting(cluster, pod).min_by_key(|(node, free)| (self.left(free, pod), *node));
        Ok(least.map(|(node, free)| {
            let mut gpus: Vec<usize> = free.with_room(pod).collect();
            gpus.sort_by_key(|gpu| free.gpus[*gpu]);
            gpus.truncate(pod.gpus);
            Place { node, gpus }
        }))
    }
}

/// Any node that has room, and any of its GPUs.
#[derive(Debug)]
pub struct Random(SmallRng);

impl Random {
    /// With a seed.
    pub fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }
}

impl Policy for Random {
    fn choose(&mut self, cluster: &Cluster, _class: usize, pod: &Pod) -> anyhow::Result<Option<Place>> {
        let nodes: Vec<(usize, &Free)> = fitting(cluster, pod).collect();
        if nodes.is_empty() {
            return Ok(None);
        }
        let (node, free) = nodes[self.0.random_range(0..nodes.len())];
        let mut gpus: Vec<usize> = free.with_room(pod).collect();
        gpus.shuffle(&mut self.0);
        gpus.truncate(pod.gpus);
        Ok(Some(Place { node, gpus }))
    }
}
