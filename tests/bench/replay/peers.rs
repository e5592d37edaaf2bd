//! What Carrel is held against, as models: counts of free GPUs on nodes, and an order.
//!
//! Both share nodes by GPU and start jobs in the order in which they come, on the fullest nodes that have room. `fifo`
//! lets nobody pass. `easy-node` is EASY backfill (Lifka, JSSPP 1995) as Slurm's backfill plugin keeps room for a job
//! that waits: the first one is kept whole nodes from the time on at which they are free for it by the time limits of
//! what runs, and whoever would run beyond that time starts on other nodes only.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::outcome::Outcome;
use super::workload::{Cluster, Job};

/// Whether jobs may overtake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overtaking {
    /// Never.
    None,
    /// Where it does not delay the first one.
    Easy,
}

/// A job that runs.
struct Running {
    /// When it ends at the latest.
    until: u64,
    gpus_per_node: u32,
    nodes: Vec<usize>,
}

struct Model<'a> {
    jobs: &'a [Job],
    gpus_per_node: u32,
    /// GPUs free on each node.
    free: Vec<u32>,
    running: BTreeMap<usize, Running>,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// Those that wait, in order.
    queue: BTreeSet<usize>,
    outcomes: Vec<Outcome>,
}

/// Runs all jobs.
pub fn run(cluster: Cluster, jobs: &[Job], overtaking: Overtaking) -> Vec<Outcome> {
    let mut model = Model {
        jobs,
        gpus_per_node: cluster.gpus_per_node,
        free: vec![cluster.gpus_per_node; cluster.nodes as usize],
        running: BTreeMap::new(),
        ends: BinaryHeap::new(),
        queue: BTreeSet::new(),
        outcomes: vec![Outcome::default(); jobs.len()],
    };
    let mut next = 0;
    loop {
        let arrival = jobs.get(next).map(|job| job.arrival);
        let end = model.ends.peek().map(|Reverse((at, _))| *at);
        let Some(now) = arrival.into_iter().chain(end).min() else {
            return model.outcomes;
        };
        while model.ends.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            model.end();
        }
        while jobs.get(next).is_some_and(|job| job.arrival <= now) {
            model.queue.insert(next);
            next += 1;
        }
        model.pass(now, overtaking);
    }
}

