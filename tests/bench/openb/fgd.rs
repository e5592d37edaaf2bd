//! FGD, fragmentation gradient descent: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads
//! with Fragmentation Gradient Descent", USENIX ATC 2023, and the authors' simulator
//! (hkust-adsl/kubernetes-scheduler-simulator), whose constants these are.
//!
//! A node's fragmentation is what of its free GPUs a pod drawn from the whole workload could not use, in the
//! mean: all of it where the pod does not fit or asks for no GPU, else what lies on GPUs with less free than the
//! pod asks of one. A pod goes to where it makes that grow the least. Memory decides where a pod fits and does
//! not count as fragmentation.

use std::collections::BTreeMap;

use super::cluster::{Cluster, Free, Place, Policy, WHOLE};
use super::trace::{Pod, Trace};

/// FGD in the figures.
pub const FGD: &str = "fgd";

/// What a pod of a kind scores on a node, and the GPU for its share.
type Score = (i64, Option<usize>);

/// The policy, and what it knows of the workload before the first pod arrives.
#[derive(Debug)]
pub struct Fgd {
    /// Kinds of pods, and which share of the pods is of each.
    workload: Vec<(Pod, f64)>,
    /// By node and kind of pod, since the node changed.
    known: Vec<BTreeMap<usize, Score>>,
}

impl Fgd {
    /// With the workload that the trace's pods are.
    pub fn new(trace: &Trace) -> Self {
        let mut counts: BTreeMap<Pod, u32> = BTreeMap::new();
        for class in &trace.pods {
            // Memory does not tell kinds apart here.
            let memory_mib = 0;
            let pod = Pod {
                memory_mib,
                ..trace.classes[*class].clone()
            };
            *counts.entry(pod).or_default() += 1;
        }
        let all = trace.pods.len() as f64;
        let shares = counts
            .into_iter()
            .map(|(pod, count)| (pod, f64::from(count) / all));
        Self {
            workload: shares.collect(),
            known: vec![BTreeMap::new(); trace.nodes.len()],
        }
    }

    /// Thousandths of GPUs.
    fn fragmentation(&self, free: &Free) -> f64 {
        let all = free.milli();
        if all == 0 {
            return 0.0;
        }
        let lost = |pod: &Pod| {
            let fits = pod.gpus > 0
                && free.cpu_milli >= pod.cpu_milli
                && pod.allows(free.model)
                && free.with_room(pod).count() >= pod.gpus;
            let usable: u64 = free.with_room(pod).map(|gpu| u64::from(free.gpus[gpu])).sum();
            all - if fits { usable } else { 0 }
        };
        self.workload
            .iter()
            .map(|(pod, share)| share * lost(pod) as f64)
            .sum()
    }

    /// From 0 to 100, the less fragmentation grows the higher.
    fn score(&self, free: &Free, pod: &Pod) -> Score {
        let before = self.fragmentation(free);
        let with = |gpus: &[usize]| {
            let mut after = free.clone();
            after.take(pod, gpus);
            let falls = (before - self.fragmentation(&after)) / 1000.0;
            (100.0 / (1.0 + (-falls).exp())) as i64
        };
        if pod.gpus != 1 || pod.gpu_milli == WHOLE {
            return (
                with(&free.with_room(pod).take(pod.gpus).collect::<Vec<_>>()),
                None,
            );
        }
        let mut best: Score = (-1, None);
        for gpu in free.with_room(pod) {
            let score = with(&[gpu]);
            if score > best.0 {
                best = (score, Some(gpu));
            }
        }
        best
    }
}

impl Policy for Fgd {
    fn choose(&mut self, cluster: &Cluster, class: usize, pod: &Pod) -> anyhow::Result<Option<Place>> {
        let mut best: Option<(i64, Place)> = None;
        for (node, free) in cluster.nodes.iter().enumerate() {
            if !free.fits(pod) {
                continue;
            }
            let known = self.known[node].get(&class).copied();
            let (score, gpu) = known.unwrap_or_else(|| {
                let score = self.score(free, pod);
                self.known[node].insert(class, score);
                score
            });
            // Of equals, the first.
            if best.as_ref().is_none_or(|(highest, _)| score > *highest) {
                let gpus = match gpu {
                    Some(gpu) => vec![gpu],
                    None => free.with_room(pod).take(pod.gpus).collect(),
                };
                best = Some((score, Place { node, gpus }));
            }
        }
        Ok(best.map(|(_, place)| place))
    }

    fn taken(&mut self, _cluster: &Cluster, place: &Place) -> anyhow::Result<()> {
        self.known[place.node].clear();
        Ok(())
    }
}
