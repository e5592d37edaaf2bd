//! The JSON that programs read: field names are a promise (docs/cli.md). Times are RFC 3339 in
//! UTC; what is absent is null.

mod found;
mod history;
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
pub use self::job::Job;
pub use self::node::Node;
pub use self::plan::{Explanation, Plan};
pub use self::queue::{Account, MemberOf, Partition, Priority, Qos, QueuedJob, UserTerms, preemption};
pub use self::reservation::{Reservation, recurrence};
pub use self::session::{Session, Share, Terminal, terminal_state};
pub use self::user::{AuditRecord, Token, User};
pub use self::words::{job_state, role, session_state, share_mode, token_scope};

/// How much of what was held while that was measured was used, per cent; none: nothing was held.
pub fn used_percent(measured: carrel_proto::v1::MeasuredUse) -> Option<f64> {
    let of = measured.measured_gpu_hours;
    (of > 0.0).then(|| 100.0 * measured.used_gpu_hours / of)
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
