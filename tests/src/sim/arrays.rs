//! Job arrays: in one world of four users submit them, and treat their tasks one by one.

use carrel_core::broker::{Broker, Input};
use carrel_core::model::array::{ArraySpec, JobRef};
use carrel_core::model::ids::JobId;
use carrel_core::model::indices::IndexSet;

use super::rng::Rng;
use super::world::{World, caller};

/// Tasks of the largest.
const MOST_TASKS: u64 = 12;

/// Chance of its own: worlds without arrays are as they would be if there were none anywhere.
pub(super) fn chance(seed: u64) -> Option<Rng> {
    seed.is_multiple_of(4).then(|| Rng::new(!seed))
}

impl World {
    /// The tasks of what is about to be submitted; none: it is one job.
    pub(super) fn perhaps_an_array(&mut self) -> Option<ArraySpec> {
        let rng = self.arrays.as_mut()?;
        if rng.one_in(3) {
            return None;
        }
        let first = rng.below(3) as u32;
        let last = first + rng.below(MOST_TASKS) as u32;
        let step = 1 + rng.below(2) as usize;
        let throttle = rng.one_in(2).then(|| 1 + rng.below(3) as u32);
        self.counts.add("array submitted");
        Some(ArraySpec {
            tasks: (first..=last).step_by(step).collect(),
            throttle,
        })
    }

    /// Somebody cancels tasks of an array, or has them run again.
    pub(super) fn perhaps_tasks(&mut self) {
        let Some(state) = self.broker.as_ref().map(Broker::state) else {
            return;
        };
        let live = state
            .arrays
            .values()
            .filter(|array| array.known.outcome().is_none());
        let live: Vec<(JobId, IndexSet)> = live
            .map(|array| (array.record.id, array.record.tasks.clone()))
            .collect();
        let Some(rng) = self.arrays.as_mut().filter(|_| !live.is_empty()) else {
            return;
        };
        let Some((id, all)) = rng.pick(&live).cloned() else {
            return;
        };
        let (from, count) = (rng.below(MOST_TASKS) as usize, 1 + rng.below(4) as usize);
        let tasks: IndexSet = all.iter().skip(from).take(count).collect();
        if tasks.is_empty() {
            return;
        }
        let again = rng.one_in(2);
        let jobs = state.jobs_of_tasks(id, &tasks);
        let Some(owner) = jobs.first().map(|job| job.owner.to_string()) else {
            return;
        };
        self.wished.extend(jobs.iter().filter_map(|job| job.key()));
        if again {
            let over = jobs.iter().filter(|job| job.state().is_final());
            self.anew.extend(over.map(|job| job.id));
        }
        let name = JobRef {
            job: id,
            tasks: Some(tasks),
        };
        self.note(format!(
            "{name} is {}",
            if again { "to run again" } else { "cancelled" }
        ));
        self.counts.add(if again {
            "tasks queued again"
        } else {
            "tasks cancelled"
        });
        let caller = caller(&owner);
        self.input(if again {
            Input::RequeueJob(caller, name)
        } else {
            Input::CancelJob(caller, name)
        });
    }
}
