//! The JSON that programs read: field names are a promise (docs/cli.md). Times are RFC 3339 in
//! UTC; what is absent is null.

use carrel_proto::v1;
use serde::Serialize;

mod found;
mod history;
mod host_use;
mod job;
mod node;
mod plan;
mod queue;
mod reservation;
mod session;
mod user;
mod words;

pub use self::found::Found;
pub use self::history::{HistoryJob, Usage, measured_in_all};
pub use self::host_use::{HostUse, efficiency};
pub use self::job::Job;
pub use self::node::Node;
pub use self::plan::{Explanation, Plan};
pub use self::queue::{Account, MemberOf, Partition, Priority, Qos, QueuedJob, UserTerms, preemption};
pub use self::reservation::{Reservation, recurrence};
pub use self::session::{Session, Share, Terminal, terminal_state};
pub use self::user::{AuditRecord, Token, User};
pub use self::words::{job_state, rank_network, role, session_state, share_mode, token_scope};

/// How much of what was held while that was measured was used, per cent; none: nothing was held.
pub fn used_percent(measured: carrel_proto::v1::MeasuredUse) -> Option<f64> {
    let of = measured.measured_gpu_hours;
    (of > 0.0).then(|| 100.0 * measured.used_gpu_hours / of)
}

/// What people call a job: "12", of an array "12_3", "12_[3-7,9]" or, while they wait, "12_[3-7,9%5]".
pub fn label(id: u64, array: Option<&v1::ArrayPart>, state: v1::JobState) -> String {
    let Some(part) = array else {
        return id.to_string();
    };
    let (array, tasks) = (part.array, &part.tasks);
    match part.throttle {
        _ if task(part).is_some() => format!("{array}_{tasks}"),
        throttle if throttle > 0 && state == v1::JobState::Pending => {
            format!("{array}_[{tasks}%{throttle}]")
        }
        _ => format!("{array}_[{tasks}]"),
    }
}

/// The task that a part of an array is; none: several wait.
fn task(part: &v1::ArrayPart) -> Option<u32> {
    part.tasks.parse().ok()
}

/// What a job has of an array.
#[derive(Debug, Serialize)]
struct ArrayFields {
    /// The array's number; null: it is in none.
    array_job_id: Option<u64>,
    /// Its index; null: several wait.
    array_task_id: Option<u32>,
    /// Those that wait, where they are several: "3-7,9".
    array_tasks: Option<String>,
    /// So many run at once at most; null: as many as there is room for.
    array_throttle: Option<u32>,
    /// Tasks of the whole array.
    array_task_count: Option<u32>,
}

impl From<Option<v1::ArrayPart>> for ArrayFields {
    fn from(part: Option<v1::ArrayPart>) -> Self {
        let part = part.as_ref();
        let task = part.and_then(task);
        let several = part.filter(|_| task.is_none());
        Self {
            array_job_id: part.map(|part| part.array),
            array_task_id: task,
            array_tasks: several.map(|part| part.tasks.clone()),
            array_throttle: part.map(|part| part.throttle).filter(|most| *most > 0),
            array_task_count: part.map(|part| part.count),
        }
    }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
