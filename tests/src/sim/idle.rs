//! Who uses what runs, and that nobody is ended who does: in some worlds sessions end when they are idle.

use std::collections::BTreeMap;
use std::time::Duration;

use carrel_core::agent::{GpuReading, Reading};
use carrel_core::broker::IdleSettings;
use carrel_core::model::ids::JobKey;
use carrel_core::model::job::{Job, JobKind, JobState};
use carrel_core::model::node::Observed;

use super::node::{Container, Physical};
use super::world::World;

/// After so long without use a session ends, milliseconds.
const AFTER: u64 = 5 * 60_000;
/// So long before it is warned, milliseconds.
const WARN: u64 = 60_000;
/// What a clock that drifts may make of a time, milliseconds.
const DRIFT: u64 = 5_000;
/// Those who come and go are there for so long, every so often, milliseconds: some come back when they are warned.
const STAY: u64 = 60_000;
const ROUND: u64 = 330_000;

/// Whether sessions end when they are idle in the world of a seed. The other worlds are as they are without it.
pub fn is_in(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

/// What the broker is told.
pub fn settings(idle: bool) -> IdleSettings {
    IdleSettings {
        after: idle.then(|| Duration::from_millis(AFTER)),
        warn: Duration::from_millis(WARN),
        ..IdleSettings::default()
    }
}

/// How a job is used: by nobody, all the time, or now and then.
fn is_used(key: JobKey, now: u64) -> bool {
    match key.job.0 % 4 {
        0 | 1 => false,
        2 => true,
        _ => now % ROUND < STAY,
    }
}

/// What somebody sees who looks at containers.
pub fn look(containers: &BTreeMap<JobKey, Container>, now: u64) -> Vec<(JobKey, Reading)> {
    let running = containers
        .iter()
        .filter(|(_, container)| container.state == Physical::Running);
    let reading = |(key, container): (&JobKey, &Container)| {
        let used = is_used(*key, now);
        // By one thing or the other.
        let gpu = if used && !container.holding.gpus.is_empty() {
            GpuReading::Busy(80)
        } else {
            GpuReading::Busy(0)
        };
        let gpus = container.holding.gpus.iter().map(|unit| (unit.clone(), gpu));
        let reading = Reading {
            cpu_us: Some(0),
            gpus: gpus.collect(),
            input_ago_ms: (used && container.holding.gpus.is_empty()).then_some(0),
            connection_ago_ms: None,
        };
        (*key, reading)
    };
    running.map(reading).collect()
}

impl World {
    /// The broker is told of the use of jobs: when that was, counted from now.
    pub(super) fn note_use(&mut self, observed: &Observed) {
        for (key, activity) in &observed.activity {
            let Some(seen) = activity.seen else { continue };
            let ago = seen.ago_ms.each().into_iter().filter_map(|(_, ago)| ago).min();
            if let Some(ago) = ago {
                let at = self.now.saturating_sub(ago);
                let known = self.used.entry((observed.node.to_string(), *key)).or_default();
                *known = at.max(*known);
            }
        }
    }

    /// A job is being ended: not as idle, unless it is, and whoever is there was told of that.
    pub(super) fn judge_idle(&self, job: &Job) -> Result<bool, String> {
        let Some(placed) = job.last_placed() else {
            return Ok(false);
        };
        let ending = placed.ending.as_ref();
        if !ending.is_some_and(|ending| {
            ending.state == JobState::Timeout && ending.reason.starts_with("idle since")
        }) {
            return Ok(false);
        }
        if job.kind == JobKind::Batch {
            return Err(format!("job {} is a batch job and was ended as idle", job.id));
        }
        let key = JobKey {
            job: job.id,
            generation: placed.generation,
        };
        for part in &placed.allocation.nodes {
            let node = self.nodes.get(part.node.as_str());
            let container = node.and_then(|node| node.containers.get(&key));
            let (Some(node), Some(container)) = (node, container) else {
                continue;
            };
            if container.revived {
                // Its host has forgotten what it had reported.
                continue;
            }
            let used = self.used.get(&(part.node.to_string(), key)).copied();
            let idle = used.map(|at| self.now - at);
            if idle.is_some_and(|idle| idle + DRIFT < AFTER) {
                return Err(format!(
                    "job {} was ended as idle, and {} had reported its use {} ms before",
                    job.id,
                    part.node,
                    idle.unwrap_or_default()
                ));
            }
            let told = node.idle_since(key).map(|since| self.now - since);
            if node.is_up() && told.is_none_or(|told| told < WARN / 2) {
                return Err(format!(
                    "job {} was ended as idle, of which {} had told for {told:?} ms",
                    job.id, part.node
                ));
            }
        }
        Ok(true)
    }
}
