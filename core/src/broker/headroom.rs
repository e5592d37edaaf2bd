//! GPUs that are kept for interactive jobs from batch jobs that do not give way.
//!
//! Of each model such batch jobs hold no more than all but the headroom. What is kept is lent to those that give way:
//! whoever it is kept for has it back after their grace.

use std::collections::{BTreeMap, BTreeSet};

use imbl::OrdMap;

use super::settings::HeadroomSettings;
use super::state::State;
use crate::model::ids::{JobId, NodeName};
use crate::model::job::{Job, JobKind, Phase};
use crate::model::resources::Allocation;
use crate::model::time::Timestamp;
use crate::queue::Decay;
use crate::queue::headroom::{Demand, Kept};

/// Half-lives after which what somebody held is no longer counted at a start: a thousandth is left of it.
const FORGOTTEN: u32 = 10;

/// What live jobs hold of each model of GPU, thousandths, and what interactive ones have held lately.
#[derive(Clone, Debug, Default)]
pub struct ByModel {
    demand: OrdMap<String, Demand>,
    /// By batch jobs that do not give way.
    batch: OrdMap<String, u64>,
    /// What each job is counted as, and until when it has it.
    counted: OrdMap<JobId, Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    interactive: bool,
    held: BTreeMap<String, u64>,
}

impl HeadroomSettings {
    fn decay(&self) -> Decay {
        Decay {
            half_life: self.half_life,
            period: std::time::Duration::ZERO,
        }
    }
}

impl ByModel {
    /// What was held of a model by jobs that are not in the state any more.
    pub(super) fn set_past(&mut self, model: String, demand: Demand) {
        self.demand.insert(model, demand);
    }

    fn begin(&mut self, id: JobId, counted: Counted, at: Timestamp, decay: Decay) {
        for (model, milli) in &counted.held {
            if counted.interactive {
                let demand = self.demand.entry(model.clone()).or_default();
                demand.begin(at, *milli, decay);
            } else {
                *self.batch.entry(model.clone()).or_default() += milli;
            }
        }
        self.counted.insert(id, counted);
    }

    fn end(&mut self, id: JobId, at: Timestamp, decay: Decay) {
        let Some(counted) = self.counted.remove(&id) else {
            return;
        };
        for (model, milli) in &counted.held {
            if counted.interactive {
                let demand = self.demand.entry(model.clone()).or_default();
                demand.end(at, *milli, decay);
            } else if let Some(held) = self.batch.get_mut(model) {
                *held = held.saturating_sub(*milli);
            }
        }
    }
}

/// What is kept of each model, worked out when a pass first needs it.
#[derive(Default)]
pub(super) struct Headroom(Option<Vec<Kept>>);

impl Headroom {
    /// What keeps a job from holding this; none: nothing.
    pub fn in_the_way(
        &mut self,
        state: &State,
        now: Timestamp,
        job: &Job,
        wanted: &Allocation,
    ) -> Option<Kept> {
        if job.kind == JobKind::Interactive
            || state.gives_way(job).is_some()
            // What is reserved is kept from both.
            || job.terms.reservation.is_some()
        {
            return None;
        }
        let all = self.0.get_or_insert_with(|| state.headroom(now));
        let wanted = state.by_model(wanted);
        let mut all = all.iter().filter(|kept| kept.kept > 0);
        let too_much = |kept: &&Kept| {
            let most = (kept.of - kept.kept) * 1_000;
            let held = state.by_model.batch.get(&kept.model).copied().unwrap_or_default();
            let wanted = wanted.get(&kept.model).copied().unwrap_or_default();
            // Whoever asks for more than is ever left waits until it is free, and not for ever.
            wanted > 0 && wanted <= most && held + wanted > most
        };
        all.find(too_much).cloned()
    }
}

