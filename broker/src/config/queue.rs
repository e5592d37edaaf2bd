//! `[queue]`: how the queue is ordered, and what use counts as.

use std::time::Duration;

use anyhow::{Result, bail};
use carrel_core::broker::{HeadroomSettings, PreemptionSettings, QueueSettings, ReservationSettings};
use carrel_core::model::indices::MAX_INDEX;
use carrel_core::queue::Weights;
use carrel_core::queue::priority::MAX_WEIGHT;
use serde::{Deserialize, Serialize};

use super::LONGEST;
use super::units::{Factor, Span};

/// Shortest half-life and period: with less, use is forgotten before it can be counted.
const SHORTEST: Duration = Duration::from_mins(1);
/// Promises of one pass: each takes as long as many jobs that are only looked at.
const MAX_PROMISES: u32 = 1_000;
/// What a GPU or a hardware thread counts as, at most.
const MAX_FACTOR: Factor = Factor(1_000_000);
/// Models of GPUs that are told apart.
const MAX_MODELS: usize = 256;

/// `[queue]`; every key may be absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// After so long half of what was used is forgotten; "0s": nothing ever is.
    half_life: Span,
    /// Limits of GPU-minutes begin anew after so long; "0s": never.
    usage_period: Span,
    /// What a hardware thread of a job without GPUs counts as, of a GPU.
    cpu_weight: Factor,
    /// Pending jobs that are promised a start.
    promises: u32,
    /// Indices of arrays are below this, as with Slurm's MaxArraySize; 0: there are no arrays.
    max_array_size: u32,
    /// Who is in no account runs no jobs.
    accounts_required: bool,
    /// Points of each factor of a priority.
    weights: WeightsConfig,
    /// When jobs give way to others.
    preemption: PreemptionConfig,
    /// What is kept for interactive jobs.
    headroom: HeadroomConfig,
    /// What users may reserve.
    reservations: ReservationsConfig,
    /// What GPUs count as; the first that matches counts.
    gpu_weights: Vec<GpuWeight>,
}

/// `[queue.preemption]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PreemptionConfig {
    /// A job has run for so long before it is ended for another.
    min_runtime: Span,
    /// So often in a row; then it runs to its end.
    max_preemptions: u32,
}

/// `[queue.headroom]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HeadroomConfig {
    /// GPUs of each model, at least.
    floor: u32,
    /// So many of a hundred of a model's GPUs at most; 0: none, whatever the floor.
    ceiling_percent: u32,
    /// Part of interactive jobs that may find too few.
    blocking: Factor,
    /// After so long half of what was asked for is forgotten.
    half_life: Span,
}

impl Default for PreemptionConfig {
    fn default() -> Self {
        Self::of(&PreemptionSettings::default())
    }
}

impl PreemptionConfig {
    fn of(settings: &PreemptionSettings) -> Self {
        Self {
            min_runtime: Span(settings.min_runtime),
            max_preemptions: settings.max_preemptions,
        }
    }

    fn check(&self) -> Result<()> {
        if self.min_runtime.0 > LONGEST {
            let (asked, longest) = (self.min_runtime, Span(LONGEST));
            bail!("queue.preemption.min_runtime = \"{asked}\": the most is {longest}");
        }
        Ok(())
    }
}

impl Default for HeadroomConfig {
    fn default() -> Self {
        Self::of(&HeadroomSettings::default())
    }
}

impl HeadroomConfig {
    fn of(settings: &HeadroomSettings) -> Self {
        Self {
            floor: settings.floor,
            ceiling_percent: settings.ceiling_percent,
            blocking: Factor(settings.blocking_milli),
            half_life: Span(settings.half_life),
        }
    }

    fn check(&self) -> Result<()> {
        if self.ceiling_percent > 100 {
            bail!(
                "queue.headroom.ceiling_percent = {}: the most is 100",
                self.ceiling_percent
            );
        }
        if !(1..1_000).contains(&self.blocking.0) {
            bail!(
                "queue.headroom.blocking = {}: it is to be 0.001 to 0.999",
                self.blocking
            );
        }
        let Span(half_life) = self.half_life;
        if half_life < SHORTEST || half_life > LONGEST {
            let (shortest, longest) = (Span(SHORTEST), Span(LONGEST));
            bail!(
                "queue.headroom.half_life = \"{}\": it is to be {shortest} to {longest}",
                self.half_life
            );
        }
        Ok(())
    }
}

/// `[queue.reservations]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ReservationsConfig {
    /// GPUs in all reservations of one user; 0: operators alone reserve.
    gpus: u32,
    /// For so long at most.
    time: Span,
    /// Beginning in so long at most.
    ahead: Span,
}

impl ReservationsConfig {
    fn of(settings: &ReservationSettings) -> Self {
        Self {
            gpus: settings.gpus,
            time: Span(settings.time),
            ahead: Span(settings.ahead),
        }
    }
}

impl Default for ReservationsConfig {
    fn default() -> Self {
        Self::of(&ReservationSettings::default())
    }
}

/// `[queue.weights]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WeightsConfig {
    fair_share: u32,
    age: u32,
    age_unit: Span,
    size: u32,
    qos: u32,
    partition: u32,
    interactive: u32,
}

