//! What every policy is given: the same jobs, of the same shapes, with the same time limits.

use std::collections::BTreeMap;

use anyhow::ensure;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::trace::Entry;

/// How much longer than it runs a user says that a job may run, each as often as the others. Users ask for a few
/// times what they need (Mu'alem and Feitelson, IEEE TPDS 12(6), 2001).
const FACTORS: [f64; 5] = [1.0, 1.5, 2.0, 5.0, 10.0];
/// Times that people write, minutes: a limit is the next of them.
const ROUND: [u64; 18] = [
    5, 10, 15, 30, 60, 120, 240, 480, 720, 1_440, 2_880, 4_320, 7_200, 10_080, 20_160, 30_240, 43_200, 86_400,
];
/// No user asks for more unless the job takes more, minutes: two weeks.
const LONGEST: u64 = 20_160;
/// Users of a virtual cluster where a trace does not name them.
const USERS: u32 = 20;
/// A job is interactive, where a trace does not say, that asks for no more GPUs and ran for less.
const INTERACTIVE_GPUS: u32 = 2;
const INTERACTIVE_MS: u64 = 600_000;
const MINUTE: u64 = 60_000;

/// The cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Nodes.
    pub nodes: u32,
    /// GPUs of each.
    pub gpus_per_node: u32,
}

impl Cluster {
    /// All GPUs.
    pub fn gpus(self) -> u64 {
        u64::from(self.nodes) * u64::from(self.gpus_per_node)
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Submitted, milliseconds after the first.
    pub arrival: u64,
    /// It runs for so long, milliseconds.
    pub runtime: u64,
    /// It may run for so long, milliseconds: no less.
    pub limit: u64,
    /// Nodes.
    pub nodes: u32,
    /// GPUs on each of them.
    pub gpus_per_node: u32,
    /// Somebody sits in front of it.
    pub interactive: bool,
    /// Whose, by number.
    pub user: u32,
}

impl Job {
    /// GPUs of all its nodes.
    pub fn gpus(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.gpus_per_node)
    }
}

/// Jobs of a trace, in the order of their arrival.
#[derive(Debug)]
pub struct Workload {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Users of them.
    pub users: u32,
    /// GPU time asked for over what the cluster has in the time in which jobs arrive.
    pub load: f64,
    /// By which times of arrival were multiplied.
    pub stretch: f64,
    /// Left out: of unknown runtime, without GPUs, too large for the cluster.
    pub dropped: [usize; 3],
}

impl Workload {
    /// The jobs of a trace for a cluster; arrivals are stretched or pressed together so that the load is what is asked
    /// for, if it is.
    pub fn new(
        mut entries: Vec<Entry>,
        cluster: Cluster,
        load: Option<f64>,
        most: Option<usize>,
        seed: u64,
    ) -> anyhow::Result<Self> {
        entries.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
        let mut random = SmallRng::seed_from_u64(seed);
        let mut users = Users::default();
        let mut dropped = [0; 3];
        let (mut arrivals, mut jobs) = (Vec::new(), Vec::new());
        for entry in &entries {
            // Drawn for each, so that what is left out changes nothing for the others.
            let (factor, user) = (
                random.random_range(0..FACTORS.len()),
                random.random_range(0..USERS),
            );
            let runtime = entry.runtime.filter(|runtime| *runtime >= 0.0);
            let nodes = entry.gpus.div_ceil(cluster.gpus_per_node);
            let Some(runtime) = runtime else {
                dropped[0] += 1;
                continue;
            };
            if entry.gpus == 0 || nodes > cluster.nodes {
                dropped[if entry.gpus == 0 { 1 } else { 2 }] += 1;
                continue;
            }
            if most.is_some_and(|most| jobs.len() >= most) {
                break;
            }
            let runtime = (runtime * 1e3) as u64;
            let told = entry.limit.map(|limit| (limit * 1e3) as u64);
            let limit = told.filter(|limit| *limit >= runtime);
            arrivals.push(entry.arrival);
            jobs.push(Job {
                arrival: 0,
                runtime,
                limit: limit.unwrap_or_else(|| limit_of(runtime, FACTORS[factor])),
                nodes,
                gpus_per_node: entry.gpus.div_ceil(nodes),
                interactive: entry
                    .interactive
                    .unwrap_or(entry.gpus <= INTERACTIVE_GPUS && runtime < INTERACTIVE_MS),
                user: users.number(entry, user),
            });
        }
        ensure!(
            jobs.len() > 1,
            "the trace has no two jobs that this cluster could run"
        );
        let span = arrivals[arrivals.len() - 1] - arrivals[0];
        ensure!(span > 0.0, "all jobs of the trace arrive at once");
        let asked: f64 = jobs
            .iter()
            .map(|job| job.gpus() as f64 * job.runtime as f64 / 1e3)
            .sum();
        let natural = asked / (cluster.gpus() as f64 * span);
        let stretch = load.map_or(1.0, |load| natural / load);
        for (job, arrival) in jobs.iter_mut().zip(&arrivals) {
            job.arrival = ((arrival - arrivals[0]) * stretch * 1e3) as u64;
        }
        Ok(Self {
            jobs,
            users: users.0.len() as u32,
            load: natural / stretch,
            stretch,
            dropped,
        })
    }