impl State {
    /// Takes note of what a job holds, in place of its former self.
    pub(super) fn count_by_model(&mut self, old: Option<&Job>, job: &Job) {
        let decay = self.settings.queue.headroom.decay();
        let generation = |job: &Job| job.placed().map(|placed| placed.generation);
        if old.and_then(generation) == generation(job) && job.placed().is_some() {
            return;
        }
        let (last, over) = match &job.phase {
            Phase::Pending => (None, None),
            Phase::Placed(placed) => (Some(placed), None),
            Phase::Ended { last, at, .. } => (last.as_ref(), Some(*at)),
        };
        let at = over.unwrap_or(self.ticked);
        self.by_model.end(job.id, at, decay);
        // One that is over is counted when the store is read back: it was asked for.
        let unknown = old.is_none() && job.kind == JobKind::Interactive;
        let forgotten = at.after(decay.half_life.saturating_mul(FORGOTTEN)) < self.ticked;
        if over.is_some() && (!unknown || forgotten) {
            return;
        }
        let Some(placed) = last.filter(|_| job.kind == JobKind::Interactive || self.gives_way(job).is_none())
        else {
            return;
        };
        let counted = Counted {
            interactive: job.kind == JobKind::Interactive,
            held: self.by_model(&placed.allocation),
        };
        self.by_model.begin(job.id, counted, placed.started, decay);
        if over.is_some() {
            self.by_model.end(job.id, at, decay);
        }
    }

    /// What interactive jobs that have left the state held of each model, this one among them, where it held any.
    pub(super) fn past_demand_with(&self, job: &Job) -> Vec<(String, Demand)> {
        let decay = self.settings.queue.headroom.decay();
        let Phase::Ended { at, last, .. } = &job.phase else {
            return Vec::new();
        };
        let Some(last) = last.as_ref().filter(|_| job.kind == JobKind::Interactive) else {
            return Vec::new();
        };
        let counted = |(model, milli): (String, u64)| {
            let mut demand = self.past_demand.get(&model).copied().unwrap_or_default();
            demand.begin(last.started, milli, decay);
            demand.end(*at, milli, decay);
            (model, demand)
        };
        self.by_model(&last.allocation).into_iter().map(counted).collect()
    }

    /// Thousandths of GPUs of each model.
    fn by_model(&self, held: &Allocation) -> BTreeMap<String, u64> {
        let mut by_model: BTreeMap<String, u64> = BTreeMap::new();
        for part in &held.nodes {
            let Some(node) = self.nodes.get(&part.node) else {
                continue;
            };
            for unit in &part.gpus {
                let mut gpus = node.inventory.gpus.iter();
                if let Some(gpu) = gpus.find(|gpu| gpu.uuid == unit.gpu) {
                    *by_model.entry(gpu.model.clone()).or_default() += u64::from(unit.slice.milli());
                }
            }
        }
        by_model
    }

    /// What is kept of each model for interactive jobs.
    pub fn headroom(&self, now: Timestamp) -> Vec<Kept> {
        let settings = &self.settings.queue.headroom;
        let mut gpus: BTreeMap<&str, u64> = BTreeMap::new();
        for node in self.nodes.values() {
            if self.unavailable(node).is_none() {
                let all = node.inventory.gpus.iter();
                all.filter(|gpu| gpu.drained.is_none())
                    .for_each(|gpu| *gpus.entry(gpu.model.as_str()).or_default() += 1);
            }
        }
        let blocking = f64::from(settings.blocking_milli.clamp(1, 1_000)) / 1_000.0;
        let kept = gpus.into_iter().map(|(model, of)| {
            let demand = self.by_model.demand.get(model).copied().unwrap_or_default();
            let wanted = demand.wanted(now, blocking, settings.decay());
            let ceiling = of * u64::from(settings.ceiling_percent.min(100)) / 100;
            Kept {
                model: model.to_owned(),
                kept: wanted.max(settings.floor.into()).min(ceiling),
                of,
            }
        });
        kept.collect()
    }

    /// Nodes without any GPU of these models.
    pub(super) fn nodes_without(&self, models: &BTreeSet<String>) -> Vec<&NodeName> {
        let nodes = self.nodes.iter().filter(|(_, node)| {
            let mut gpus = node.inventory.gpus.iter();
            !gpus.any(|gpu| models.contains(&gpu.model))
        });
        nodes.map(|(name, _)| name).collect()
    }
}