/// `[[queue.gpu_weights]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuWeight {
    /// Part of the model's name, as in a request.
    model: String,
    /// What one counts as.
    weight: Factor,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self::of(&QueueSettings::default())
    }
}

impl Default for WeightsConfig {
    fn default() -> Self {
        Self::of(&Weights::default())
    }
}

impl WeightsConfig {
    fn of(weights: &Weights) -> Self {
        Self {
            fair_share: weights.fair_share,
            age: weights.age,
            age_unit: Span(weights.age_unit),
            size: weights.size,
            qos: weights.qos,
            partition: weights.partition,
            interactive: weights.interactive,
        }
    }

    fn check(&self) -> Result<()> {
        for (key, weight) in [
            ("fair_share", self.fair_share),
            ("age", self.age),
            ("size", self.size),
            ("qos", self.qos),
            ("partition", self.partition),
            ("interactive", self.interactive),
        ] {
            if weight > MAX_WEIGHT {
                bail!("queue.weights.{key} = {weight}: the most is {MAX_WEIGHT}");
            }
        }
        let Span(unit) = self.age_unit;
        if unit < SHORTEST || unit > LONGEST {
            let (shortest, longest) = (Span(SHORTEST), Span(LONGEST));
            bail!(
                "queue.weights.age_unit = \"{}\": it is to be {shortest} to {longest}",
                self.age_unit
            );
        }
        Ok(())
    }
}

impl QueueConfig {
    fn of(settings: &QueueSettings) -> Self {
        let weights = settings.gpu_weights.iter().map(|(model, weight)| GpuWeight {
            model: model.clone(),
            weight: Factor(*weight),
        });
        Self {
            half_life: Span(settings.half_life),
            usage_period: Span(settings.usage_period),
            cpu_weight: Factor(settings.cpu_weight),
            promises: settings.promises,
            max_array_size: settings.max_array_size,
            accounts_required: settings.accounts_required,
            weights: WeightsConfig::of(&settings.weights),
            preemption: PreemptionConfig::of(&settings.preemption),
            headroom: HeadroomConfig::of(&settings.headroom),
            reservations: ReservationsConfig::of(&settings.reservations),
            gpu_weights: weights.collect(),
        }
    }

    /// Refuses what is out of range.
    pub(super) fn check(&self) -> Result<()> {
        for (key, Span(span)) in [("half_life", self.half_life), ("usage_period", self.usage_period)] {
            if !span.is_zero() && (span < SHORTEST || span > LONGEST) {
                let (shortest, longest) = (Span(SHORTEST), Span(LONGEST));
                bail!(
                    "queue.{key} = \"{}\": it is to be {shortest} to {longest}, or \"0s\" for never",
                    Span(span)
                );
            }
        }
        if self.promises > MAX_PROMISES {
            bail!("queue.promises = {}: the most is {MAX_PROMISES}", self.promises);
        }
        if self.max_array_size > MAX_INDEX + 1 {
            bail!(
                "queue.max_array_size = {}: the most is {}",
                self.max_array_size,
                MAX_INDEX + 1
            );
        }
        if self.cpu_weight > MAX_FACTOR {
            bail!("queue.cpu_weight = {}: the most is {MAX_FACTOR}", self.cpu_weight);
        }
        if self.gpu_weights.len() > MAX_MODELS {
            bail!("queue.gpu_weights: at most {MAX_MODELS} models are told apart");
        }
        for GpuWeight { model, weight } in &self.gpu_weights {
            if model.trim().is_empty() {
                bail!("queue.gpu_weights: model = {model:?} names no model, such as \"h100\"");
            }
            if *weight > MAX_FACTOR {
                bail!("queue.gpu_weights: weight = {weight} of {model:?}: the most is {MAX_FACTOR}");
            }
        }
        self.preemption.check()?;
        self.headroom.check()?;
        self.weights.check()
    }

    /// What the core is to know of it.
    pub(super) fn settings(&self) -> QueueSettings {
        let weights = &self.weights;
        QueueSettings {
            weights: Weights {
                fair_share: weights.fair_share,
                age: weights.age,
                age_unit: weights.age_unit.0,
                size: weights.size,
                qos: weights.qos,
                partition: weights.partition,
                interactive: weights.interactive,
            },
            half_life: self.half_life.0,
            usage_period: self.usage_period.0,
            gpu_weights: self
                .gpu_weights
                .iter()
                .map(|one| (one.model.clone(), one.weight.0))
                .collect(),
            cpu_weight: self.cpu_weight.0,
            promises: self.promises,
            max_array_size: self.max_array_size,
            accounts_required: self.accounts_required,
            preemption: PreemptionSettings {
                min_runtime: self.preemption.min_runtime.0,
                max_preemptions: self.preemption.max_preemptions,
            },
            headroom: HeadroomSettings {
                floor: self.headroom.floor,
                ceiling_percent: self.headroom.ceiling_percent,
                blocking_milli: self.headroom.blocking.0,
                half_life: self.headroom.half_life.0,
            },
            reservations: ReservationSettings {
                gpus: self.reservations.gpus,
                time: self.reservations.time.0,
                ahead: self.reservations.ahead.0,
            },
        }
    }
}
