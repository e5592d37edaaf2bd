//! In which order pending jobs are looked at.

use crate::broker::State;
use crate::model::ids::JobId;

/// Pending jobs, the next one first: first come, first served.
pub fn order(state: &State) -> impl Iterator<Item = JobId> + '_ {
    state.queue.iter().copied()
}

/// Whether one pending job is looked at after another.
pub fn is_behind(job: JobId, other: JobId) -> bool {
    job > other
}