    /// From when to when is looked at: from the arrival of the tenth of the jobs that comes last of the first tenth, to
    /// that of the first of the last tenth. Before, the cluster fills up; after, it runs empty.
    pub fn window(&self) -> (u64, u64) {
        let at = |tenths: usize| self.jobs[(self.jobs.len() - 1) * tenths / 10].arrival;
        (at(1), at(9))
    }
}

/// The limit that a user sets for a job: so many times what it takes, rounded up to what people write; no more than
/// the longest that anybody asks for, unless it takes more.
fn limit_of(runtime: u64, factor: f64) -> u64 {
    let round = |ms: u64| {
        let minutes = ms.div_ceil(MINUTE);
        let next = ROUND.into_iter().find(|round| *round >= minutes);
        next.unwrap_or(minutes.next_multiple_of(1_440)) * MINUTE
    };
    let wished = round((runtime as f64 * factor) as u64).min(LONGEST * MINUTE);
    wished.max(round(runtime))
}

/// Numbers of users, in the order in which they first come.
#[derive(Default)]
struct Users(BTreeMap<(String, String), u32>);

impl Users {
    fn number(&mut self, entry: &Entry, drawn: u32) -> u32 {
        let own = entry.user.clone().unwrap_or_else(|| format!("#{drawn}"));
        let next = self.0.len() as u32;
        *self.0.entry((entry.group.clone(), own)).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: Cluster = Cluster {
        nodes: 4,
        gpus_per_node: 8,
    };

    fn entry(arrival: f64, runtime: Option<f64>, gpus: u32) -> Entry {
        Entry {
            arrival,
            runtime,
            gpus,
            ..Entry::default()
        }
    }

    #[test]
    fn limits_are_what_people_write_and_never_too_short() {
        assert_eq!(limit_of(61_000, 1.0), 5 * MINUTE);
        assert_eq!(limit_of(600_000, 1.5), 15 * MINUTE);
        assert_eq!(limit_of(5 * 86_400_000, 10.0), LONGEST * MINUTE);
        assert_eq!(limit_of(15 * 86_400_000, 5.0), 30_240 * MINUTE);
        assert_eq!(limit_of(70 * 86_400_000 + 1, 1.0), 71 * 1_440 * MINUTE);
    }

    #[test]
    fn the_load_is_what_is_asked_for_and_what_cannot_run_is_counted() {
        let entries = vec![
            entry(1_000.0, Some(3_200.0), 12),
            entry(0.0, Some(100.0), 1),
            entry(3.0, None, 1),
            entry(4.0, Some(1.0), 0),
            entry(5.0, Some(1.0), 33),
        ];
        let workload = Workload::new(entries, CLUSTER, Some(0.5), None, 1).expect("a workload");
        assert_eq!(workload.dropped, [1, 1, 1]);
        let gang = &workload.jobs[1];
        assert_eq!((gang.nodes, gang.gpus_per_node), (2, 6));
        let asked: u64 = workload.jobs.iter().map(|job| job.gpus() * job.runtime).sum();
        let span = gang.arrival as f64;
        assert!((asked as f64 / (span * 32.0) - 0.5).abs() < 1e-3);
    }
}