impl Model<'_> {
    fn end(&mut self) {
        let Some(Reverse((_, number))) = self.ends.pop() else {
            return;
        };
        if let Some(over) = self.running.remove(&number) {
            for node in over.nodes {
                self.free[node] += over.gpus_per_node;
            }
        }
    }

    fn pass(&mut self, now: u64, overtaking: Overtaking) {
        while let Some(first) = self.queue.first().copied() {
            let Some(nodes) = self.fit(&self.jobs[first], |_| true) else {
                break;
            };
            self.start(now, first, nodes);
        }
        let Some(first) = self.queue.first().copied() else {
            return;
        };
        match overtaking {
            Overtaking::None => {}
            Overtaking::Easy => self.backfill(now, first),
        }
    }

    /// Starts what does not delay the first one.
    fn backfill(&mut self, now: u64, first: usize) {
        let (shadow, kept) = self.reservation(now, &self.jobs[first]);
        // What does not fit anywhere or beside the reservation: what is free only becomes less.
        let mut unfit: BTreeSet<(bool, u32, u32)> = BTreeSet::new();
        let behind: Vec<usize> = self.queue.iter().copied().skip(1).collect();
        for number in behind {
            let job = &self.jobs[number];
            let in_time = now + job.limit <= shadow;
            let shape = (in_time, job.nodes, job.gpus_per_node);
            if unfit.contains(&shape) {
                continue;
            }
            match self.fit(job, |node| in_time || !kept.contains(&node)) {
                Some(nodes) => self.start(now, number, nodes),
                None => {
                    unfit.insert(shape);
                }
            }
        }
    }

    /// When a job can start at the latest, by the limits of what runs, and on which nodes.
    fn reservation(&self, now: u64, job: &Job) -> (u64, BTreeSet<usize>) {
        let mut ends: Vec<Vec<(u64, u32)>> = self.free.iter().map(|free| vec![(now, *free)]).collect();
        for running in self.running.values() {
            for node in &running.nodes {
                ends[*node].push((running.until.max(now), running.gpus_per_node));
            }
        }
        let when = |(node, ends): (usize, &mut Vec<(u64, u32)>)| {
            ends.sort_unstable();
            let mut free = 0;
            let enough = ends.iter().find(|(_, gpus)| {
                free += gpus;
                free >= job.gpus_per_node
            });
            (enough.map_or(u64::MAX, |(at, _)| *at), node)
        };
        let mut free_at: Vec<(u64, usize)> = ends.iter_mut().enumerate().map(when).collect();
        free_at.sort_unstable();
        free_at.truncate(job.nodes as usize);
        let shadow = free_at.last().map_or(u64::MAX, |(at, _)| *at);
        (shadow, free_at.into_iter().map(|(_, node)| node).collect())
    }

    /// The fullest nodes with room.
    fn fit(&self, job: &Job, allowed: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let mut fitting: Vec<(u32, usize)> = (self.free.iter().enumerate())
            .filter(|(node, free)| **free >= job.gpus_per_node && allowed(*node))
            .map(|(node, free)| (*free, node))
            .collect();
        if fitting.len() < job.nodes as usize {
            return None;
        }
        fitting.sort_unstable();
        Some(
            fitting
                .into_iter()
                .take(job.nodes as usize)
                .map(|(_, node)| node)
                .collect(),
        )
    }

    fn start(&mut self, now: u64, number: usize, nodes: Vec<usize>) {
        let job = &self.jobs[number];
        debug_assert!(job.gpus_per_node <= self.gpus_per_node);
        for node in &nodes {
            self.free[*node] -= job.gpus_per_node;
        }
        self.queue.remove(&number);
        let running = Running {
            until: now + job.limit,
            gpus_per_node: job.gpus_per_node,
            nodes,
        };
        self.running.insert(number, running);
        let end = now + job.runtime;
        self.ends.push(Reverse((end, number)));
        self.outcomes[number].finished = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: Cluster = Cluster {
        nodes: 2,
        gpus_per_node: 8,
    };

    fn job(arrival: u64, runtime: u64, nodes: u32, gpus_per_node: u32) -> Job {
        Job {
            arrival,
            runtime,
            limit: runtime,
            nodes,
            gpus_per_node,
            interactive: false,
            user: 0,
        }
    }

    fn finished(jobs: &[Job], overtaking: Overtaking) -> Vec<u64> {
        let outcomes = run(CLUSTER, jobs, overtaking);
        outcomes.iter().map(|outcome| outcome.finished).collect()
    }

    #[test]
    fn only_what_does_not_delay_the_first_one_passes() {
        let jobs = [
            job(0, 100, 1, 8),
            job(1, 50, 2, 8),
            // In time on a node that is kept; beyond it; and in time again.
            job(2, 90, 1, 4),
            job(3, 200, 1, 4),
            job(4, 96, 1, 4),
        ];
        assert_eq!(finished(&jobs, Overtaking::Easy), [100, 150, 92, 350, 100]);
        assert_eq!(finished(&jobs, Overtaking::None), [100, 150, 240, 350, 246]);
    }

    #[test]
    fn nodes_that_are_not_kept_take_anything() {
        // The first node is kept for the second job, which needs all of one; the other one has room.
        let jobs = [
            job(0, 100, 1, 5),
            job(0, 300, 1, 5),
            job(1, 10, 1, 8),
            job(2, 500, 1, 2),
        ];
        assert_eq!(finished(&jobs, Overtaking::Easy), [100, 300, 110, 502]);
    }
}
