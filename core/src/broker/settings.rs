//! What an operator may set.

use std::sync::Arc;
use std::time::Duration;

use crate::model::activity::Thresholds;
use crate::model::fabric::Fabric;
use crate::model::gang_network::Subnet;
use crate::model::policy::Policy;
use crate::model::resources::model_matches;
use crate::placement::Reserve;
use crate::queue::{Decay, Weights};
use serde::{Deserialize, Serialize};

const GIB: u64 = 1 << 30;

/// What an operator may set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Cluster name, for people and `SLURM_CLUSTER_NAME`.
    pub cluster_name: String,
    /// Domain of host principals: "dev.alice.carrel".
    pub domain: String,
    /// Image used when none is asked for; empty: one must be asked for.
    pub default_image: String,
    /// Time limit used when none is asked for.
    pub default_time: Duration,
    /// Longest time limit, extensions included.
    pub max_time: Duration,
    /// How long a node may go on without contact before it ends its jobs.
    pub lease: Duration,
    /// How much longer the broker waits before it counts such a job as ended.
    pub lease_margin: Duration,
    /// A node that was not heard of for so long gets no new jobs.
    pub contact_timeout: Duration,
    /// Between the terminate signal and the kill.
    pub grace: Duration,
    /// So long before a deadline the session's terminals are warned.
    pub warn_before: Vec<Duration>,
    /// When sessions end that are not used.
    pub idle: IdleSettings,
    /// Hardware threads a GPU when none are asked for, as far as the nodes have them.
    pub cpus_per_gpu: u32,
    /// Memory a GPU, bytes, when none is asked for, as far as the nodes have it.
    pub memory_per_gpu: u64,
    /// What each free GPU of a node keeps from jobs that do not hold it.
    pub reserve: Reserve,
    /// Hardware threads of a job without GPUs when none are asked for.
    pub cpus: u32,
    /// Memory of a job without GPUs, bytes, when none is asked for.
    pub memory: u64,
    /// What users may have.
    pub policy: Policy,
    /// How long records of the audit log are kept.
    pub audit_retention: Duration,
    /// How long jobs that are over stay in memory; after that they are in the history alone.
    pub jobs_in_memory: Duration,
    /// How the queue is ordered.
    pub queue: QueueSettings,
    /// Switches and blocks over the nodes.
    pub fabric: Arc<Fabric>,
    /// Where the addresses are from by which the containers of a gang reach each other.
    pub gang_subnet: Subnet,
    /// Mail is sent: there is a program that does it.
    pub mail: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cluster_name: "carrel".into(),
            domain: "carrel".into(),
            default_image: String::new(),
            default_time: Duration::from_hours(8),
            max_time: Duration::from_hours(7 * 24),
            lease: Duration::from_mins(10),
            lease_margin: Duration::from_secs(30),
            contact_timeout: Duration::from_secs(20),
            grace: Duration::from_secs(10),
            warn_before: [30, 10, 5, 1].map(Duration::from_mins).to_vec(),
            idle: IdleSettings::default(),
            cpus_per_gpu: 12,
            memory_per_gpu: 128 * GIB,
            reserve: Reserve::default(),
            cpus: 2,
            memory: 4 * GIB,
            policy: Policy::default(),
            audit_retention: Duration::from_hours(400 * 24),
            jobs_in_memory: Duration::from_hours(1),
            queue: QueueSettings::default(),
            fabric: Arc::default(),
            gang_subnet: Subnet::GANGS,
            mail: false,
        }
    }
}

impl Settings {
    /// How long before its deadline a job of this length is warned, the longest first. A warning in the first half of
    /// its time would tell nothing.
    pub fn warnings(&self, length: Duration) -> Vec<Duration> {
        let mut warnings = self.warn_before.clone();
        warnings.retain(|before| *before * 2 <= length);
        warnings.sort_unstable_by(|a, b| b.cmp(a));
        warnings.dedup();
        warnings
    }
}

/// When sessions end that are not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdleSettings {
    /// After so long without use; none: only those that ask for it. A session may ask for less, and not for more.
    pub after: Option<Duration>,
    /// So long before that their users are warned.
    pub warn: Duration,
    /// From what on work counts as use.
    pub thresholds: Thresholds,
}

impl Default for IdleSettings {
    fn default() -> Self {
        Self {
            after: None,
            warn: Duration::from_mins(30),
            thresholds: Thresholds::default(),
        }
    }
}

/// How the queue is ordered, and what use counts as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSettings {
    /// Points of each factor of a priority.
    pub weights: Weights,
    /// After so long half of what was used is forgotten; zero: nothing ever is.
    pub half_life: Duration,
    /// Limits of GPU-minutes begin anew after so long, counted from the Unix epoch; zero: never.
    pub usage_period: Duration,
    /// What a GPU counts as by its model ([`model_matches`]), in thousandths; of several that match the first
    /// counts, and where none does 1,000.
    pub gpu_weights: Vec<(String, u32)>,
    /// What a hardware thread of a job without GPUs counts as, thousandths of a GPU.
    pub cpu_weight: u32,
    /// Indices of arrays are below this, as with Slurm's `MaxArraySize`.
    pub max_array_size: u32,
    /// Pending jobs that are promised a start, which nobody behind them can make later.
    pub promises: u32,
    /// Jobs run on somebody's account only: who is in none has no place to run them.
    pub accounts_required: bool,
    /// When jobs give way to others.
    pub preemption: PreemptionSettings,
    /// What is kept for interactive jobs.
    pub headroom: HeadroomSettings,
    /// What users may reserve.
    pub reservations: ReservationSettings,
}

/// What users may reserve who are no operators. The default says: nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReservationSettings {
    /// GPUs in all reservations of one user.
    pub gpus: u32,
    /// For so long.
    pub time: Duration,
    /// From now on until so long ahead.
    pub ahead: Duration,
}

impl Default for ReservationSettings {
    fn default() -> Self {
        Self {
            gpus: 0,
            time: Duration::from_hours(8),
            ahead: Duration::from_hours(7 * 24),
        }
    }
}

/// What protects jobs that give way to others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PreemptionSettings {
    /// A job has run for so long before it is ended for another.
    pub min_runtime: Duration,
    /// So often in a row; then it runs to its end.
    pub max_preemptions: u32,
}

impl Default for PreemptionSettings {
    fn default() -> Self {
        Self {
            min_runtime: Duration::from_mins(10),
            max_preemptions: 5,
        }
    }
}

/// How many GPUs of each model batch jobs that do not give way leave to interactive ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeadroomSettings {
    /// So many at least.
    pub floor: u32,
    /// So many of a hundred at most; 0: none are kept, whatever the floor.
    pub ceiling_percent: u32,
    /// Thousandths of interactive jobs that may find too few.
    pub blocking_milli: u32,
    /// After so long half of what was asked for is forgotten.
    pub half_life: Duration,
}

impl Default for HeadroomSettings {
    fn default() -> Self {
        Self {
            floor: 0,
            ceiling_percent: 25,
            blocking_milli: 50,
            half_life: Duration::from_hours(12),
        }
    }
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            weights: Weights::default(),
            half_life: Duration::from_hours(7 * 24),
            usage_period: Duration::from_hours(30 * 24),
            gpu_weights: Vec::new(),
            cpu_weight: 20,
            max_array_size: 100_001,
            promises: 32,
            accounts_required: false,
            preemption: PreemptionSettings::default(),
            headroom: HeadroomSettings::default(),
            reservations: ReservationSettings::default(),
        }
    }
}

impl QueueSettings {
    /// How use is counted.
    pub fn decay(&self) -> Decay {
        Decay {
            half_life: self.half_life,
            period: self.usage_period,
        }
    }

    /// What a GPU of a model counts as, thousandths.
    pub fn gpu_weight(&self, model: &str) -> u32 {
        let wanted = self
            .gpu_weights
            .iter()
            .find(|(pattern, _)| model_matches(pattern, model));
        wanted.map_or(1_000, |(_, weight)| *weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_jobs_are_warned_less_often() {
        let minutes = |length: u64| -> Vec<u64> {
            let warnings = Settings::default().warnings(Duration::from_mins(length));
            warnings.iter().map(|before| before.as_secs() / 60).collect()
        };
        assert_eq!(minutes(480), [30, 10, 5, 1]);
        assert_eq!(minutes(59), [10, 5, 1]);
        assert_eq!(minutes(10), [5, 1]);
        assert_eq!(minutes(2), [1]);
        assert!(minutes(1).is_empty());
    }
}
